"""The study of revisions: every rule is compared with the same scheduler without one, on each denoiser's own problems."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.studies import run, text
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import EvaluationOptions, evaluate
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask
from unmask_studies.revisions import Revisions
from unmask_studies.sets import OtherSet, Sets

pytestmark = pytest.mark.usefixtures("unchecked")

SMALL = Revisions(
    rules=("none", "t2m:p=0.5", "remdm_cap:eta=0.2", "doubt"),
    easy="sudoku-4x4-imperfect",
    hard="sudoku-4x4",
    text="",
    few="4-5",
    sets=Sets(generated=8, clues="4-6", size=4, limit=3),
)


def test_the_table_holds_what_evaluate_measures(tmp_path: Path) -> None:
    found = run(SMALL, tmp_path / "study")
    report, hard = found.evaluations
    assert (report.n, report.denoiser, hard.n, hard.denoiser) == (8, "sudoku-4x4-imperfect", 3, "sudoku-4x4")
    name = "sudoku-4x4-imperfect"
    task, denoiser = SudokuTask.generate(8, 4, "4-6", "test", 0), load_denoiser(name)
    decodings = {"none": Decoding(), "remdm_cap:eta=0.2": Decoding(revision="remdm_cap:eta=0.2")}
    for scheduler in ("confidence", "sas"):
        loaded = {scheduler: load_scheduler(scheduler, denoiser, name)}
        expected = evaluate(task, denoiser, loaded, decodings, EvaluationOptions(likelihood=False))
        for theirs in expected.rows:
            mine = report.row(scheduler, theirs.decoding)
            assert (mine.solved, mine.denoiser_calls) == (theirs.solved, theirs.denoiser_calls)
    # No head ships for these boards, so that three rules remain.
    assert [text(row[1]) for row in found.tables[0].rows] == ["none", "t2m:p=0.5", "remdm_cap:eta=0.2"] * 2
    assert [text(row[3]) == "" for row in found.tables[0].rows] == [True, False, False] * 2
    versus = report.row("sas", "t2m:p=0.5").versus
    assert versus is not None and versus.baseline == "sas"


def test_each_denoiser_has_its_own_problems() -> None:
    other = OtherSet("sudoku-4x4-imperfect", "sudoku", limit=2)
    found = replace(SMALL, easy="", other=other).problems
    assert list(found) == [("sudoku-4x4", "generated, 4-5"), ("sudoku-4x4-imperfect", "sudoku")]
    assert found["sudoku-4x4-imperfect", "sudoku"] is other and len(other.load()) == 2
    assert list(replace(SMALL, hard="").problems) == [("sudoku-4x4-imperfect", "generated, 4-6")]


def test_rules_are_compared_with_none() -> None:
    with pytest.raises(ValueError, match="compared with 'none', which must be among them, got t2m"):
        Revisions(rules=("t2m",))
    assert "doubt" in Revisions().rules_for("sudoku-9x9-imperfect")
    assert Revisions(rules=("none", "doubt", "doubt:head=runs/doubt")).rules_for("arithmetic")[1:] == (
        "doubt:head=runs/doubt",
    )
