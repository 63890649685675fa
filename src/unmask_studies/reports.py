"""Evaluations of one scheduler each, as JSON, and several of them joined into a paired comparison. ``N`` problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Scheduler, Task
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import EvaluationOptions, Report, Row, Versus, evaluate
from unmask.evaluation.statistics import Interval, paired_bootstrap
from unmask.report.gather import report_from_json
from unmask.report.tables import is_oracle
from unmask.runs.jsonable import to_jsonable
from unmask.tasks.sudoku.task import SudokuTask

BATCH = 64
get_denoiser = cache(load_denoiser)
"""A denoiser by its name or folder, loaded once."""


def evaluate_scheduler(
    problems: Task,
    denoiser: str,
    scheduler: tuple[str, Scheduler],
    seed: int,
    decoding: Decoding = Decoding(),  # noqa: B008
) -> dict[str, Any]:
    """One scheduler, with its name, on all problems: the JSON of an evaluation of one row."""
    model = get_denoiser(denoiser)
    if isinstance(problems, SudokuTask):
        require_fit(model, denoiser, problems)
    report = evaluate(
        problems,
        model,
        dict([scheduler]),
        {"sequential": decoding},
        EvaluationOptions(denoiser, batch=BATCH, seed=seed, likelihood=False),
    )
    return to_jsonable(report, finite="null")


def require_fit(model: Any, denoiser: str, problems: SudokuTask) -> None:
    cells = problems.puzzles.shape[1]
    if model.config.max_length != cells:
        raise ValueError(f"{denoiser} fills boards of {model.config.max_length} cells, {problems.source} has {cells}")


def join_reports(results: Sequence[Any], baseline: str) -> Report:
    """Evaluations of one row each, on the same problems, as one report; every row is compared with the baseline's, paired."""
    reports = [report_from_json(result) for result in results]
    first = reports[0]
    for report in reports:
        if (report.n, report.source, report.seed) != (first.n, first.source, first.seed):
            raise ValueError(f"expected the same problems, got {first.source} and {report.source}")
    rows = [report.rows[0] for report in reports]
    base = next((row for row in rows if row.scheduler == baseline), None)
    return replace(first, rows=[row if base in (None, row) else compare_rows(row, base) for row in rows])


def compare_rows(row: Row, base: Row) -> Row:
    """The row, compared with a baseline on the same problems."""
    return replace(row, versus=Versus.of(base.scheduler, row.marks, base.marks))


def difference(row: Row, other: Row) -> Interval:
    """Of the shares solved, paired."""
    return paired_bootstrap(row.marks, other.marks)


def find_leader(report: Report) -> str | None:
    """The scheduler, if there is one, that beats every other one without the truth: all paired intervals exclude 0."""
    fair = [row for row in report.rows if not is_oracle(row.scheduler)]
    best = max(fair, key=lambda row: row.exact, default=None)
    if best is None or len(fair) < 2:
        return None
    return best.scheduler if all(difference(best, row).low > 0 for row in fair if row is not best) else None
