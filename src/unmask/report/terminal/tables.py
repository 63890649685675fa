"""Tables and boards for the terminal, with rich. Without colours (``NO_COLOR``, a pipe) everything is still readable."""

from __future__ import annotations

import numpy as np
from rich.table import Table
from rich.text import Text

from unmask.evaluation.evaluate import Report, Row
from unmask.report import numbers
from unmask.report.tables import sort_strata
from unmask.tasks.sudoku.grid import grid_of


def comparison(report: Report) -> Table:
    """The headline: a row per scheduler, accuracy with its interval, the comparison with the baseline."""
    several = len({row.decoding for row in report.rows}) > 1
    title = f"{report.denoiser} on {report.source}, n = {report.n}, 95 % intervals"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("scheduler", no_wrap=True)
    if several:
        table.add_column("decoding")
    published = any(row.published is not None for row in report.rows)
    for name in ("solved %", *(("published %",) if published else ()), "cells %", "NLL", "calls", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    versus = next((row.versus for row in report.rows if row.versus), None)
    if versus:
        table.add_column(f"against {versus.baseline}", justify="right")
    for row in report.rows:
        cells = [row.scheduler] + ([row.decoding] if several else [])
        cells += [
            numbers.percent_interval(row.exact, row.exact_low, row.exact_high),
            *(["" if row.published is None else numbers.percent(row.published)] if published else []),
            numbers.percent(row.cell, 2),
            "" if row.nll != row.nll else f"{row.nll:.2f}",
            f"{row.denoiser_calls:.1f}",
            f"{1000 * row.seconds / row.n:.0f}",
        ]
        table.add_row(*cells, *([_against(row)] if versus else []))
    return table


def strata(report: Report) -> Table:
    """Accuracy by difficulty, the easiest first."""
    several = len({row.decoding for row in report.rows}) > 1
    labels = sort_strata(report.rows[0].strata)
    what = "the hardest technique needed" if report.task == "sudoku" else "difficulty"
    table = Table(title=f"solved % by {what}", title_justify="left")
    table.add_column("scheduler", no_wrap=True)
    if several:
        table.add_column("decoding")
    for label in labels:
        table.add_column(f"{label} (n = {report.rows[0].strata[label].n})", justify="right")
    for row in report.rows:
        cells = [row.scheduler] + ([row.decoding] if several else [])
        table.add_row(*cells, *(numbers.percent(row.strata[label].exact) for label in labels))
    return table


def _against(row: Row) -> str:
    if row.versus is None:
        return ""
    v = row.versus
    p = f"= {numbers.p_value(v.p)}" if v.p > 0 else numbers.p_value(v.p)
    return f"{numbers.points(v.difference, v.low, v.high)}, {numbers.won_lost(v.won, v.lost)}, p {p}"


def board(tokens: np.ndarray, rank: np.ndarray, wrong: np.ndarray | None = None) -> Text:
    """A filled board: clues bold, reveals coloured from the first (blue) to the last (red), a "!" after a wrong one."""
    text = Text()
    last = max(1, int(rank.max()))
    for cell, end in _cells(len(tokens)):
        style = "bold"
        if rank[cell] >= 0:
            style = heat(rank[cell] / last)
        text.append(str(tokens[cell]) if tokens[cell] else ".", style=style)
        if wrong is not None and wrong[cell]:
            text.append("!", style="bold reverse")
            end = end.removeprefix(" ")
        text.append(end)
    return text


def ranks(rank: np.ndarray) -> Text:
    """The same board with the step of each reveal in place of its digit; a dot at clues."""
    text = Text()
    last = max(1, int(rank.max()))
    for cell, end in _cells(len(rank)):
        if rank[cell] < 0:
            text.append(" ·", style="dim")
        else:
            text.append(f"{rank[cell] + 1:>2}", style=heat(rank[cell] / last))
        text.append(end)
    return text


def heat(share: float) -> str:
    """Blue for the first, grey, red for the last: also distinct for colour-blind readers."""
    blue, grey, red = np.array([60, 120, 230]), np.array([170, 170, 170]), np.array([215, 70, 40])
    mix = blue + (grey - blue) * share * 2 if share < 0.5 else grey + (red - grey) * (share * 2 - 1)
    return "rgb({},{},{})".format(*mix.astype(int))


def _cells(count: int):
    """Each cell with the text that follows it: a gap between boxes, an empty line between bands."""
    shape = grid_of(count)
    for cell in range(count):
        row, column = divmod(cell, shape.size)
        end = " "
        if column == shape.size - 1:
            end = "\n\n" if row % shape.box_rows == shape.box_rows - 1 and row < shape.size - 1 else "\n"
        elif column % shape.box_cols == shape.box_cols - 1:
            end = "   "
        yield cell, end
