"""Several positions per step (tab:parallel_decoding_generalization): accuracy against denoiser calls.

L–B–T: L tokens in blocks of B, T denoiser steps for the whole answer; every step reveals the best of the order's scores. One order
was learned for one position per step, the other on R_par, with blocks drawn by Plackett–Luce. Beside them are rules that decide how
many positions a step is sure enough of: threshold, factor and entropy bound, on confidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.evaluation.evaluate import Report
from unmask.report.numbers import percent_interval
from unmask_studies.sets import difference, joined
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import label
from unmask_studies.text.ground import Ground, Texts, kind_of, limits, points

BASELINE = "confidence"


@dataclass(frozen=True)
class Parallel:
    """A ``task`` at its shortest length: ``decodings`` (B, T) and ``paces``, each with confidence and two learned orders.

    ``sequential`` and ``parallel`` are presets of ``unmask train``: without and with ``budget``.
    """

    minutes: float = 0.0
    task: str = "arithmetic"
    sequential: str = "sas-arithmetic"
    parallel: str = "sas-arithmetic-parallel"
    decodings: tuple[tuple[int, int], ...] = (
        (40, 40),
        (40, 20),
        (40, 16),
        (40, 12),
        (40, 10),
        (40, 8),
        (40, 6),
        (20, 20),
        (20, 10),
        (8, 20),
    )
    paces: tuple[str, ...] = (
        "threshold:p=0.9",
        "threshold:p=0.7",
        "threshold:p=0.5",
        "factor:f=0.5",
        "factor:f=1.0",
        "factor:f=2.0",
        "entropy_bound:gamma=0.05",
        "entropy_bound:gamma=0.2",
        "entropy_bound:gamma=1.0",
    )
    sets: Texts = field(default_factory=Texts)
    runs: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        length = kind_of(self.task).lengths[0]
        for block, steps in self.decodings:
            if not 1 <= block <= length or length % block or not length // block <= steps <= length:
                raise ValueError(
                    f"expected blocks that divide the length {length} and a step for each of them, got {(block, steps)}"
                )
        for pace in self.paces:
            load_pace(pace)

    def orders(self) -> tuple[str, ...]:
        return (BASELINE, self.sequential, self.parallel)

    def pieces(self, folder: Path) -> list[Piece]:
        ground = Ground(self.sets, self.runs, folder, self.seed)
        rules = {self._name(*pair): Decoding(block=pair[0], steps=pair[1]) for pair in self.decodings}
        rules |= {pace: Decoding(pace=load_pace(pace)) for pace in self.paces}
        return ground.pieces([self.task], [self.sequential, self.parallel]) + [
            Piece(f"{rule}: {order}", lambda o=order, r=decoding: ground.measured(self.task, o, r))
            for rule, decoding in rules.items()
            for order in self.orders()
        ]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        reports = {}
        for rule in (*(self._name(*pair) for pair in self.decodings), *self.paces):
            report = joined([results[f"{rule}: {order}"] for order in self.orders()], BASELINE)
            reports[rule] = replace(report, rows=[replace(row, decoding=rule) for row in report.rows])
        return Findings(
            [self._budgets(reports), self._frontier(reports)],
            {"parallel": self._figure(reports)},
            list(reports.values()),
        )

    def _budgets(self, reports: Mapping[str, Report]) -> Table:
        rows: list[list[Cell | str]] = []
        for pair in self.decodings:
            report = reports[self._name(*pair)]
            base, sequential, parallel = (report.row(order) for order in self.orders())
            rows.append(
                [
                    self._name(*pair),
                    *(percent_interval(*limits(row)) for row in (base, sequential, parallel)),
                    points(parallel, sequential),
                    points(parallel, base),
                    " / ".join(f"{row.denoiser_calls:.1f}" for row in (base, sequential, parallel)),
                ]
            )
        columns = [
            "L–B–T",
            f"{BASELINE}, %",
            "learned one at a time, %",
            "learned on R_par, %",
            "R_par against one at a time",
            f"R_par against {BASELINE}",
            "calls",
        ]
        note = (
            "Differences in pairs; bold: the 95 % interval leaves out 0. Calls: canvases through the denoiser per problem, of the "
            "three orders. The paper has no order learned on R_par; its own, learned one at a time, has 0.58 (128–128–64) to 0.61 "
            "(256–64–64) on GSM8K and 0.14 to 0.26 on MBPP."
        )
        return Table(f"{self.task}: fixed budgets of steps, {_which(reports)}", columns, rows, note)

    def _frontier(self, reports: Mapping[str, Report]) -> Table:
        """Everything by what it costs. Strong: nothing that is not dearer is as good, and the next best is worse in pairs."""
        everything = sorted(
            (row for report in reports.values() for row in report.rows), key=lambda row: row.denoiser_calls
        )
        rows: list[list[Cell | str]] = []
        for row in everything:
            rivals = [other for other in everything if other is not row and other.denoiser_calls <= row.denoiser_calls]
            best = max(rivals, key=lambda other: other.exact, default=None)
            leads = best is None or row.exact > best.exact
            sure = best is None or difference(row, best).low > 0
            rows.append(
                [
                    row.decoding,
                    self._label(row.scheduler),
                    f"{row.denoiser_calls:.1f}",
                    Cell(percent_interval(*limits(row)), leads and sure),
                    "yes" if leads else "",
                ]
            )
        columns = ["how many per step", "order", "calls", "solved %", "on the frontier"]
        note = (
            "Sorted by denoiser calls. On the frontier: nothing as cheap or cheaper solves as many. Bold: on it, and ahead of the "
            "best of those in pairs, the 95 % interval leaving out 0."
        )
        return Table(f"{self.task}: accuracy against denoiser calls, {_which(reports)}", columns, rows, note)

    def _figure(self, reports: Mapping[str, Report]) -> Any:
        """Budgets in any order, the rules on confidence, and one of them on the order of R_par; blocks are in the table."""
        from unmask.report import figures as drawing

        series: dict[str, list[tuple[float, drawing.Point]]] = {}
        anywhere = {self._name(*pair) for pair in self.decodings if pair[0] == kind_of(self.task).lengths[0]}
        shown = {(how, BASELINE) for how in map(_kind, self.paces)} | {("entropy_bound", self.parallel)}
        for order in self.orders():
            for rule, report in reports.items():
                row = report.row(order)
                if rule in anywhere:
                    name = self._label(order)
                elif rule in self.paces and (_kind(rule), order) in shown:
                    name = f"{_kind(rule).replace('_', ' ')} on {self._label(order).removeprefix('learned on ')}"
                else:
                    continue
                series.setdefault(name, []).append((row.denoiser_calls, drawing.share(rule, limits(row))))
        return drawing.frontier(series, "denoiser calls per problem", "solved, %")

    def _label(self, order: str) -> str:
        return {self.sequential: "learned one at a time", self.parallel: "learned on R_par"}.get(order, label(order))

    def _name(self, block: int, steps: int) -> str:
        return f"{kind_of(self.task).lengths[0]}–{block}–{steps}"


def _kind(pace: str) -> str:
    return pace.partition(":")[0]


def _which(reports: Mapping[str, Report]) -> str:
    one = next(iter(reports.values()))
    return f"n = {one.n:,}, seed {one.seed}"
