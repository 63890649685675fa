"""Every plot of reports and studies, with matplotlib, in one of two themes.

``paper`` (the default) stands alone on white: studies save such figures as SVG and PDF. ``page`` goes inline into an HTML page by
:func:`unmask.report.svg.inline_svg`: its ink becomes ``currentColor`` and its lines the page's, so that it follows the page into
the dark. Series differ in marker or dash as well as in colour (Okabe and Ito's palette, safe for colour-blind readers).
matplotlib is slow to import: import this module only where something is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from unmask.report import numbers
from unmask.report.svg import PAGE_INK, PAGE_LINE
from unmask.report.terminal.tables import heat

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#B8860B", "#7A6FF0", "#8C8C8C")
MARKERS = "osD^vPX*"
DASHES = ("-", (0, (5, 1.5)), (0, (2, 1)), "-.")
MARKED = 24
"""A line with more points than this has no markers."""
WIDTH = 9.4  # of a figure on a page: inches of 96 pixels

ThemeName = Literal["page", "paper"]


@dataclass(frozen=True)
class Theme:
    """``text`` and ``edge`` colour the axes, ``ink`` what is drawn in no colour of its own, ``grid`` the lines behind it."""

    text: str
    edge: str
    ink: str
    grid: str
    ticks: float


THEMES = {
    "page": Theme(PAGE_INK, PAGE_LINE, PAGE_INK, PAGE_LINE, 0.0),
    "paper": Theme("black", "black", "#30363d", "#dcdfe4", 3.5),
}


@dataclass(frozen=True)
class Point:
    """A value with its limits. ``paper`` is the number that the paper reports, where there is one."""

    label: str
    value: float
    low: float
    high: float
    strong: bool = False
    paper: float | None = None


Series = Mapping[str, Sequence[tuple[float, Point]]]
"""Points by their place on the x axis, for each line."""


def share(label: str, limits: tuple[float, float, float], strong: bool = False, paper: float | None = None) -> Point:
    """A share and its limits as a point in percent."""
    value, low, high = limits
    return Point(label, 100 * value, 100 * low, 100 * high, strong, paper)


@contextmanager
def _styled(name: ThemeName, **changes: Any) -> Iterator[Theme]:
    theme = THEMES[name]
    style: dict[Any, Any] = {
        "font.size": 10,
        "text.color": theme.text,
        "axes.edgecolor": theme.edge,
        "axes.labelcolor": theme.text,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "axes.grid": True,
        "axes.axisbelow": True,
        "xtick.color": theme.text,
        "ytick.color": theme.text,
        "xtick.major.size": theme.ticks,
        "ytick.major.size": theme.ticks,
        "grid.color": theme.grid,
        "legend.frameon": False,
        "figure.constrained_layout.use": True,
        "text.parse_math": False,  # a name between dollars is a name
    }
    style.update(changes)
    with matplotlib.rc_context(style):
        yield theme


def intervals(
    panels: Mapping[str, Sequence[Point]], unit: str, zero: bool = False, theme: ThemeName = "paper"
) -> Figure:
    """A panel per problem set, a line per scheduler: the value, its limits, and a cross at the paper's number.

    With ``zero`` there is a line where there is no difference.
    """
    with _styled(theme) as look:
        tall = max(len(points) for points in panels.values())
        down, across = _arrange(len(panels), 1 if theme == "page" else 2)
        size = (WIDTH, down * (0.62 + 0.3 * tall)) if theme == "page" else (4.9 * across, down * (0.95 + 0.27 * tall))
        figure = Figure(figsize=size)
        for nth, (title, points) in enumerate(panels.items()):
            axes = figure.add_subplot(down, across, nth + 1)
            for place, point in enumerate(reversed(points)):
                low, high = (limit if np.isfinite(limit) else point.value for limit in (point.low, point.high))
                colour = COLOURS[0] if point.strong else look.ink
                axes.plot([low, high], [place, place], color=colour, linewidth=1.8)
                axes.plot(point.value, place, "D" if point.strong else "o", color=colour, markersize=5.5)
                if point.paper is not None:
                    axes.plot(point.paper, place, "x", color=COLOURS[1], markersize=7, label="the paper's")
            axes.set_yticks(range(len(points)), [point.label for point in reversed(points)])
            axes.set_ylim(-0.6, len(points) - 0.4)
            axes.set(title=title, xlabel=unit)
            axes.grid(axis="y", visible=False)
            if zero:
                axes.axvline(0, color=look.ink, linewidth=1)
        _legend(figure)
        return figure


def grouped(groups: Mapping[str, Sequence[Point]], unit: str, theme: ThemeName = "paper") -> Figure:
    """A group per stratum, in it a line per scheduler."""
    names = list(dict.fromkeys(point.label for points in groups.values() for point in points))
    with _styled(theme):
        figure = Figure(figsize=(WIDTH, 0.9 + len(groups) * (0.2 + 0.13 * len(names))))
        axes = figure.add_subplot()
        for place, points in enumerate(reversed(list(groups.values()))):
            for point in points:
                which = names.index(point.label)
                y = place + 0.36 - 0.72 * (which + 0.5) / len(names)
                colour, marker = COLOURS[which % len(COLOURS)], MARKERS[which % len(MARKERS)]
                axes.plot([point.low, point.high], [y, y], color=colour, linewidth=1.3)
                axes.plot(point.value, y, marker, markersize=4.5, color=colour, label=point.label)
        axes.set_yticks(range(len(groups)), list(groups)[::-1])
        axes.set_ylim(-0.5, len(groups) - 0.5)
        axes.set_xlabel(unit)
        axes.grid(axis="y", visible=False)
        _legend(figure)
        return figure


def lines(
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    xlabel: str,
    ylabels: Sequence[str],
    signed: Collection[str] = (),
) -> Figure:
    """A panel per quantity, a line per series through its points, whose labels are the places on the x axis.

    ``signed`` names the panels that show a difference: they have a line at zero.
    """
    with _styled("paper") as look:
        places = max(len(points) for series in panels.values() for points in series.values())
        figure = Figure(figsize=(max(4.9, 0.9 * places) * len(panels), 3.8))
        names = list(dict.fromkeys(name for series in panels.values() for name in series))
        for nth, ((title, series), ylabel) in enumerate(zip(panels.items(), ylabels, strict=True)):
            axes = figure.add_subplot(1, len(panels), nth + 1)
            placed = {name: [(float(x), point) for x, point in enumerate(points)] for name, points in series.items()}
            _draw_lines(axes, placed, names)
            labels = max(series.values(), key=len)
            axes.set_xticks(range(len(labels)), [point.label for point in labels])
            axes.tick_params(axis="x", labelsize=8)
            if title in signed:
                axes.axhline(0, color=look.ink, linewidth=1)
            axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
        _legend(figure)
        return figure


def frontier(series: Series, xlabel: str, ylabel: str) -> Figure:
    """Gain against cost: a line per series through its points, from the cheapest on, on a logarithmic axis.

    The step behind them joins the points that nothing as cheap or cheaper reaches.
    """
    with _styled("paper"):
        figure = Figure(figsize=(7.2, 4.6))
        axes = figure.add_subplot()
        everything = sorted((x, point.value) for points in series.values() for x, point in points)
        best = np.maximum.accumulate([value for _, value in everything])
        band: dict[str, Any] = {"color": "#c3c8d0", "linewidth": 5, "zorder": 0, "label": "frontier"}
        axes.step([x for x, _ in everything], best, where="post", **band)
        _draw_lines(axes, series)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlabel=xlabel, ylabel=ylabel)
        _legend(figure, 3)
        return figure


def curves(series: Series, xlabel: str, ylabel: str) -> Figure:
    """A line per series through its points, against a number."""
    with _styled("paper"):
        figure = Figure(figsize=(7.2, 4.2))
        axes = figure.add_subplot()
        _draw_lines(axes, series)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set(xlabel=xlabel, ylabel=ylabel)
        _legend(figure, 3)
        return figure


def progress(panels: Mapping[str, Series], xlabel: str, theme: ThemeName = "paper") -> Figure:
    """A panel per quantity, whose name is its title, and in it a line per series."""
    with _styled(theme):
        names = list(dict.fromkeys(name for series in panels.values() for name in series))
        down, across = _arrange(len(panels), 2 if theme == "page" else len(panels))
        figure = Figure(figsize=(WIDTH, 0.35 + 2.35 * down) if theme == "page" else (3.6 * across, 3.4))
        for nth, (title, series) in enumerate(panels.items()):
            axes = figure.add_subplot(down, across, nth + 1)
            _draw_lines(axes, series, names)
            axes.set_title(title)
            if theme == "page":
                axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            else:
                axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
            if nth >= len(panels) - across:
                axes.set_xlabel(xlabel)
        if len(names) > 1 or theme == "paper":
            _legend(figure)
        return figure


def first_wrong(places: Mapping[str, Sequence[float]], counts: Mapping[str, int], theme: ThemeName = "paper") -> Figure:
    """When a scheduler first goes wrong: how many of its failures have happened by each part of the order (0 … 1)."""
    with _styled(theme):
        figure = Figure(figsize=(WIDTH, 2.9))
        axes = figure.add_subplot()
        for which, (name, values) in enumerate(places.items()):
            x = [0.0, *sorted(100 * value for value in values), 100.0]
            y = [*range(len(values) + 1), len(values)]
            look: dict[str, Any] = {"color": COLOURS[which % len(COLOURS)], "linestyle": DASHES[which % len(DASHES)]}
            axes.step(x, y, where="post", label=f"{name} ({len(values)} of {counts[name]} fail)", linewidth=1.8, **look)
        axes.set(xlabel="place of the first wrong reveal in the order, %", ylabel="problems", xlim=(0, 100))
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        _legend(figure, 2)
        return figure


def histograms(places: Mapping[str, Sequence[float]], problems: int, bins: int = 10) -> Figure:
    """A panel per scheduler: where in the order it first went wrong, from 0 to 1, as shares of its failures, on one scale.

    Shares of all problems would leave the panel of a good scheduler empty; how many it fails is in its title.
    """
    edges = np.linspace(0, 1, bins + 1)
    with _styled("paper"):
        down, across = _arrange(len(places), 4)
        figure = Figure(figsize=(2.6 * across, 0.3 + 2.1 * down))
        shared = None
        for nth, (name, values) in enumerate(places.items()):
            axes = figure.add_subplot(down, across, nth + 1, sharey=shared)
            shared = shared or axes
            counts, _ = np.histogram(values, edges)
            axes.bar(100 * edges[:-1], 100 * counts / max(1, len(values)), 100 / bins, align="edge", color=COLOURS[0])
            axes.set(title=f"{name}: {numbers.percent(len(values) / problems)} % fail", xlim=(0, 100))
            if nth >= len(places) - across:
                axes.set_xlabel("place in the order, %")
            if nth % across == 0:
                axes.set_ylabel("failures, %")
        return figure


def boards(
    panels: Mapping[str, tuple[Float[np.ndarray, "L"], Int[np.ndarray, "L"] | None, Int[np.ndarray, "L"] | None]],
    box: tuple[int, int] | None,
    theme: ThemeName = "paper",
) -> Figure:
    """A board per panel, coloured from the first reveal (blue) to the last (red); blank where a cell is always given.

    A panel is the place of each cell in the order from 0 to 1 (NaN: given), the digits to write into it, if any, and, if it is one
    board and not a mean, the truth: wrong cells are crossed and the first reveal is boxed. Without a ``box`` (its rows and columns)
    the positions are a line of text.
    """
    ramp = ListedColormap([_rgb(heat(part)) for part in np.linspace(0, 1, 101)])
    with _styled(theme, **{"axes.grid": False}) as look:
        down, across = _arrange(len(panels), 4 if box else 1)
        size = (2.5 * across + 0.8, 2.7 * down) if box else (WIDTH, 0.5 + 0.62 * down)
        figure = Figure(figsize=size)
        shown, image = [], None
        for nth, (title, (place, digits, truth)) in enumerate(panels.items()):
            axes = figure.add_subplot(down, across, nth + 1)
            cells = np.ma.masked_invalid(place.reshape(round(place.size**0.5), -1) if box else place[None])
            image = axes.imshow(cells, cmap=ramp, vmin=0, vmax=1, aspect="equal" if box else "auto")
            if digits is not None:
                _write_digits(axes, place, digits, truth)
            for edge in range(0, cells.shape[0] + 1, box[0]) if box else ():
                axes.axhline(edge - 0.5, color=look.ink, linewidth=1.2)
            for edge in range(0, cells.shape[1] + 1, box[1]) if box else ():
                axes.axvline(edge - 0.5, color=look.ink, linewidth=1.2)
            axes.set(xticks=[], yticks=[], title=title)
            shown.append(axes)
        assert image is not None
        bar = figure.colorbar(image, ax=shown, ticks=[0, 0.5, 1], shrink=0.7, pad=0.03)
        bar.ax.set_yticklabels(["first", "middle", "last"])
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        return figure


def _write_digits(axes: Axes, place: np.ndarray, digits: np.ndarray, truth: np.ndarray | None) -> None:
    """Digits into a board: given ones bold; with the truth, wrong ones crossed and the first reveal boxed."""
    size = round(place.size**0.5)
    for cell in range(place.size):
        column, row = cell % size, cell // size
        weight = "bold" if np.isnan(place[cell]) else "normal"
        axes.text(column, row, str(digits[cell]), ha="center", va="center", color="#14181f", weight=weight, size=8.5)
        if truth is not None and digits[cell] != truth[cell]:
            axes.plot(column, row, "x", color="#14181f", markersize=13)
    if truth is not None and not np.isnan(place).all():
        first = int(np.nanargmin(place))
        corner = (first % size - 0.5, first // size - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#14181f", linewidth=2.5))


def _draw_lines(axes: Axes, series: Series, names: Sequence[str] | None = None) -> None:
    """A line per series; ``names`` are the series of all panels, so that each looks the same in every one."""
    names = names or list(series)
    for name, points in series.items():
        ordered, which = sorted(points, key=lambda point: point[0]), names.index(name)
        x, colour = [x for x, _ in ordered], COLOURS[which % len(COLOURS)]
        axes.plot(
            x,
            [point.value for _, point in ordered],
            color=colour,
            marker=MARKERS[which % len(MARKERS)] if len(x) <= MARKED else "",
            linestyle=DASHES[which % len(DASHES)],
            markersize=5,
            label=name,
        )
        limits = [(x, point.low, point.high) for x, point in ordered if point.low < point.high]
        if limits:
            axes.vlines(*zip(*limits, strict=True), color=colour, linewidth=1)


def _arrange(panels: int, most_across: int) -> tuple[int, int]:
    """How many panels below each other and beside each other."""
    across = min(most_across, panels)
    return -(-panels // across), across


def _legend(figure: Figure, across: int = 5) -> None:
    """Each label of any panel once, above all of them; no legend where nothing has a label."""
    found = {}
    for axes in figure.axes:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, line)
    if found:
        columns = min(across, len(found))
        figure.legend(found.values(), found.keys(), loc="outside upper left", ncols=columns, fontsize=9.5)


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(value) / 255 for value in re.findall(r"\d+", colour))
