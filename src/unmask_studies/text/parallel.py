"""Several positions per step (tab:parallel_decoding_generalization): accuracy against denoiser calls.

L–B–T: L tokens in blocks of B, T denoiser steps for the whole answer; every step reveals the positions of the highest scores. One
policy was trained for one position per step, the other on R_par, with blocks drawn by Plackett–Luce. Beside them are paces that
choose how many positions to reveal in a step: threshold, factor and entropy bound, on confidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.evaluation.evaluate import Report
from unmask.report import figures
from unmask_studies.reports import difference, join_reports
from unmask_studies.study import Axes, Findings, Result, Results, require_baseline
from unmask_studies.tables import Cell, Table, TableRow, against, limits, solved
from unmask_studies.text.study import Models, TaskStudy, kind_of

BASELINE = "confidence"


@dataclass(frozen=True)
class Parallel(TaskStudy):
    """A ``task`` at its shortest length: ``decodings`` (B, T) and ``paces``, each with confidence and two policies.

    The first of the ``policies`` was trained without, the second with ``budget``.
    """

    schedulers: tuple[str, ...] = (BASELINE,)
    policies: tuple[str, ...] = ("sas-arithmetic", "sas-arithmetic-parallel")
    names: tuple[str, ...] = ("trained one at a time", "trained on R_par")
    decodings: tuple[tuple[int, int], ...] = (
        *((40, steps) for steps in (40, 20, 16, 12, 10, 8, 6)),
        *((20, 20), (20, 10), (8, 20)),
    )
    paces: tuple[str, ...] = (
        *(f"threshold:p={p}" for p in (0.9, 0.7, 0.5)),
        *(f"factor:f={f}" for f in (0.5, 1.0, 2.0)),
        *(f"entropy_bound:gamma={gamma}" for gamma in (0.05, 0.2, 1.0)),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_baseline(BASELINE, self.schedulers)
        length = kind_of(self.task).lengths[0]
        for block, steps in self.decodings:
            if not 1 <= block <= length or length % block or not length // block <= steps <= length:
                raise ValueError(
                    f"expected blocks that divide the length {length} and a step for each of them, got {(block, steps)}"
                )
        for pace in self.paces:
            load_pace(pace)

    @property
    def rules(self) -> dict[str, Decoding]:
        """Name → decoding: the budgets, then the paces."""
        budgets = {self._name(*pair): Decoding(block=pair[0], steps=pair[1]) for pair in self.decodings}
        return budgets | {pace: Decoding(pace=load_pace(pace)) for pace in self.paces}

    def axes(self) -> Axes:
        return self.rules, self.rows

    def measure_with(self, models: Models, *key: Any) -> Result:
        rule, scheduler = key
        return models.evaluate(self.task, scheduler, self.rules[rule])

    def findings(self, results: Results) -> Findings:
        reports = {}
        for rule in self.rules:
            report = join_reports([results[rule, row] for row in self.rows], BASELINE)
            reports[rule] = replace(report, rows=[replace(row, decoding=rule) for row in report.rows])
        tables = [self._budgets(reports), self._frontier(reports)]
        return Findings(tables, {"parallel": self._figure(reports)}, list(reports.values()))

    def _budgets(self, reports: Mapping[str, Report]) -> Table:
        rows: list[TableRow] = []
        for pair in self.decodings:
            name = self._name(*pair)
            compared = [reports[name].row(row) for row in (BASELINE, *self.policies)]
            base, sequential, parallel = compared
            rows.append(
                {
                    "L–B–T": name,
                    f"{BASELINE}, %": solved(base),
                    "trained one at a time, %": solved(sequential),
                    "trained on R_par, %": solved(parallel),
                    "R_par against one at a time": against(parallel, sequential),
                    f"R_par against {BASELINE}": against(parallel, base),
                    "calls": " / ".join(f"{row.denoiser_calls:.1f}" for row in compared),
                }
            )
        note = (
            "Differences are paired; bold: the 95 % interval excludes 0. Calls: canvases through the denoiser per problem, of the "
            "three schedulers. The paper has no policy trained on R_par; its own, trained one at a time, has 0.58 (128–128–64) to "
            "0.61 (256–64–64) on GSM8K and 0.14 to 0.26 on MBPP."
        )
        return Table.of(f"{self.task}: fixed budgets of steps, {_sample(reports)}", rows, note)

    def _frontier(self, reports: Mapping[str, Report]) -> Table:
        """All rows by their cost. Strong: nothing as cheap or cheaper is as good, and the next best is worse, paired."""
        everything = [row for report in reports.values() for row in report.rows]
        everything.sort(key=lambda row: row.denoiser_calls)
        rows: list[TableRow] = []
        for row in everything:
            rivals = [other for other in everything if other is not row and other.denoiser_calls <= row.denoiser_calls]
            best = max(rivals, key=lambda other: other.exact, default=None)
            leads = best is None or row.exact > best.exact
            sure = best is None or difference(row, best).low > 0
            rows.append(
                {
                    "how many per step": row.decoding,
                    "scheduler": self.label(row.scheduler),
                    "calls": f"{row.denoiser_calls:.1f}",
                    "solved %": Cell(solved(row), leads and sure),
                    "on the frontier": "yes" if leads else "",
                }
            )
        note = (
            "Sorted by denoiser calls. On the frontier: nothing as cheap or cheaper solves as many. Bold: on it, and ahead of the "
            "best of those, the paired 95 % interval excluding 0."
        )
        return Table.of(f"{self.task}: accuracy against denoiser calls, {_sample(reports)}", rows, note)

    def _figure(self, reports: Mapping[str, Report]) -> Any:
        """Budgets in any order, the paces on confidence, and one of them on the policy of R_par; blocks are in the table."""
        series: dict[str, list[tuple[float, figures.Point]]] = {}
        anywhere = {self._name(*pair) for pair in self.decodings if pair[0] == kind_of(self.task).lengths[0]}
        shown = {(how, BASELINE) for how in map(_kind, self.paces)} | {("entropy_bound", self.policies[1])}
        for scheduler in self.rows:
            for rule, report in reports.items():
                row = report.row(scheduler)
                if rule in anywhere:
                    name = self.label(scheduler)
                elif rule in self.paces and (_kind(rule), scheduler) in shown:
                    name = f"{_kind(rule).replace('_', ' ')} on {self.label(scheduler).removeprefix('trained on ')}"
                else:
                    continue
                series.setdefault(name, []).append((row.denoiser_calls, figures.share(rule, limits(row))))
        return figures.frontier(series, "denoiser calls per problem", "solved, %")

    def _name(self, block: int, steps: int) -> str:
        return f"{kind_of(self.task).lengths[0]}–{block}–{steps}"


def _kind(pace: str) -> str:
    return pace.partition(":")[0]


def _sample(reports: Mapping[str, Report]) -> str:
    one = next(iter(reports.values()))
    return f"n = {one.n:,}, seed {one.seed}"
