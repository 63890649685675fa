"""When an order first goes wrong (fig:failure_distributions): the first reveal that is not the truth, along a free decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from unmask.evaluation.statistics import wilson
from unmask_studies.sets import Decoded, Sets, decoded_of, decodings, piece_name
from unmask_studies.study import Findings, Piece, Table
from unmask_studies.sudoku.orders import label

ENDS = 5
"""How many reveals are the beginning, and how many the end."""


def first_wrong(found: Decoded, solutions: Int[np.ndarray, "N L"]) -> Int[np.ndarray, "N"]:
    """The place in the order of the first reveal that is not the truth, from 0; −1 where there is none."""
    cells = np.maximum(found.order, 0)
    wrong = np.take_along_axis(found.tokens != solutions, cells, axis=1) & (found.order >= 0)
    return np.where(wrong.any(1), wrong.argmax(1), -1)


@dataclass(frozen=True)
class Failures:
    minutes: float = 0.0
    denoiser: str = "sudoku-9x9-imperfect"
    orders: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "expert", "sas")
    sets: Sets = field(default_factory=Sets)
    data: tuple[Path, ...] = ()
    seed: int = 0

    def pieces(self, folder: Path) -> list[Piece]:
        return decodings(self.denoiser, self.orders, self.sets.named(self.data), self.seed)

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        tables, figures = [], {}
        for nth, (name, problems) in enumerate(self.sets.named(self.data).items(), 1):
            there = problems()
            first = {
                label(order): first_wrong(
                    decoded_of(results[piece_name(self.denoiser, name, order)]), there.solutions.astype(np.int64)
                )
                for order in self.orders
            }
            blanks = (there.puzzles == 0).sum(1)
            tables.append(self._table(there.source, first, blanks))
            places = {order: (at / np.maximum(blanks, 1))[at >= 0].tolist() for order, at in first.items()}
            figures[f"failures-{nth}"] = drawing.histograms(places, len(there))
        return Findings(tables, figures)

    def _table(self, source: str, found: Mapping[str, Int[np.ndarray, "N"]], blanks: Int[np.ndarray, "N"]) -> Table:
        rows = []
        for order, first in found.items():
            fails = first >= 0
            n, at, left = int(fails.sum()), first[fails], (blanks - first)[fails]
            quartiles = np.quantile(at / blanks[fails], [0.25, 0.5, 0.75]) if n else np.full(3, np.nan)
            rows.append(
                [
                    order,
                    _share(n, len(first)),
                    "" if not n else "{:.0f} % [{:.0f}, {:.0f}]".format(*(100 * quartiles[[1, 0, 2]])),
                    "" if not n else f"{np.median(at) + 1:.0f}",
                    _share(int((at < ENDS).sum()), n),
                    _share(int((left <= ENDS).sum()), n),
                ]
            )
        columns = [
            "order",
            "fails, %",
            "place in the order, median [quartiles]",
            "step, median",
            f"in the first {ENDS} reveals, %",
            f"in the last {ENDS}, %",
        ]
        title = f"the first wrong reveal, {self.denoiser} on {source}, n = {len(blanks):,}, seed {self.seed}"
        note = (
            "The last two columns are shares of the failures, with Wilson's interval. The paper shows histograms without numbers: "
            "a random order fails early, heuristics in the last steps."
        )
        return Table(title, columns, rows, note)


def _share(count: int, n: int) -> str:
    if n == 0:
        return ""
    low, high = wilson(count, n)
    return f"{100 * count / n:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
