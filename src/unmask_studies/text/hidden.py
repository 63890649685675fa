"""What a policy reads (tab:gsm8k-hidden-policy): statistics of the distributions, or the denoiser's own hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.report.numbers import percent_interval
from unmask_studies import paper_numbers as paper
from unmask_studies.sets import ahead, joined
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import BOLD, label
from unmask_studies.text.ground import Ground, Texts, blocks_of, limits, points


@dataclass(frozen=True)
class Hidden:
    """``features`` and ``hidden`` are presets of ``unmask train`` for the ``task``; ``blocks`` are numbers of them."""

    minutes: float = 0.0
    task: str = "arithmetic"
    features: str = "sas-arithmetic"
    hidden: str = "sas-arithmetic-hidden"
    heuristics: tuple[str, ...] = ("left_to_right", "confidence", "margin", "entropy")
    blocks: tuple[int, ...] = (1, 2, 4)
    sets: Texts = field(default_factory=Texts)
    runs: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        blocks_of(self.task, self.blocks)

    def orders(self) -> tuple[str, ...]:
        return (*self.heuristics, self.features, self.hidden)

    def pieces(self, folder: Path) -> list[Piece]:
        ground = Ground(self.sets, self.runs, folder, self.seed)
        return ground.pieces([self.task], [self.features, self.hidden]) + [
            Piece(f"{count} blocks: {order}", lambda o=order, b=block: ground.measured(self.task, o, Decoding(block=b)))
            for count, block in blocks_of(self.task, self.blocks).items()
            for order in self.orders()
        ]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        reports = {
            count: joined([results[f"{count} blocks: {order}"] for order in self.orders()], self.features)
            for count in self.blocks
        }
        best = {count: ahead(report) for count, report in reports.items()}
        said = {self.features: paper.HIDDEN["features"], self.hidden: paper.HIDDEN["hidden"]}
        rows: list[list[Cell | str]] = []
        for order in self.orders():
            cells: list[Cell | str] = [self._label(order)]
            for count, report in reports.items():
                row = report.row(order)
                cells.append(Cell(percent_interval(*limits(row)), order in best[count]))
                cells.append(f"{said[order][count]:.1f}" if count in said.get(order, {}) else "")
                cells.append("" if order == self.features else points(row, report.row(self.features)))
            rows.append([*cells, f"{report.row(order).denoiser_calls:.1f}"])
        columns = ["order"]
        for count in self.blocks:
            columns += ["any order, %" if count == 1 else f"{count} blocks, %", "paper", "against statistics"]
        one = reports[self.blocks[0]]
        title = f"{self.task}: statistics or hidden states, n = {one.n:,}, seed {one.seed}"
        note = (
            f"{BOLD} Differences are in pairs, bold where the 95 % interval leaves out 0. The paper's: LLaDA-8B on GSM8K, 128 "
            "tokens. Calls are those of the last column's decoding. One training seed."
        )
        panels = {
            "any order" if count == 1 else f"{count} blocks": [
                drawing.share(self._label(row.scheduler), limits(row), row.scheduler in best[count])
                for row in report.rows
            ]
            for count, report in reports.items()
        }
        table = Table(title, [*columns, "calls"], rows, note)
        return Findings([table], {"hidden": drawing.intervals(panels, "solved, %")}, list(reports.values()))

    def _label(self, order: str) -> str:
        learned = {self.features: "learned from statistics", self.hidden: "learned from hidden states"}
        return learned.get(order, label(order))
