"""The study of paces: what it measures is what evaluate measures, and the frontier is what nothing cheaper reaches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.studies import run, text
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import EvaluationOptions, evaluate
from unmask.schedulers.loading import list_heads, load_scheduler
from unmask.tasks.kinds import EvaluationRequest, evaluation_set
from unmask.tasks.sudoku.task import SudokuTask
from unmask_studies.paces import Paces
from unmask_studies.sets import OtherSet, ProblemSet, Sets

pytestmark = pytest.mark.usefixtures("unchecked")

NAME = "sudoku-4x4-imperfect"
SMALL = Paces(
    paces=("learned:p=0.9", "threshold:p=0.6"),
    budgets=(4,),
    boards=NAME,
    text="",
    sets=Sets(generated=8, clues="4-6", size=4),
)


def test_the_table_holds_what_evaluate_measures(tmp_path: Path) -> None:
    found = run(SMALL, tmp_path / "study")
    (report,) = found.evaluations
    task, denoiser = SudokuTask.generate(8, 4, "4-6", "test", 0), load_denoiser(NAME)
    # No head ships for these boards, so that three rules remain.
    decodings = {"top": Decoding(), "4 steps": Decoding(steps=4), "threshold:p=0.6": Decoding(pace="threshold:p=0.6")}
    assert list(SMALL.rules_for(NAME)) == list(decodings)
    for scheduler in SMALL.schedulers:
        loaded = {scheduler: load_scheduler(scheduler, denoiser, NAME)}
        for theirs in evaluate(task, denoiser, loaded, decodings, EvaluationOptions(likelihood=False)).rows:
            mine = report.row(scheduler, theirs.decoding)
            assert (mine.solved, mine.denoiser_calls) == (theirs.solved, theirs.denoiser_calls)


def test_the_frontier_is_what_nothing_cheaper_reaches(tmp_path: Path) -> None:
    found = run(SMALL, tmp_path / "study")
    (report,), (table,) = found.evaluations, found.tables
    rows = sorted(report.rows, key=lambda row: row.denoiser_calls)
    for row, line in zip(rows, table.rows, strict=True):
        cells = dict(zip(table.columns, map(text, line), strict=True))
        cheaper = [other.exact for other in rows if other is not row and other.denoiser_calls <= row.denoiser_calls]
        assert cells["how many per step"] == row.decoding
        assert (cells["on the frontier"] == "yes") == (row.exact > max(cheaper, default=-1.0))


def test_boards_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "boards.csv"
    boards = ("0234341221434321", "1034341221434321", "1204341221434321")
    file.write_text("puzzle,solution\n" + "".join(f"{board},1234341221434321\n" for board in boards))
    (found,) = replace(SMALL, data=file, sets=Sets(limit=2)).problems.values()
    assert isinstance(found, ProblemSet)
    assert (found.load().source, len(found.load())) == ("boards.csv", 2)


def test_another_task_is_measured_as_evaluate_does(tmp_path: Path) -> None:
    other = OtherSet("sudoku-4x4", "sudoku", limit=4, seed=3)
    found = run(replace(SMALL, boards="", schedulers=("confidence",), other=other), tmp_path / "study")
    (report,) = found.evaluations
    problems = evaluation_set("sudoku", "sudoku-4x4", EvaluationRequest(limit=4, seed=3))
    loaded = {"confidence": load_scheduler("confidence")}
    decodings = {"threshold:p=0.6": Decoding(pace="threshold:p=0.6")}
    (theirs,) = evaluate(problems.task, problems.denoiser, loaded, decodings).rows
    mine = report.row("confidence", "threshold:p=0.6")
    assert (report.n, mine.solved, mine.denoiser_calls) == (4, theirs.solved, theirs.denoiser_calls)


@pytest.mark.parametrize("denoiser", list_heads("pace"))
def test_a_learned_pace_is_measured_where_its_head_ships(denoiser: str) -> None:
    assert "learned:p=0.99" in Paces().rules_for(denoiser)
    assert not any(rule.startswith("learned") for rule in SMALL.rules_for(NAME))
