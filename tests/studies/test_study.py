"""The engine of studies: measurements survive kills, are resumed and reused, and become tables."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from support.commands import Call
from support.forks import fork_command
from support.studies import run
from unmask_studies.catalogue import list_studies, load_study
from unmask_studies.study import Findings, GridStudy, Key, Results, conclude, run_study
from unmask_studies.tables import Cell, Table

pytestmark = pytest.mark.usefixtures("unchecked")


@dataclass(frozen=True)
class Squares(GridStudy):
    """A study of three numbers that logs each measurement, and is interrupted at ``stop_at``."""

    log: Path
    stop_at: int = -1
    reusable: bool = False

    def axes(self) -> Sequence[Iterable[str | int]]:
        return ["number"], range(3)

    def measure(self, key: Key, folder: Path) -> Mapping[str, Any]:
        number = int(str(key[1]))
        if number == self.stop_at:
            raise KeyboardInterrupt
        with open(self.log, "a") as file:
            file.write(f"{number}\n")
        return {"square": number**2}

    def identity(self, key: Key) -> Mapping[str, Any] | None:
        return {"n": key[1]} if self.reusable else None

    def findings(self, results: Results) -> Findings:
        rows = [
            {"n": f"number {key[1]}", "n²": Cell(str(result["square"]), result["square"] > 1)}
            for key, result in results.items()
        ]
        return Findings([Table.of("squares", rows, "of small numbers")])


def test_resume_computes_only_what_is_missing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    study = Squares(log)
    with pytest.raises(KeyboardInterrupt):
        for done in run_study(study, tmp_path / "study"):
            if done.nth == 2:
                raise KeyboardInterrupt
    with pytest.raises(ValueError, match="resume"):
        list(run_study(study, tmp_path / "study"))
    with pytest.raises(ValueError, match="another configuration: reusable"):
        list(run_study(replace(study, reusable=True), tmp_path / "study", resume=True))
    seconds = [done.seconds for done in run_study(study, tmp_path / "study", resume=True)]
    assert seconds[:2] == [None, None] and seconds[2] is not None
    assert log.read_text().split() == ["0", "1", "2"]


def test_an_interrupted_measurement_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(run_study(Squares(tmp_path / "log", stop_at=1), tmp_path / "study"))
    assert [path.name for path in (tmp_path / "study" / "pieces").iterdir()] == ["number_0.json"]


def test_damaged_and_missing_results(tmp_path: Path) -> None:
    study, folder = Squares(tmp_path / "log"), tmp_path / "study"
    list(run_study(study, folder))
    (folder / "pieces" / "number_1.json").write_text('{"key": ["number", 1]')
    with pytest.raises(ValueError, match=r"number_1\.json is damaged: delete it"):
        conclude(study, folder, "x", "y")
    (folder / "pieces" / "number_1.json").unlink()
    with pytest.raises(ValueError, match=r"lacks number_1\.json"):
        conclude(study, folder, "x", "y")
    run(study, folder, resume=True)
    written = json.loads((folder / "study.json").read_text())
    assert [row[1]["text"] for row in written["tables"][0]["rows"]] == ["0", "1", "4"]
    assert (folder / "tables.md").read_text().endswith("| number 2 | **4** |\n\nof small numbers\n")


def test_results_are_reused_only_where_their_identity_is_the_same(tmp_path: Path) -> None:
    run(Squares(tmp_path / "first", reusable=True), tmp_path / "a")
    run(Squares(tmp_path / "second", reusable=True), tmp_path / "b", reuse=[tmp_path / "a"])
    assert not (tmp_path / "second").exists()
    run(Squares(tmp_path / "third", reusable=False), tmp_path / "c", reuse=[tmp_path / "a"])
    assert len((tmp_path / "third").read_text().split()) == 3
    with pytest.raises(ValueError, match="expected a study's folder"):
        list(run_study(Squares(tmp_path / "log"), tmp_path / "d", reuse=[tmp_path]))


def test_rows_of_a_table_have_the_same_columns() -> None:
    with pytest.raises(ValueError, match=r"expected the columns \['a'\] in every row, got \['b'\]"):
        Table.of("t", [{"a": "1"}, {"b": "2"}])


def test_a_killed_study_resumes_to_the_same_results(command: Call, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(
        'denoisers = ["sudoku-4x4-imperfect"]\nschedulers = ["random", "confidence", "margin", "sas"]\n'
        '[sets]\ngenerated = 12\nclues = "4-8"\nsize = 4\n'
    )
    words = ("study", "sudoku", "--preset", "small.toml", "--out")
    killed = fork_command(tmp_path, *words, "broken")
    pieces = tmp_path / "broken" / "pieces"
    assert killed.until(lambda: any(pieces.glob("*.json"))), killed.communicate()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    for name in ("broken", "whole"):
        code, out, err = command(*words, name, "--resume")
        assert code == 0, err
    solved = []
    for name in ("broken", "whole"):
        study = json.loads((tmp_path / name / "study.json").read_text())
        solved.append([(row["scheduler"], row["solved"]) for row in study["evaluations"][0]["rows"]])
        assert study["figures"] == ["schedulers.svg"] and (tmp_path / name / "schedulers.pdf").stat().st_size > 1000
    assert solved[0] == solved[1]
    assert "4 of 4" in out and "against confidence" in out


# The catalogue and the command.


def test_every_study_is_listed_with_its_time() -> None:
    entries = list_studies().values()
    assert all(entry.description and entry.minutes >= 1 and 0 < entry.quick_minutes <= 2 for entry in entries)
    assert all(load_study(entry.name) != load_study(entry.name, quick=True) for entry in entries)
    assert load_study("quality").samples == tuple(sorted(load_study("quality").samples))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sudoko",), "did you mean 'sudoku'"),
        (("sudoku", "--runs", "."), "has no option --runs"),
        (("four-by-four", "--limit", "3"), "has its own puzzles"),
        (("sudoku", "--data", "missing.csv"), "there is none at missing.csv"),
        (("sudoku", "--no-generated"), "there are no problems"),
        (("sudoku", "--limit", "0"), "expected some problems"),
        (("sudoku", "--quick", "--preset", "own.toml"), "has no table [quick]"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from unmask.cli import main as cli

    (tmp_path / "own.toml").write_text('baseline = "margin"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["unmask", "study", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert captured.err.count("\n") == 1 and message in captured.err


def test_without_a_name_the_command_lists_the_studies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from unmask.cli import main as cli

    monkeypatch.setattr(sys, "argv", ["unmask", "study"])
    cli.main()
    out = capsys.readouterr().out
    assert all(name in out for name in list_studies())


def test_an_own_preset_extends_the_study_s(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('extends = "sudoku-4x4"\nbaseline = "margin"\n[sets]\nlimit = 5\n')
    study, usual = load_study("sudoku-4x4", preset=tmp_path / "own.toml"), load_study("sudoku-4x4")
    assert study == replace(usual, baseline="margin", sets=replace(usual.sets, limit=5))
    assert load_study("sudoku-4x4", True, tmp_path / "own.toml").denoisers == ("sudoku-4x4-imperfect",)
