"""The table of orders (tab:sudoku): what each order solves, on imperfect and good denoisers, generated and given puzzles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.evaluation.evaluate import Report, Row
from unmask.report.numbers import percent_interval
from unmask.report.tables import is_oracle
from unmask_studies import paper_numbers as paper
from unmask_studies.sets import Sets, ahead, evaluations, joined, piece_name
from unmask_studies.study import Cell, Findings, Piece, Table

BOLD = "Bold: beats every other order that does not know the truth; each paired 95 % interval leaves out 0."


@dataclass(frozen=True)
class Orders:
    """Denoisers × problem sets × orders. ``baseline`` is what the others are compared with, puzzle by puzzle."""

    minutes: float = 0.0
    denoisers: tuple[str, ...] = ("sudoku-9x9-imperfect", "sudoku-9x9")
    orders: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "expert", "sas", "gt_logp")
    baseline: str = "confidence"
    sets: Sets = field(default_factory=Sets)
    data: tuple[Path, ...] = ()
    likelihood: bool = False
    seed: int = 0

    def pieces(self, folder: Path) -> list[Piece]:
        return evaluations(self.denoisers, self.orders, self.sets.named(self.data), self.seed, self.likelihood)

    def findings(self, results: Mapping[str, Any]) -> Findings:
        reports = [
            joined([results[piece_name(denoiser, name, order)] for order in self.orders], self.baseline)
            for denoiser in self.denoisers
            for name in self.sets.named(self.data)
        ]
        said = paper.SUDOKU.get(self.sets.size, {})
        tables = [orders_table(report, said) for report in reports]
        return Findings(tables, {"orders": orders_figure(reports, said)}, reports)


Said = Mapping[str, tuple[float, float | None]]
"""The paper's own numbers by order: problems and cells, %."""


def orders_table(report: Report, said: Said, cells: str = "cells") -> Table:
    """A row per order: solved and cells with their limits, the paper's numbers if it has any, the cost, the comparison in pairs."""
    versus = next((row.versus for row in report.rows if row.versus), None)
    best = ahead(report)
    beside = ["paper"] if said else []
    columns = ["order", "solved %", *beside, f"{cells} %", *beside, "calls"]
    rows: list[list[Cell | str]] = []
    for row in report.rows:
        whole, part = said.get(row.scheduler, (None, None))
        line: list[Cell | str] = [
            label(row.scheduler),
            Cell(percent_interval(row.exact, row.exact_low, row.exact_high), row.scheduler in best),
            *(("" if whole is None else f"{whole:.1f}",) if said else ()),
            f"{100 * row.cell:.2f} [{100 * row.cell_low:.2f}, {100 * row.cell_high:.2f}]",
            *(("" if part is None else f"{part:.2f}",) if said else ()),
            f"{row.denoiser_calls:.1f}",
        ]
        rows.append(line if versus is None else [*line, against(row)])
    if versus is not None:
        columns.append(f"against {versus.baseline}, in pairs")
    title = f"{report.denoiser} on {report.source}, n = {report.n:,}, seed {report.seed}"
    return Table(title, columns, rows, f"Calls: canvases through the denoiser per problem. {BOLD}")


def against(row: Row) -> Cell:
    """The difference from the baseline in points, its limits, puzzles won and lost; strong where the limits leave out 0."""
    if row.versus is None:
        return Cell("")
    v = row.versus
    text = f"{100 * v.difference:+.1f} [{100 * v.low:+.1f}, {100 * v.high:+.1f}], +{v.won} −{v.lost}"
    return Cell(text.replace("-", "−"), v.low > 0 or v.high < 0)


def label(order: str) -> str:
    """How tables call an order."""
    if is_oracle(order):
        return f"oracle: {order}"
    return {
        "sas": "learned (SAS)",
        "left_to_right": "left to right",
        "right_to_left": "right to left",
        "look_ahead": "one-step look-ahead",
    }.get(order, order)


def orders_figure(reports: list[Report], said: Said) -> Any:
    """A panel per report: what each order solves."""
    from unmask.report import figures as drawing

    panels = {}
    for report in reports:
        best = ahead(report)
        panels[f"{report.denoiser}\n{report.source}"] = [
            drawing.share(
                label(row.scheduler),
                (row.exact, row.exact_low, row.exact_high),
                row.scheduler in best,
                said.get(row.scheduler, (None,))[0],
            )
            for row in report.rows
        ]
    return drawing.intervals(panels, "solved, %")
