"""Orders on another task than their own (tab:cross_domain_transfer): arithmetic's on code, and code's on arithmetic.

A transferred order reads statistics alone: what it knows of a position is what the denoiser says about it, and where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.evaluation.evaluate import Report
from unmask.report.numbers import percent_interval
from unmask_studies import paper_numbers as paper
from unmask_studies.sets import joined
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import label
from unmask_studies.text.ground import Ground, Texts, blocks_of, limits, points


@dataclass(frozen=True)
class Transfer:
    """The orders of two ``tasks``, presets of ``unmask train``, on both of them; numbers of ``blocks`` at each shortest length."""

    minutes: float = 0.0
    tasks: tuple[str, str] = ("arithmetic", "code")
    learned: tuple[str, str] = ("sas-arithmetic-statistics", "sas-code-statistics")
    heuristics: tuple[str, ...] = ("left_to_right", "confidence", "margin", "entropy")
    blocks: tuple[int, ...] = (1, 4, 8)
    sets: Texts = field(default_factory=Texts)
    runs: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for task in self.tasks:
            blocks_of(task, self.blocks)
        if not self.heuristics:
            raise ValueError("an order that is transferred is compared with heuristics: name at least one")

    def pieces(self, folder: Path) -> list[Piece]:
        ground = Ground(self.sets, self.runs, folder, self.seed)
        return ground.pieces(self.tasks, self.learned) + [
            Piece(
                _piece(task, count, order),
                lambda t=task, o=order, b=block: ground.measured(t, o, Decoding(block=b)),
            )
            for task in self.tasks
            for count, block in blocks_of(task, self.blocks).items()
            for order in (*self.heuristics, *self.learned)
        ]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        reports = {
            (task, count): joined(
                [results[_piece(task, count, order)] for order in (*self.heuristics, *self.learned)], self.heuristics[0]
            )
            for task in self.tasks
            for count in self.blocks
        }
        panels = {
            f"{task}, {_blocks(count)}": [
                drawing.share(self._label(task, row.scheduler), limits(row)) for row in report.rows
            ]
            for (task, count), report in reports.items()
        }
        figure = drawing.intervals(panels, "solved, %")
        return Findings([self._table(reports)], {"transfer": figure}, list(reports.values()))

    def _table(self, reports: Mapping[tuple[str, int], Report]) -> Table:
        rows: list[list[Cell | str]] = []
        for here, there in ((0, 1), (1, 0)):
            trained, task = self.tasks[here], self.tasks[there]
            said = paper.TRANSFER.get((trained, task), {})
            for count in self.blocks:
                report = reports[task, count]
                best = max((report.row(order) for order in self.heuristics), key=lambda row: row.exact)
                moved, own = report.row(self.learned[here]), report.row(self.learned[there])
                rows.append(
                    [
                        f"{trained} → {task}",
                        _blocks(count),
                        percent_interval(*limits(moved)),
                        f"{label(best.scheduler)}, {100 * best.exact:.1f}",
                        points(moved, best),
                        f"{said[count]:+.1f}" if count in said else "",
                        percent_interval(*limits(own)),
                        points(moved, own),
                        f"{moved.denoiser_calls:.1f}",
                    ]
                )
        columns = [
            "learned on → used on",
            "decoding",
            "transferred, %",
            "best heuristic, %",
            "difference, in pairs",
            "paper's",
            "the task's own order, %",
            "difference, in pairs",
            "calls",
        ]
        one, blocks = next(iter(reports.values())), " and ".join(map(str, self.blocks))
        note = (
            "The best heuristic, left to right among them, is chosen on the same problems, which favours it. Bold: the paired 95 % "
            f"interval leaves out 0. The paper's differences are LLaDA-8B's at 256 tokens in {blocks} blocks. One training seed."
        )
        return Table(f"Orders on the other task, n = {one.n:,}, seed {one.seed}", columns, rows, note)

    def _label(self, task: str, order: str) -> str:
        if order not in self.learned:
            return label(order)
        where = self.tasks[self.learned.index(order)]
        return "learned here" if where == task else f"learned on {where}"


def _blocks(count: int) -> str:
    return "any order" if count == 1 else f"{count} blocks"


def _piece(task: str, count: int, order: str) -> str:
    return f"{task} in {_blocks(count)}: {order}"
