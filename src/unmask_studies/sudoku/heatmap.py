"""What an order looks like (fig:sudoku_heatmap): a board coloured by step, the mean over many, and what is revealed when.

The class of a reveal is the easiest technique that places its cell in the state it was revealed in, the model's own digits
included. "Not yet" is a cell that no technique places: the order reveals it before a human could.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from unmask.evaluation.statistics import Interval, mean_interval
from unmask.report import figures
from unmask.report.numbers import percent_interval
from unmask.tasks.sudoku.grid import grid
from unmask.tasks.sudoku.task import SudokuTask
from unmask.tasks.sudoku.techniques import FALLBACK, cell_classes
from unmask_studies.sets import Decoded
from unmask_studies.study import Findings, Results
from unmask_studies.sudoku.failures import first_wrong
from unmask_studies.sudoku.grids import DecodingStudy
from unmask_studies.tables import Table, TableRow, count_limits, label

KINDS = ("naked single", "hidden single", "harder", "not yet")


def reveal_classes(
    puzzle: Int[np.ndarray, "L"], tokens: Int[np.ndarray, "L"], order: Int[np.ndarray, "n"]
) -> list[int]:
    """An index into ``KINDS`` for each reveal, in its order."""
    states = np.repeat(puzzle[None], len(order), axis=0).astype(np.int8)
    for t in range(len(order) - 1):
        states[t + 1 :, order[t]] = tokens[order[t]]
    classes = cell_classes(states)[np.arange(len(order)), order] if len(order) else np.empty(0, int)
    return np.select([classes <= 1, classes < FALLBACK], [classes, 2], 3).tolist()


@dataclass(frozen=True)
class HeatMap(DecodingStudy):
    """``case`` is the puzzle to draw; None takes the first that ``baseline`` fails and the last of the schedulers solves."""

    schedulers: tuple[str, ...] = ("confidence", "expert", "sas")
    case: int | None = None

    def findings(self, results: Results) -> Findings:
        tables, plots = [], {}
        for nth, (name, problems) in enumerate(self.problems.items(), 1):
            task, found = problems.load(), self.decodings(results, name)
            tables.append(self._table(task, found))
            plots |= {f"{key}-{nth}": plot for key, plot in self._plots(task, found).items()}
        return Findings(tables, plots)

    def _plots(self, problems: SudokuTask, found: Mapping[str, Decoded]) -> dict[str, Any]:
        shape = grid(problems.size)
        box = (shape.box_rows, shape.box_cols)
        case = self._find_case(problems, found) if self.case is None else self.case
        if not 0 <= case < len(problems):
            raise ValueError(f"case must be a puzzle from 0 to {len(problems) - 1}, got {case}")
        truth = problems.solutions[case].astype(np.int64)
        one = {label(name): (places(some)[case], some.tokens[case], truth) for name, some in found.items()}
        mean = {label(name): (mean_place(some), None, None) for name, some in found.items()}
        return {"board": figures.boards(one, box), "mean": figures.boards(mean, box)}

    def _find_case(self, problems: SudokuTask, found: Mapping[str, Decoded]) -> int:
        truth = problems.solutions.astype(np.int64)
        last = found[self.schedulers[-1]]
        base = found.get(self.baseline, last)
        return int(((first_wrong(base, truth) >= 0) & (first_wrong(last, truth) < 0)).argmax())

    def _table(self, problems: SudokuTask, found: Mapping[str, Decoded]) -> Table:
        begins = (cell_classes(problems.puzzles) == 0).any(1)
        rows: list[TableRow] = []
        for scheduler, some in found.items():
            kinds = [
                reveal_classes(puzzle, tokens, cells[cells >= 0])
                for puzzle, tokens, cells in zip(problems.puzzles, some.tokens, some.order, strict=True)
            ]
            naked = sum(1 for kind, begin in zip(kinds, begins, strict=True) if begin and kind[0] == 0)
            shares = np.array([[kind.count(nth) / max(1, len(kind)) for nth in range(len(KINDS))] for kind in kinds])
            first = percent_interval(*count_limits(naked, int(begins.sum()))) if begins.any() else ""
            columns = {f"{kind}, % of reveals": _mean(share) for kind, share in zip(KINDS, shares.T, strict=True)}
            rows.append({"scheduler": label(scheduler), "first reveal is a naked single, %": first, **columns})
        title = f"what is revealed when, {self.denoiser} on {problems.source}, n = {len(problems):,}, seed {self.seed}"
        note = (
            f"The first column is over the {begins.sum():,} puzzles that begin with a naked single (the paper shows one such "
            "puzzle). Harder: placed by pairs, triples, locked candidates, wings or rectangles. Not yet: by no technique here."
        )
        return Table.of(title, rows, note)


def places(found: Decoded) -> Float[np.ndarray, "N L"]:
    """The place of each cell in its puzzle's order, from 0 (first) to 1 (last); NaN where it was given."""
    rank = found.ranks()
    return np.where(rank >= 0, rank / np.maximum(rank.max(1, keepdims=True), 1), np.nan)


def mean_place(found: Decoded) -> Float[np.ndarray, "L"]:
    """Over the puzzles in which the cell was hidden; NaN where it never was."""
    place = places(found)
    known = (~np.isnan(place)).sum(0)
    return np.where(known > 0, np.nansum(place, axis=0) / np.maximum(known, 1), np.nan)


def _mean(shares: Float[np.ndarray, "N"]) -> str:
    found: Interval = mean_interval(shares)
    return percent_interval(found.mean, max(0.0, found.low), min(1.0, found.high))
