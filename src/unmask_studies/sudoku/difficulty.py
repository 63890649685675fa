"""Accuracy by the weakest technique that suffices: the hardest one that the expert needs, up to puzzles beyond all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from unmask.evaluation.evaluate import Report, Row
from unmask.evaluation.statistics import paired_bootstrap
from unmask.report import figures
from unmask.report.numbers import percent_interval
from unmask.tasks.sudoku.techniques import FALLBACK, TECHNIQUES
from unmask_studies.sets import Sets
from unmask_studies.study import Findings, Key, Result, Results
from unmask_studies.sudoku.grids import EvaluationStudy
from unmask_studies.tables import Cell, Limits, Table, TableRow, count_limits, label, points_gap

LEAST = 10
"""Puzzles of a kind that the figure shows; the table shows all."""
Kinds = Mapping[str, Bool[np.ndarray, "N"]]


@dataclass(frozen=True)
class Difficulty(EvaluationStudy):
    """``learned`` is compared with ``baseline``, paired, within each kind of puzzle."""

    schedulers: tuple[str, ...] = ("confidence", "margin", "expert", "sas", "gt_logp")
    learned: str = "sas"
    sets: Sets = field(default_factory=lambda: Sets(clues="wide"))

    def __post_init__(self) -> None:
        for name in (self.baseline, self.learned):
            if name not in self.schedulers:
                raise ValueError(f"{name!r} is compared but not among the schedulers: {', '.join(self.schedulers)}")

    def grid(self) -> list[Key]:
        return [("techniques", name) for name in self.problems] + super().grid()

    def measure(self, key: Key, folder: Path) -> Result:
        if key[0] != "techniques":
            return super().measure(key, folder)
        task = self.problems[str(key[1])].load()
        clues = (task.puzzles > 0).sum(1)
        strata = [task.stratum(row) for row in range(len(task))]
        return {"strata": strata, "clues": [int(clues.min()), int(clues.max())]}

    def identity(self, key: Key) -> Result | None:
        return None if key[0] == "techniques" else super().identity(key)

    def findings(self, results: Results) -> Findings:
        tables, plots, reports = [], {}, []
        for denoiser in self.denoisers:
            panels = {}
            for name in self.problems:
                report, techniques = self.report(results, denoiser, name), results["techniques", name]
                reports.append(report)
                kinds = _kinds(techniques["strata"])
                tables.append(self._table(report, kinds, techniques["clues"]))
                shown = {kind: inside for kind, inside in kinds.items() if inside.sum() >= LEAST} or kinds
                panels[name] = {label(row.scheduler): _points(row, shown) for row in report.rows}
            ylabels = ["solved, %"] * len(panels)
            plots[f"difficulty-{Path(denoiser).name}"] = figures.lines(panels, "hardest technique needed", ylabels)
        return Findings(tables, plots, reports)

    def _table(self, report: Report, kinds: Kinds, clues: list[int]) -> Table:
        rows: list[TableRow] = []
        for kind, inside in kinds.items():
            cells: dict[str, Cell | str] = {"hardest technique needed": _words(kind), "n": f"{int(inside.sum()):,}"}
            for row in report.rows:
                cells[f"{label(row.scheduler)}, solved %"] = percent_interval(*_solved(row, inside))
            learned, base = (report.row(name).marks[inside] for name in (self.learned, self.baseline))
            difference = points_gap(paired_bootstrap(learned, base)) if inside.sum() > 1 else ""
            rows.append({**cells, f"{label(self.learned)} against {label(self.baseline)}, paired": difference})
        span = f"{clues[0]} to {clues[1]} clues"
        title = f"{report.denoiser} on {report.source}, {span}, n = {report.n:,}, seed {report.seed}"
        return Table.of(title, rows, "Wilson's intervals; bold: the paired interval excludes 0.")


def _kinds(strata: list[str]) -> Kinds:
    """Kind → which puzzles, the easiest first, and all of them last."""
    labels = np.array(strata)
    found = {kind: labels == kind for kind in ("full", *TECHNIQUES) if (labels == kind).any()}
    return {**found, "all": np.ones(len(labels), bool)}


def _words(kind: str) -> str:
    return "beyond these" if kind == TECHNIQUES[FALLBACK] else kind.replace("_", " ")


def _solved(row: Row, inside: Bool[np.ndarray, "N"]) -> Limits:
    return count_limits(int(row.marks[inside].sum()), int(inside.sum()))


def _points(row: Row, kinds: Kinds) -> list[figures.Point]:
    names = {kind: "\n".join([*_words(kind).split(), f"n = {inside.sum()}"]) for kind, inside in kinds.items()}
    return [figures.share(names[kind], _solved(row, inside)) for kind, inside in kinds.items()]
