"""When a decoding first goes wrong (fig:failure_distributions): the first reveal that is not the truth, decoding freely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from unmask.report import figures
from unmask.report.numbers import percent_interval
from unmask_studies.sets import Decoded
from unmask_studies.study import Findings, Results
from unmask_studies.sudoku.grids import DecodingStudy
from unmask_studies.tables import Table, count_limits, label

ENDS = 5
"""How many reveals are the beginning, and how many the end."""


def first_wrong(found: Decoded, solutions: Int[np.ndarray, "N L"]) -> Int[np.ndarray, "N"]:
    """The place in the order of the first reveal that is not the truth, from 0; −1 where there is none."""
    cells = np.maximum(found.order, 0)
    wrong = np.take_along_axis(found.tokens != solutions, cells, axis=1) & (found.order >= 0)
    return np.where(wrong.any(1), wrong.argmax(1), -1)


@dataclass(frozen=True)
class Failures(DecodingStudy):
    def findings(self, results: Results) -> Findings:
        tables, plots = [], {}
        for nth, (name, problems) in enumerate(self.problems.items(), 1):
            task = problems.load()
            solutions, blanks = task.solutions.astype(np.int64), (task.puzzles == 0).sum(1)
            decodings = self.decodings(results, name)
            first = {label(scheduler): first_wrong(found, solutions) for scheduler, found in decodings.items()}
            tables.append(self._table(task.source, first, blanks))
            places = {name: (at / np.maximum(blanks, 1))[at >= 0].tolist() for name, at in first.items()}
            plots[f"failures-{nth}"] = figures.histograms(places, len(task))
        return Findings(tables, plots)

    def _table(self, source: str, found: Mapping[str, Int[np.ndarray, "N"]], blanks: Int[np.ndarray, "N"]) -> Table:
        rows = []
        for name, first in found.items():
            fails = first >= 0
            n, at, left = int(fails.sum()), first[fails], (blanks - first)[fails]
            quartiles = 100 * np.quantile(at / blanks[fails], [0.5, 0.25, 0.75]) if n else ()
            rows.append(
                {
                    "scheduler": name,
                    "fails, %": _share(n, len(first)),
                    "place in the order, median [quartiles]": "{:.0f} % [{:.0f}, {:.0f}]".format(*quartiles)
                    if n
                    else "",
                    "step, median": f"{np.median(at) + 1:.0f}" if n else "",
                    f"in the first {ENDS} reveals, %": _share(int((at < ENDS).sum()), n),
                    f"in the last {ENDS}, %": _share(int((left <= ENDS).sum()), n),
                }
            )
        title = f"the first wrong reveal, {self.denoiser} on {source}, n = {len(blanks):,}, seed {self.seed}"
        note = (
            "The last two columns are shares of the failures, with Wilson's interval. The paper shows histograms without numbers: "
            "a random order fails early, heuristics in the last steps."
        )
        return Table.of(title, rows, note)


def _share(count: int, n: int) -> str:
    return percent_interval(*count_limits(count, n)) if n else ""
