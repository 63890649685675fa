"""What an order looks like (fig:sudoku_heatmap): a board coloured by step, the mean over many, and what is revealed when.

The class of a reveal is the easiest technique that places its cell in the state it was revealed in, the model's own digits
included. "Not yet" is a cell that no technique places: the order reveals it before a human could.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from unmask.evaluation.statistics import Interval, mean_interval, wilson
from unmask.report.numbers import percent_interval
from unmask.tasks.sudoku.grid import grid
from unmask.tasks.sudoku.task import SudokuTask
from unmask.tasks.sudoku.techniques import FALLBACK, cell_classes
from unmask_studies.sets import Decoded, Sets, decoded_of, decodings, piece_name
from unmask_studies.study import Findings, Piece, Table
from unmask_studies.sudoku.failures import first_wrong
from unmask_studies.sudoku.orders import label

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
class HeatMap:
    """``case`` is the puzzle that is drawn; None takes the first that ``baseline`` fails and the last of the orders solves."""

    minutes: float = 0.0
    denoiser: str = "sudoku-9x9-imperfect"
    orders: tuple[str, ...] = ("confidence", "expert", "sas")
    baseline: str = "confidence"
    sets: Sets = field(default_factory=Sets)
    data: tuple[Path, ...] = ()
    case: int | None = None
    seed: int = 0

    def pieces(self, folder: Path) -> list[Piece]:
        return decodings(self.denoiser, self.orders, self.sets.named(self.data), self.seed)

    def findings(self, results: Mapping[str, Any]) -> Findings:
        tables, figures = [], {}
        for nth, (name, problems) in enumerate(self.sets.named(self.data).items(), 1):
            there = problems()
            found = {order: decoded_of(results[piece_name(self.denoiser, name, order)]) for order in self.orders}
            tables.append(self._table(there, found))
            figures |= {f"{key}-{nth}": drawn for key, drawn in self._figures(there, found).items()}
        return Findings(tables, figures)

    def _figures(self, problems: SudokuTask, found: Mapping[str, Decoded]) -> dict[str, Any]:
        from unmask.report import figures as drawing

        shape = grid(problems.size)
        box = (shape.box_rows, shape.box_cols)
        case = self._telling(problems, found) if self.case is None else self.case
        if not 0 <= case < len(problems):
            raise ValueError(f"case must be a puzzle from 0 to {len(problems) - 1}, got {case}")
        truth = problems.solutions[case].astype(np.int64)
        one = {label(order): (places(some)[case], some.tokens[case], truth) for order, some in found.items()}
        mean = {label(order): (mean_place(some), None, None) for order, some in found.items()}
        return {"board": drawing.boards(one, box), "mean": drawing.boards(mean, box)}

    def _telling(self, problems: SudokuTask, found: Mapping[str, Decoded]) -> int:
        truth = problems.solutions.astype(np.int64)
        last = found[self.orders[-1]]
        base = found.get(self.baseline, last)
        only = (first_wrong(base, truth) >= 0) & (first_wrong(last, truth) < 0)
        return int(only.argmax())

    def _table(self, problems: SudokuTask, found: Mapping[str, Decoded]) -> Table:
        begins = (cell_classes(problems.puzzles) == 0).any(1)
        rows = []
        for order, some in found.items():
            kinds = [
                reveal_classes(puzzle, tokens, cells[cells >= 0])
                for puzzle, tokens, cells in zip(problems.puzzles, some.tokens, some.order, strict=True)
            ]
            naked = sum(1 for kind, begin in zip(kinds, begins, strict=True) if begin and kind[0] == 0)
            shares = np.array([[kind.count(nth) / max(1, len(kind)) for nth in range(len(KINDS))] for kind in kinds])
            rows.append(
                [
                    label(order),
                    percent_interval(naked / begins.sum(), *wilson(naked, int(begins.sum()))) if begins.any() else "",
                    *(_limits(mean_interval(column)) for column in shares.T),
                ]
            )
        columns = ["order", "first reveal is a naked single, %", *(f"{kind}, % of reveals" for kind in KINDS)]
        title = f"what is revealed when, {self.denoiser} on {problems.source}, n = {len(problems):,}, seed {self.seed}"
        note = (
            f"The first column is over the {begins.sum():,} puzzles that begin with a naked single (the paper shows one such "
            "puzzle). Harder: placed by pairs, triples, locked candidates, wings or rectangles. Not yet: by no technique here."
        )
        return Table(title, columns, rows, note)


def places(found: Decoded) -> Float[np.ndarray, "N L"]:
    """The place of each cell in its puzzle's order, from 0 (first) to 1 (last); NaN where it was given."""
    rank = found.ranks()
    return np.where(rank >= 0, rank / np.maximum(rank.max(1, keepdims=True), 1), np.nan)


def mean_place(found: Decoded) -> Float[np.ndarray, "L"]:
    """Over the puzzles in which the cell was hidden; NaN where it never was."""
    place = places(found)
    known = (~np.isnan(place)).sum(0)
    return np.where(known > 0, np.nansum(place, axis=0) / np.maximum(known, 1), np.nan)


def _limits(interval: Interval) -> str:
    return f"{100 * interval.mean:.1f} [{100 * max(0.0, interval.low):.1f}, {100 * min(1.0, interval.high):.1f}]"
