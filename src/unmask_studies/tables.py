"""The cells and tables that most studies have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unmask.evaluation.evaluate import Report, Row
from unmask.evaluation.statistics import Interval, wilson
from unmask.report.numbers import excludes_zero, interval, percent_interval, points, won_lost
from unmask.report.study_sections import Cell, Table, TableRow
from unmask.report.tables import is_oracle
from unmask_studies.reports import difference, find_leader

BOLD = "Bold: beats every other scheduler that does not need the truth; each paired 95 % interval excludes 0."
LEARNED = "learned"
"""The name of the policy that a study has trained for the task at hand."""


Limits = tuple[float, float, float]
"""A value and its interval."""
PaperNumbers = Mapping[str, tuple[float, float | None]]
"""The paper's own numbers by scheduler: problems and cells, %."""


def to_markdown(tables: Sequence[Table], command: str) -> str:
    """The tables as they go into a document, under the command that made them."""
    parts = [f"```\n{command}\n```"]
    for table in tables:
        parts += [table.title, render_table(table), *([table.note] if table.note else [])]
    return "\n\n".join(parts) + "\n"


def render_table(table: Table) -> str:
    """Columns and rows in Markdown, without the title and the note."""
    lines = [f"| {' | '.join(table.columns)} |", f"|{'---|' * len(table.columns)}"]
    for row in table.rows:
        cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
        marked = (f"**{cell.text}**" if cell.strong else cell.text for cell in cells)
        lines.append(f"| {' | '.join(text.replace('|', '/') for text in marked)} |")
    return "\n".join(lines)


def label(scheduler: str) -> str:
    """The name of a scheduler in tables."""
    if is_oracle(scheduler):
        return f"oracle: {scheduler}"
    return {
        "sas": "learned (SAS)",
        "left_to_right": "left to right",
        "right_to_left": "right to left",
        "look_ahead": "one-step look-ahead",
    }.get(scheduler, scheduler)


def limits(row: Row) -> Limits:
    """The share solved and its interval."""
    return row.exact, row.exact_low, row.exact_high


def solved(row: Row) -> str:
    return percent_interval(*limits(row))


def count_limits(count: int, n: int) -> Limits:
    """``count`` of ``n`` with Wilson's interval."""
    return (count / n, *wilson(count, n))


def spread(found: Interval, digits: int = 2) -> str:
    return interval(found.mean, found.low, found.high, digits)


def gap(found: Interval, digits: int = 2) -> Cell:
    """A paired difference; strong where its interval excludes 0."""
    text = interval(found.mean, found.low, found.high, digits, signed=True)
    return Cell(text, excludes_zero(found.low, found.high))


def points_gap(found: Interval) -> Cell:
    """A paired difference of shares, in points."""
    return Cell(points(found.mean, found.low, found.high), excludes_zero(found.low, found.high))


def against(row: Row, other: Row) -> Cell:
    """The paired difference of the shares solved, in points."""
    return points_gap(difference(row, other))


def against_baseline(row: Row) -> Cell:
    """The same against the baseline of the row's report, with the problems won and lost."""
    v = row.versus
    if v is None:
        return Cell("")
    return Cell(f"{points(v.difference, v.low, v.high)}, {won_lost(v.won, v.lost)}", excludes_zero(v.low, v.high))


def describe(report: Report) -> str:
    """What a report is of, as a title."""
    return f"{report.denoiser} on {report.source}, n = {report.n:,}, seed {report.seed}"


def scheduler_table(report: Report, paper: PaperNumbers, cells: str = "cells") -> Table:
    """A row per scheduler: solved and cells, the paper's numbers if it has any, the cost, the paired comparison."""
    baseline = next((row.versus.baseline for row in report.rows if row.versus), None)
    leader = find_leader(report)
    rows: list[TableRow] = []
    for row in report.rows:
        whole, part = paper.get(row.scheduler, (None, None))
        line: dict[str, Cell | str] = {"scheduler": label(row.scheduler)}
        line["solved %"] = Cell(solved(row), row.scheduler == leader)
        if paper:
            line["paper, solved %"] = "" if whole is None else f"{whole:.1f}"
        line[f"{cells} %"] = percent_interval(row.cell, row.cell_low, row.cell_high, 2)
        if paper:
            line[f"paper, {cells} %"] = "" if part is None else f"{part:.2f}"
        line["calls"] = f"{row.denoiser_calls:.1f}"
        if baseline is not None:
            line[f"against {baseline}, paired"] = against_baseline(row)
        rows.append(line)
    return Table.of(describe(report), rows, f"Calls: canvases through the denoiser per problem. {BOLD}")
