"""Lengths and blocks (tab:math_code_gen): one order, learned at the longest length in any order, in every other decoding.

L–B: a generation of L tokens in blocks of B from the left; L–L is any order. Left to right does not know blocks: it is measured
once for each length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.evaluation.evaluate import Report
from unmask.report.numbers import percent_interval
from unmask.report.tables import is_oracle
from unmask_studies import paper_numbers as paper
from unmask_studies.sets import ahead, joined
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import BOLD, label
from unmask_studies.text.ground import LEARNED, Ground, Texts, blocks_of, kind_of, limits, order_of, points

READING = "left_to_right"
PAPER_BLOCKS = (1, 4, 8)
"""At each of its three lengths."""


@dataclass(frozen=True)
class Lengths:
    """All lengths of the ``tasks`` × numbers of ``blocks`` × ``orders`` and the learned one."""

    minutes: float = 0.0
    tasks: tuple[str, ...] = ("arithmetic", "code")
    blocks: tuple[int, ...] = (1, 4, 8)
    orders: tuple[str, ...] = (READING, "confidence", "margin", "entropy", "gt_margin")
    baseline: str = "confidence"
    sets: Texts = field(default_factory=Texts)
    runs: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for task in self.tasks:
            for length in kind_of(task).lengths:
                blocks_of(task, self.blocks, length)
        if {READING, self.baseline} - set(self.orders):
            raise ValueError(
                f"orders must have {READING} and the baseline {self.baseline!r}, got {', '.join(self.orders)}"
            )

    def pieces(self, folder: Path) -> list[Piece]:
        ground = Ground(self.sets, self.runs, folder, self.seed)
        pieces = ground.pieces(self.tasks, [order_of(task) for task in self.tasks])
        for task in self.tasks:
            for length, block in self.decodings(task):
                for order in (*self.orders, LEARNED):
                    if order == READING and block < length:
                        continue
                    decoding = Decoding(block=None if block == length else block)
                    pieces.append(
                        Piece(
                            _piece(task, length, block, order),
                            lambda t=task, o=order, r=decoding, n=length: ground.measured(t, o, r, n),
                        )
                    )
        return pieces

    def decodings(self, task: str) -> list[tuple[int, int]]:
        """L and B of each decoding, any order first at each length."""
        return [(length, length // count) for length in kind_of(task).lengths for count in self.blocks]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        tables, panels, evaluations = [], {}, []
        for task in self.tasks:
            reports = {decoding: self._report(task, *decoding, results) for decoding in self.decodings(task)}
            evaluations += reports.values()
            tables += [self._accuracies(task, reports), self._gains(task, reports)]
            panels[task] = {
                label(order): [
                    drawing.share(_name(decoding), limits(report.row(order))) for decoding, report in reports.items()
                ]
                for order in (*self.orders, LEARNED)
            }
        figure = drawing.lines(panels, "length–block", ["solved, %"] * len(panels))
        return Findings(tables, {"lengths": figure}, evaluations)

    def _report(self, task: str, length: int, block: int, results: Mapping[str, Any]) -> Report:
        names = [
            _piece(task, length, length if order == READING else block, order) for order in (*self.orders, LEARNED)
        ]
        report = joined([results[name] for name in names], self.baseline)
        return replace(report, rows=[replace(row, decoding=_name((length, block))) for row in report.rows])

    def _accuracies(self, task: str, reports: Mapping[tuple[int, int], Report]) -> Table:
        best = {decoding: ahead(report) for decoding, report in reports.items()}
        rows: list[list[Cell | str]] = []
        for order in (*self.orders, LEARNED):
            cells = [
                Cell(percent_interval(*limits(report.row(order))), order in best[decoding])
                for decoding, report in reports.items()
            ]
            rows.append([label(order), *cells])
        one = next(iter(reports.values()))
        title = f"{task}: solved %, on {one.n:,} problems of the test split, seed {one.seed}"
        return Table(
            title, ["order", *map(_name, reports)], rows, f"{BOLD} The learned order is one policy in all columns."
        )

    def _gains(self, task: str, reports: Mapping[tuple[int, int], Report]) -> Table:
        said = paper.MATH_CODE.get(task, {})
        rows: list[list[Cell | str]] = []
        for nth, (decoding, report) in enumerate(reports.items()):
            learned, reading = report.row(LEARNED), report.row(READING)
            others = [
                row for row in report.rows if row.scheduler not in (LEARNED, READING) and not is_oracle(row.scheduler)
            ]
            best = max(others, key=lambda row: row.exact)
            theirs = [values[nth] for order, values in said.items() if order != "sas"]
            gain = f"{100 * (said['sas'][nth] - max(theirs)):+.1f}" if said and self.blocks == PAPER_BLOCKS else ""
            rows.append(
                [
                    _name(decoding),
                    f"{best.scheduler} {100 * best.exact:.1f}",
                    f"{100 * learned.exact:.1f}",
                    points(learned, best),
                    gain.replace("-", "−"),
                    f"{100 * reading.exact:.1f}",
                    points(learned, reading),
                    f"{best.denoiser_calls:.1f}",
                    f"{learned.denoiser_calls:.1f}",
                ]
            )
        columns = [
            "length–block",
            "best heuristic, %",
            "learned, %",
            "difference, in pairs",
            "paper's",
            "left to right, %",
            "difference, in pairs",
            "calls, heuristic",
            "calls, learned",
        ]
        note = (
            "The best heuristic is chosen on the same problems, which favours it. Bold: the paired 95 % interval leaves out 0. "
            "The paper's differences are LLaDA-8B's on GSM8K (arithmetic) and MBPP (code), 128, 256 and 512 tokens in 1, 4 and 8 "
            "blocks. Calls: canvases through the denoiser per problem."
        )
        return Table(
            f"{task}: the learned order against the best heuristic, and against left to right", columns, rows, note
        )


def _name(decoding: tuple[int, int]) -> str:
    return f"{decoding[0]}–{decoding[1]}"


def _piece(task: str, length: int, block: int, order: str) -> str:
    return f"{task} {length}-{block}: {order}"
