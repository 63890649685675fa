"""Studies: pieces survive being killed, tables hold what was measured, τ is what its definition says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import evaluate
from unmask.report import page
from unmask.runs.presets import load_preset
from unmask.runs.run import Run
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku import expert_order
from unmask.tasks.sudoku.task import SudokuTask
from unmask.tasks.sudoku.techniques import FALLBACK, cell_classes
from unmask.training.policy.run import PolicyRun
from unmask_studies import trained as trained_runs
from unmask_studies.catalogue import STUDIES, entries, load_study
from unmask_studies.sets import Decoded, Sets, ahead, decoded, joined
from unmask_studies.study import Cell, Findings, Piece, Table, conclude, markdown, run_study
from unmask_studies.sudoku.ablations import Ablations
from unmask_studies.sudoku.cross_scale import transferred
from unmask_studies.sudoku.failures import first_wrong
from unmask_studies.sudoku.heatmap import KINDS, mean_place, reveal_classes
from unmask_studies.sudoku.orders import Orders
from unmask_studies.sudoku.tau import READINGS, expert_pairs, relevant_pairs, tau_eq, taus
from unmask_studies.sudoku.training import Training

SMALL = Orders(
    denoisers=("sudoku-4x4-imperfect",),
    orders=("random", "confidence", "sas", "gt_logp"),
    sets=Sets(generated=12, clues="4-8", size=4, limit=12),
)


@dataclass(frozen=True)
class Counted:
    """A study of three numbers that writes down when it computes one, and stops at ``stop_at``."""

    log: Path
    stop_at: int = -1
    keyed: bool = False
    minutes: float = 1.0

    def pieces(self, folder: Path) -> list[Piece]:
        def compute(n: int) -> Mapping[str, Any]:
            if n == self.stop_at:
                raise KeyboardInterrupt
            with open(self.log, "a") as file:
                file.write(f"{n}\n")
            return {"square": n * n}

        return [Piece(f"number {n}", lambda n=n: compute(n), {"n": n} if self.keyed else None) for n in range(3)]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        rows = [[name, Cell(str(result["square"]), result["square"] > 1)] for name, result in results.items()]
        return Findings([Table("squares", ["n", "n²"], rows, "of small numbers")])


def run(study: Any, folder: Path, **options: Any) -> Findings:
    names = [done.name for done in run_study(study, folder, **options)]
    return conclude(study, folder, names, "a study", "unmask study")


def test_what_is_complete_is_not_computed_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    stopped = Counted(log)
    with pytest.raises(KeyboardInterrupt):
        for done in run_study(stopped, tmp_path / "study"):
            if done.nth == 2:
                raise KeyboardInterrupt
    with pytest.raises(ValueError, match="resume"):
        list(run_study(stopped, tmp_path / "study"))
    with pytest.raises(ValueError, match="another configuration: keyed"):
        list(run_study(replace(stopped, keyed=True), tmp_path / "study", resume=True))
    estimated = replace(stopped, minutes=2.0)
    seconds = [done.seconds for done in run_study(estimated, tmp_path / "study", resume=True)]
    assert seconds[:2] == [None, None] and seconds[2] is not None
    assert log.read_text().split() == ["0", "1", "2"]


def test_a_piece_that_stops_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        list(run_study(Counted(tmp_path / "log", stop_at=1), tmp_path / "study"))
    assert [path.name for path in (tmp_path / "study" / "pieces").iterdir()] == ["number_0.json"]
    with pytest.raises(ValueError, match="another configuration"):
        list(run_study(Counted(tmp_path / "log"), tmp_path / "study", resume=True))


def test_damage_and_gaps_are_said(tmp_path: Path) -> None:
    study, folder = Counted(tmp_path / "log"), tmp_path / "study"
    names = [done.name for done in run_study(study, folder)]
    (folder / "pieces" / "number_1.json").write_text('{"piece": "number 1"')
    with pytest.raises(ValueError, match=r"number_1\.json is damaged: delete it"):
        conclude(study, folder, names, "x", "y")
    (folder / "pieces" / "number_1.json").unlink()
    with pytest.raises(ValueError, match="lacks the piece 'number 1'"):
        conclude(study, folder, names, "x", "y")
    run(study, folder, resume=True)
    written = json.loads((folder / "study.json").read_text())
    assert [row[1]["text"] for row in written["tables"][0]["rows"]] == ["0", "1", "4"]
    assert (folder / "tables.md").read_text().endswith("| number 2 | **4** |\n\nof small numbers\n")


def test_another_study_s_measurements_are_taken_over_only_where_they_are_the_same(tmp_path: Path) -> None:
    run(Counted(tmp_path / "first", keyed=True), tmp_path / "a")
    run(Counted(tmp_path / "second", keyed=True), tmp_path / "b", reuse=[tmp_path / "a"])
    assert not (tmp_path / "second").exists()
    run(Counted(tmp_path / "third", keyed=False), tmp_path / "c", reuse=[tmp_path / "a"])
    assert len((tmp_path / "third").read_text().split()) == 3
    with pytest.raises(ValueError, match="expected a study's folder"):
        list(run_study(Counted(tmp_path / "log"), tmp_path / "d", reuse=[tmp_path]))


def test_a_killed_study_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(
        'denoisers = ["sudoku-4x4-imperfect"]\norders = ["random", "confidence", "margin", "sas"]\n'
        '[sets]\ngenerated = 40\nclues = "4-8"\nsize = 4\n'
    )
    words = [sys.executable, "-m", "unmask", "study", "sudoku", "--preset", "small.toml", "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    killed = subprocess.Popen(
        [*words, "broken"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    pieces, deadline = tmp_path / "broken" / "pieces", time.monotonic() + 240
    while killed.poll() is None and time.monotonic() < deadline:
        if pieces.is_dir() and any(path.suffix == ".json" for path in pieces.iterdir()):
            killed.send_signal(signal.SIGKILL)
            break
        time.sleep(0.01)
    killed.wait(60)
    for name in ("broken", "whole"):
        done = subprocess.run([*words, name, "--resume"], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    solved = []
    for name in ("broken", "whole"):
        study = json.loads((tmp_path / name / "study.json").read_text())
        solved.append([(row["scheduler"], row["solved"]) for row in study["evaluations"][0]["rows"]])
        assert study["figures"] == ["orders.svg"] and (tmp_path / name / "orders.pdf").stat().st_size > 1000
    assert solved[0] == solved[1]
    assert "4 of 4" in done.stdout and "against confidence" in done.stdout


def test_the_table_holds_what_evaluate_measures(tmp_path: Path) -> None:
    found = run(SMALL, tmp_path / "study")
    task, denoiser = SudokuTask.generated(12, 4, "4-8", "test", 0), load_denoiser("sudoku-4x4-imperfect")
    orders = {name: load_scheduler(name, denoiser, "sudoku-4x4-imperfect") for name in SMALL.orders}
    expected = evaluate(task, denoiser, orders, likelihood=False)
    for mine, theirs in zip(found.evaluations[0].rows, expected.rows, strict=True):
        assert (mine.solved, mine.versus) == (theirs.solved, theirs.versus)
        assert (mine.cell, mine.denoiser_calls) == (theirs.cell, theirs.denoiser_calls)
    table = found.tables[0]
    assert [row[0] for row in table.rows] == ["random", "confidence", "learned (SAS)", "oracle: gt_logp"]
    assert [row[2] for row in table.rows] == ["", "", "95.0", ""]  # of boards of this size
    html = page.render(page.gather([tmp_path / "study"]))
    assert "learned (SAS)" in html and "data:image/svg+xml" in html


def one_row(order: str, solved: str) -> dict[str, Any]:
    task, denoiser = SudokuTask.generated(1, 4, "8", "test", 0), load_denoiser("sudoku-4x4")
    report = evaluate(task, denoiser, {order: load_scheduler("confidence")}, likelihood=False)
    row = replace(report.rows[0], n=len(solved), solved=solved, exact=solved.count("1") / len(solved), versus=None)
    return json.loads(
        json.dumps({**vars(report), "n": len(solved), "rows": [vars(row)]}, default=vars).replace("NaN", "null")
    )


def test_bold_needs_the_paired_interval() -> None:
    clear = joined([one_row("confidence", "0" * 40 + "1" * 40), one_row("margin", "1" * 70 + "0" * 10)], "confidence")
    assert ahead(clear) == {"margin"}
    close = joined([one_row("confidence", "01" * 40), one_row("margin", "01" * 39 + "11")], "confidence")
    assert ahead(close) == set()
    oracle = joined(
        [one_row("confidence", "0" * 80), one_row("gt_logp", "1" * 80), one_row("margin", "0" * 80)], "margin"
    )
    assert ahead(oracle) == set()
    versus = oracle.row("gt_logp").versus
    assert versus is not None and versus.won == 80


# Kendall's τ.


def slow_tau(puzzle: np.ndarray, solution: np.ndarray, rank: np.ndarray, reading: str) -> float:
    """The definition, pair by pair, one board at a time."""
    order = [int(cell) for cell in expert_order(puzzle[None], solution[None]).order[0] if cell >= 0]
    board, concordant, discordant = puzzle.copy(), 0, 0
    for t, now in enumerate(order):
        classes = cell_classes(board)
        for later in order[t + 1 :]:
            if classes[later] == classes[now]:
                continue
            if reading == "hierarchy" and classes[later] == FALLBACK:
                continue
            concordant += rank[now] < rank[later]
            discordant += rank[now] > rank[later]
        board[now] = solution[now]
    pairs = concordant + discordant
    return (concordant - discordant) / pairs if pairs else float("nan")


@pytest.fixture(scope="module")
def nine() -> SudokuTask:
    return SudokuTask.generated(6, clues="24-30")


@pytest.mark.parametrize("reading", READINGS)
def test_tau_is_its_definition(nine: SudokuTask, reading: str) -> None:
    rng = np.random.default_rng(0)
    ranks = np.stack([rng.permutation(81) for _ in range(len(nine))])
    expected = [slow_tau(p, s, r, reading) for p, s, r in zip(nine.puzzles, nine.solutions, ranks, strict=True)]
    np.testing.assert_allclose(taus(nine, ranks)[reading], expected)
    assert len(set(np.round(expected, 6))) > 3


def test_the_expert_agrees_with_itself_and_not_with_its_reverse(nine: SudokuTask) -> None:
    forth = np.zeros((len(nine), 81), int)
    for row, pairs in enumerate(expert_pairs(nine)):
        forth[row, pairs.order] = np.arange(len(pairs.order))
    for reading in READINGS:
        assert set(taus(nine, forth)[reading]) == {1.0}
        assert set(taus(nine, -forth)[reading]) == {-1.0}


def test_equivalent_moves_may_change_places(nine: SudokuTask) -> None:
    pairs = expert_pairs(nine)[0]
    n = len(pairs.order)
    t = next(t for t in range(n - 1) if not pairs.literal[t, t + 1])
    rank = np.zeros(81, int)
    rank[pairs.order] = np.arange(n)
    rank[pairs.order[[t, t + 1]]] = rank[pairs.order[[t + 1, t]]]
    assert tau_eq(rank, pairs.order, pairs.literal) == 1.0
    t = next(t for t in range(n - 1) if pairs.literal[t, t + 1])
    rank[pairs.order] = np.arange(n)
    rank[pairs.order[[t, t + 1]]] = rank[pairs.order[[t + 1, t]]]
    assert tau_eq(rank, pairs.order, pairs.literal) < 1.0


def test_tau_is_undefined_where_all_moves_are_equivalent() -> None:
    task = SudokuTask.generated(1, 4, "8", "test", 3)
    puzzle = task.solutions[0].copy()
    puzzle[:2] = 0  # two naked singles
    pairs = relevant_pairs(puzzle, task.solutions[0], np.array([0, 1]))
    assert not pairs.literal.any()
    assert np.isnan(tau_eq(np.arange(16), pairs.order, pairs.literal))


def test_what_the_paper_reports_of_tau_contradicts_itself() -> None:
    from unmask_studies.paper_numbers import TAU

    mean, positive, high = TAU["sas"]
    assert mean > high * 1.0 + (positive - high) * 0.5


# Failures and heat maps.


def test_the_first_wrong_reveal() -> None:
    solutions = np.array([[1, 2, 3, 4]] * 3)
    order = np.array([[3, 1, 0], [2, 0, -1], [0, 1, 2]])
    tokens = np.array([[9, 9, 3, 4], [1, 2, 3, 4], [1, 2, 9, 4]])
    assert first_wrong(Decoded(order, tokens), solutions).tolist() == [1, -1, 2]


def test_decodings_are_those_of_evaluate() -> None:
    task, name = SudokuTask.generated(10, 4, "4-6", "test", 1), "sudoku-4x4-imperfect"
    found = decoded(task, name, "random", seed=3)
    denoiser = load_denoiser(name)
    report = evaluate(task, denoiser, {"random": load_scheduler("random")}, seed=3, likelihood=False)
    assert "".join(str(int(right)) for right in (found.tokens == task.solutions).all(1)) == report.rows[0].solved
    failed = first_wrong(found, task.solutions.astype(np.int64)) >= 0
    assert (failed == ~(found.tokens == task.solutions).all(1)).all() and failed.any()
    ranks = found.ranks()
    assert ((ranks >= 0) == (task.puzzles == 0)).all()


def test_a_mean_place_is_over_the_puzzles_that_hide_the_cell() -> None:
    found = Decoded(np.array([[0, 1, 2], [2, 0, -1]]), np.ones((2, 4), int))
    np.testing.assert_array_equal(mean_place(found), [0.5, 0.5, 0.5, np.nan])


def test_classes_of_reveals() -> None:
    task = SudokuTask.generated(1, clues="rao", seed=4)
    order = expert_order(task.puzzles, task.solutions)
    cells = order.order[0][order.order[0] >= 0].astype(int)
    kinds = reveal_classes(task.puzzles[0], task.solutions[0].astype(int), cells)
    assert kinds == [min(int(technique), 2) for technique in order.technique[0][: len(cells)]]
    late = reveal_classes(task.puzzles[0], task.solutions[0].astype(int), cells[::-1])
    assert KINDS[late[0]] != "naked single" and KINDS[late[-1]] == "naked single"


# Runs of trained orders.


def tiny(name: str = "sas-sudoku-4x4-imperfect") -> PolicyRun:
    config = load_preset(name, PolicyRun, "train")
    training = replace(config.training, steps=1, prompts=4, validate=4, validate_every=1, save_every=1)
    return replace(config, data=replace(config.data, puzzles=50), training=training)


def test_ablations_read_finished_runs_and_leave_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    runs = tmp_path / "runs"
    name = "sas-sudoku-4x4-imperfect"
    for seed in ("", "@8"):
        list(trained_runs.run_policy_training(tiny(), runs / f"{name}{seed}"))
    (runs / f"{name}@9").mkdir()
    (runs / f"{name}@9" / "config.json").write_text("{}")  # a training that somebody has just begun
    study = Ablations(
        denoiser="sudoku-4x4-imperfect",
        presets=(name, "sas-sudoku-4x4"),
        baseline=name,
        sets=Sets(generated=12, clues="4-6", size=4),
        runs=runs,
        train=False,
    )
    monkeypatch.setattr(trained_runs, "learn", None)  # nothing may be trained
    found = run(study, tmp_path / "study")
    assert [row[0] for row in found.tables[0].rows] == ["confidence", name]
    assert "Not trained: sas-sudoku-4x4." in found.tables[0].note
    pieces = sorted(path.name for path in (tmp_path / "study" / "pieces").iterdir())
    assert pieces == ["confidence.json", f"{name}.json", f"{name}@8.json"]
    assert sorted(path.name for path in (runs / f"{name}@9").iterdir()) == ["config.json"]


def test_ablations_train_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask_studies.sudoku.ablations.recipe", lambda preset, *_: tiny(preset))
    name = "sas-sudoku-4x4-imperfect"
    sets = Sets(generated=12, clues="4-6", size=4)
    study = Ablations(denoiser="sudoku-4x4-imperfect", presets=(name,), baseline=name, sets=sets)
    run(study, tmp_path / "study")
    assert trained_runs.finished(tmp_path / "study" / "runs" / name)
    past = trained_runs.history(tmp_path / "study" / "runs" / name)
    assert past["steps"] == 1 and past["calls"] > 0 and past["seed"] == tiny().training.seed
    with pytest.raises(ValueError, match="not among the presets"):
        replace(study, baseline="rival-upo")


def test_the_curves_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps, validated at the start and after each; the table's rewards and shares are those of the run's own log."""
    name = "sas-sudoku-4x4-imperfect"

    def two_steps(preset: str, seed: int | None, steps: int, validate: int) -> PolicyRun:
        assert seed is None
        config = tiny(preset)
        return replace(config, training=replace(config.training, steps=steps, validate=validate))

    monkeypatch.setattr("unmask_studies.sudoku.training.recipe", two_steps)
    study = Training(presets=(name,), names=("ours",), steps=2, validate=8, validate_every=1, ends=1, prompts=3)
    found = run(study, tmp_path / "study")
    records = Run(tmp_path / "study" / "runs" / name).metrics()
    (row,) = found.tables[0].rows
    first, last = (f"{records[at]['return']:.2f}".replace("-", "−") for at in (0, 1))
    assert str(row[2]).startswith(first) and str(row[3]).startswith(last) and first != last
    shares = [share for _, share in trained_runs.curve(tmp_path / "study" / "runs" / name)]
    assert len(shares) == 3
    assert [str(cell).split()[0] for cell in row[4:6]] == [f"{100 * share:.1f}" for share in (shares[0], max(shares))]
    assert (row[1], row[6]) == (f"{records[-1]['denoiser_calls']:,}", "8")
    assert (tmp_path / "study" / "training.svg").exists()
    with pytest.raises(ValueError, match="is a training of 2 steps, not of 3"):
        run(replace(study, steps=3, runs=tmp_path / "study" / "runs"), tmp_path / "longer")
    with pytest.raises(ValueError, match=r"ends must be in 1 \.\. 2"):
        replace(study, ends=3)


