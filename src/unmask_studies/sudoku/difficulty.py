"""Accuracy by the weakest technique that suffices: the hardest one that the expert needs, up to puzzles beyond all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from unmask.evaluation.evaluate import Report
from unmask.evaluation.statistics import paired_bootstrap, wilson
from unmask.report.numbers import percent_interval
from unmask.tasks.sudoku.techniques import FALLBACK, TECHNIQUES
from unmask_studies.sets import ProblemSet, Sets, evaluations, joined, piece_name, solved
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import label

LEAST = 10
"""Puzzles of a kind that the figure shows; the table shows all."""


@dataclass(frozen=True)
class Difficulty:
    """``learned`` is compared with ``baseline`` in pairs within each kind of puzzle."""

    minutes: float = 0.0
    denoisers: tuple[str, ...] = ("sudoku-9x9-imperfect", "sudoku-9x9")
    orders: tuple[str, ...] = ("confidence", "margin", "expert", "sas", "gt_logp")
    baseline: str = "confidence"
    learned: str = "sas"
    sets: Sets = field(default_factory=lambda: Sets(clues="wide"))
    data: tuple[Path, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (self.baseline, self.learned):
            if name not in self.orders:
                raise ValueError(f"{name!r} is compared but not among the orders: {', '.join(self.orders)}")

    def pieces(self, folder: Path) -> list[Piece]:
        def sorted_out(problems: ProblemSet) -> Mapping[str, Any]:
            there = problems()
            clues = (there.puzzles > 0).sum(1)
            strata = [there.stratum(row) for row in range(len(there))]
            return {"strata": strata, "clues": [int(clues.min()), int(clues.max())]}

        sets = self.sets.named(self.data)
        pieces = [Piece(f"{name}: techniques", lambda p=problems: sorted_out(p)) for name, problems in sets.items()]
        return pieces + evaluations(self.denoisers, self.orders, sets, self.seed)

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        tables, figures, reports = [], {}, []
        for denoiser in self.denoisers:
            panels = {}
            for name in self.sets.named(self.data):
                some = [results[piece_name(denoiser, name, order)] for order in self.orders]
                report, sort = joined(some, self.baseline), results[f"{name}: techniques"]
                reports.append(report)
                kinds = _kinds(sort["strata"])
                tables.append(self._table(report, kinds, sort["clues"]))
                shown = {kind: inside for kind, inside in kinds.items() if inside.sum() >= LEAST} or kinds
                panels[name] = {
                    label(row.scheduler): [
                        drawing.share(
                            "\n".join([*_words(kind).split(), f"n = {inside.sum()}"]), _solved(solved(row)[inside])
                        )
                        for kind, inside in shown.items()
                    ]
                    for row in report.rows
                }
            figures[f"difficulty-{Path(denoiser).name}"] = drawing.lines(
                panels, "hardest technique needed", ["solved, %"] * len(panels)
            )
        return Findings(tables, figures, reports)

    def _table(self, report: Report, kinds: Mapping[str, Bool[np.ndarray, "N"]], clues: list[int]) -> Table:
        rows: list[list[Cell | str]] = []
        for kind, inside in kinds.items():
            cells: list[Cell | str] = [_words(kind), f"{int(inside.sum()):,}"]
            for row in report.rows:
                right = solved(row)[inside]
                cells.append(percent_interval(float(right.mean()), *wilson(int(right.sum()), len(right))))
            v = paired_bootstrap(
                solved(report.row(self.learned))[inside].astype(float),
                solved(report.row(self.baseline))[inside].astype(float),
            )
            text = f"{100 * v.mean:+.1f} [{100 * v.low:+.1f}, {100 * v.high:+.1f}]" if inside.sum() > 1 else ""
            cells.append(Cell(text.replace("-", "−"), bool(text) and (v.low > 0 or v.high < 0)))
            rows.append(cells)
        names = [label(row.scheduler) for row in report.rows]
        gain = f"{label(self.learned)} against {label(self.baseline)}, in pairs"
        columns = ["hardest technique needed", "n", *(f"{name}, solved %" for name in names), gain]
        title = f"{report.denoiser} on {report.source}, {clues[0]} to {clues[1]} clues, n = {report.n:,}, seed {report.seed}"
        return Table(title, columns, rows, "Wilson's intervals; bold: the paired interval leaves out 0.")


def _kinds(strata: list[str]) -> dict[str, Bool[np.ndarray, "N"]]:
    """Kind → which puzzles, the easiest first, and all of them last."""
    labels = np.array(strata)
    found = {kind: labels == kind for kind in ("full", *TECHNIQUES) if (labels == kind).any()}
    return {**found, "all": np.ones(len(labels), bool)}


def _words(kind: str) -> str:
    return "beyond these" if kind == TECHNIQUES[FALLBACK] else kind.replace("_", " ")


def _solved(right: Bool[np.ndarray, "n"]) -> tuple[float, float, float]:
    low, high = wilson(int(right.sum()), len(right))
    return float(right.mean()), low, high
