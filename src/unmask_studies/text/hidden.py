"""What a policy reads (tab:gsm8k-hidden-policy): statistics of the distributions, or the denoiser's own hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unmask.decoding.options import Decoding
from unmask_studies import paper_numbers
from unmask_studies.plots import plot_reports
from unmask_studies.reports import find_leader, join_reports
from unmask_studies.study import Axes, Findings, Result, Results
from unmask_studies.tables import BOLD, Cell, Table, TableRow, against, solved
from unmask_studies.text.study import Models, TaskStudy, block_sizes, name_blocks


@dataclass(frozen=True)
class Hidden(TaskStudy):
    """The first of the ``policies`` reads statistics, the second hidden states; ``blocks`` are numbers of blocks."""

    policies: tuple[str, ...] = ("sas-arithmetic", "sas-arithmetic-hidden")
    names: tuple[str, ...] = ("learned from statistics", "learned from hidden states")
    blocks: tuple[int, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        super().__post_init__()
        block_sizes(self.task, self.blocks)

    def axes(self) -> Axes:
        return self.blocks, self.rows

    def measure_with(self, models: Models, *key: Any) -> Result:
        count, scheduler = key
        return models.evaluate(self.task, scheduler, Decoding(block=block_sizes(self.task, self.blocks)[count]))

    def findings(self, results: Results) -> Findings:
        statistics = self.policies[0]
        paper = dict(zip(self.policies, paper_numbers.HIDDEN.values(), strict=True))
        reports = {count: join_reports([results[count, row] for row in self.rows], statistics) for count in self.blocks}
        rows: list[TableRow] = []
        for name in self.rows:
            cells: dict[str, Cell | str] = {"scheduler": self.label(name)}
            for count, report in reports.items():
                row, numbers, blocks = report.row(name), paper.get(name, {}), name_blocks(count)
                cells[f"{blocks}, %"] = Cell(solved(row), name == find_leader(report))
                cells[f"paper, {blocks}"] = f"{numbers[count]:.1f}" if count in numbers else ""
                base = report.row(statistics)
                cells[f"against statistics, {blocks}"] = "" if row is base else against(row, base)
            rows.append({**cells, "calls": f"{reports[self.blocks[-1]].row(name).denoiser_calls:.1f}"})
        one = reports[self.blocks[0]]
        title = f"{self.task}: statistics or hidden states, n = {one.n:,}, seed {one.seed}"
        note = (
            f"{BOLD} Differences are paired, bold where the 95 % interval excludes 0. The paper's: LLaDA-8B on GSM8K, 128 "
            "tokens. Calls are those of the last decoding. One training seed."
        )
        figure = plot_reports({name_blocks(count): report for count, report in reports.items()}, name=self.label)
        return Findings([Table.of(title, rows, note)], {"hidden": figure}, list(reports.values()))