def test_a_rival_changes_on_another_board_what_it_changes_on_its_own() -> None:
    base, rival = (load_preset(name, PolicyRun, "train") for name in ("ablation-all-action", "rival-upo"))
    small = load_preset("sas-sudoku-4x4-imperfect", PolicyRun, "train")
    moved = transferred(rival, base, small)
    training = moved.training
    assert (training.reward, training.advantage, training.beta, training.group) == ("terminal", "trajectory", 0.01, 6)
    assert (training.steps, training.lr) == (small.training.steps, small.training.lr)
    assert (moved.denoiser, moved.policy, moved.data) == (small.denoiser, small.policy, small.data)


# The catalogue and the command.


def test_every_study_is_listed_with_its_time() -> None:
    assert [entry.name for entry in entries()] == list(STUDIES)
    assert all(entry.description and entry.minutes >= 1 for entry in entries())
    assert all(0 < entry.quick_minutes <= 2 for entry in entries())
    assert load_study("quality").samples == tuple(sorted(load_study("quality").samples))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sudoko",), "did you mean 'sudoku'"),
        (("sudoku", "--runs", "."), "has no use for --runs: training, ablations, cross-scale"),
        (("four-by-four", "--limit", "3"), "has its own puzzles"),
        (("sudoku", "--data", "missing.csv"), "there is none at missing.csv"),
        (("sudoku", "--no-generated"), "there are no problems"),
        (("sudoku", "--limit", "0"), "expected some problems"),
    ],
)
def test_bad_input_is_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from unmask.cli import main as cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["unmask", "study", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert captured.err.count("\n") == 1 and message in captured.err


def test_the_list_is_what_no_name_gives(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    from unmask.cli import main as cli

    monkeypatch.setattr(sys, "argv", ["unmask", "study"])
    cli.main()
    out = capsys.readouterr().out
    assert all(name in out for name in STUDIES)


SHRUNK: dict[str, Any] = {
    "tau": {"denoiser": "sudoku-4x4", "orders": ("random", "confidence"), "draws": 2},
    "failures": {"denoiser": "sudoku-4x4-imperfect", "orders": ("random", "confidence")},
    "heatmap": {"denoiser": "sudoku-4x4-imperfect", "orders": ("random", "confidence")},
    "difficulty": {"denoisers": ("sudoku-4x4-imperfect",), "orders": ("confidence", "sas")},
}


@pytest.mark.parametrize("name", SHRUNK)
def test_studies_of_shipped_orders_in_small(name: str, tmp_path: Path) -> None:
    sets = Sets(generated=10, clues="5-8", size=4, limit=10)
    study = replace(load_study(name, quick=True), sets=sets, **SHRUNK[name])
    found = run(study, tmp_path / "study")
    assert found.tables and found.figures
    for figure in found.figures:
        assert (tmp_path / "study" / f"{figure}.svg").read_text().lstrip().startswith("<?xml")
    assert markdown(found, "unmask").count("| ") > 6
