"""Policies on another task than their own (tab:cross_domain_transfer): arithmetic's on code, and code's on arithmetic.

A transferred policy reads statistics alone: of a position it sees the denoiser's distribution, and its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.decoding.options import Decoding
from unmask.evaluation.evaluate import Report
from unmask.report import figures
from unmask.report.numbers import percent
from unmask_studies import paper_numbers
from unmask_studies.reports import join_reports
from unmask_studies.study import Axes, Findings, Result, Results
from unmask_studies.tables import Table, TableRow, against, label, limits, solved
from unmask_studies.text.study import Models, TextStudy, block_sizes, name_blocks


@dataclass(frozen=True)
class Transfer(TextStudy):
    """The policies of two ``tasks``, presets of ``unmask train``, on both; numbers of ``blocks`` at each shortest length."""

    tasks: tuple[str, str] = ("arithmetic", "code")
    policies: tuple[str, str] = ("sas-arithmetic-statistics", "sas-code-statistics")
    schedulers: tuple[str, ...] = ("left_to_right", "confidence", "margin", "entropy")
    blocks: tuple[int, ...] = (1, 4, 8)

    def __post_init__(self) -> None:
        for task in self.tasks:
            block_sizes(task, self.blocks)
        if not self.schedulers:
            raise ValueError("a transferred policy is compared with heuristics: name at least one")

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.schedulers, *self.policies)

    def needs(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.tasks, self.policies

    def axes(self) -> Axes:
        return self.tasks, self.blocks, self.rows

    def measure_with(self, models: Models, *key: Any) -> Result:
        task, count, scheduler = key
        return models.evaluate(task, scheduler, Decoding(block=block_sizes(task, self.blocks)[count]))

    def findings(self, results: Results) -> Findings:
        reports = {
            (task, count): join_reports([results[task, count, row] for row in self.rows], self.schedulers[0])
            for task in self.tasks
            for count in self.blocks
        }
        panels = {
            f"{task}, {name_blocks(count)}": [
                figures.share(self._label(task, row.scheduler), limits(row)) for row in report.rows
            ]
            for (task, count), report in reports.items()
        }
        figure = figures.intervals(panels, "solved, %")
        return Findings([self._table(reports)], {"transfer": figure}, list(reports.values()))

    def _table(self, reports: Mapping[tuple[str, int], Report]) -> Table:
        rows: list[TableRow] = []
        for here, there in ((0, 1), (1, 0)):
            trained, task = self.tasks[here], self.tasks[there]
            paper = paper_numbers.TRANSFER.get((trained, task), {})
            for count in self.blocks:
                report = reports[task, count]
                best = max((report.row(name) for name in self.schedulers), key=lambda row: row.exact)
                moved, own = report.row(self.policies[here]), report.row(self.policies[there])
                rows.append(
                    {
                        "trained on → used on": f"{trained} → {task}",
                        "decoding": name_blocks(count),
                        "transferred, %": solved(moved),
                        "best heuristic, %": f"{label(best.scheduler)}, {percent(best.exact)}",
                        "against heuristic, paired": against(moved, best),
                        "paper's": f"{paper[count]:+.1f}" if count in paper else "",
                        "the task's own policy, %": solved(own),
                        "against own policy, paired": against(moved, own),
                        "calls": f"{moved.denoiser_calls:.1f}",
                    }
                )
        one, blocks = next(iter(reports.values())), " and ".join(map(str, self.blocks))
        note = (
            "The best heuristic, left to right among them, is chosen on the same problems, which favours it. Bold: the paired 95 % "
            f"interval excludes 0. The paper's differences are LLaDA-8B's at 256 tokens in {blocks} blocks. One training seed."
        )
        return Table.of(f"Policies on the other task, n = {one.n:,}, seed {one.seed}", rows, note)

    def _label(self, task: str, scheduler: str) -> str:
        if scheduler not in self.policies:
            return label(scheduler)
        where = self.tasks[self.policies.index(scheduler)]
        return "learned here" if where == task else f"learned on {where}"
