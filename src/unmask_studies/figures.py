"""The figures of studies: matplotlib figures that stand alone, on white, in colours that everyone can tell apart.

Series differ in marker or dash as well as in colour. Imported only when a study has its numbers: matplotlib is slow to load.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from unmask.report.figures import COLOURS, DASHES, MARKERS
from unmask.report.terminal.tables import heat

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dcdfe4",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}

MARKED = 24
"""Points of a line that have a marker each; more of them are a line alone."""


@dataclass(frozen=True)
class Point:
    """A value with its limits. ``paper`` is the paper's own number beside it, where there is one."""

    label: str
    value: float
    low: float
    high: float
    strong: bool = False
    paper: float | None = None


def share(label: str, limits: tuple[float, float, float], strong: bool = False, paper: float | None = None) -> Point:
    """A share and its limits as a point in per cent."""
    value, low, high = limits
    return Point(label, 100 * value, 100 * low, 100 * high, strong, paper)


def intervals(panels: Mapping[str, Sequence[Point]], unit: str, zero: bool = False) -> Figure:
    """A panel per problem set, a line per order: the value, its limits, and a cross where the paper's number lies."""
    with matplotlib.rc_context(STYLE):
        tall = max(len(points) for points in panels.values())
        across = min(2, len(panels))
        down = -(-len(panels) // across)
        figure = Figure(figsize=(4.9 * across, down * (0.95 + 0.27 * tall)))
        for nth, (title, points) in enumerate(panels.items()):
            axes = figure.add_subplot(down, across, nth + 1)
            for place, point in enumerate(reversed(points)):
                low, high = (limit if np.isfinite(limit) else point.value for limit in (point.low, point.high))
                colour = COLOURS[0] if point.strong else "#30363d"
                axes.plot([low, high], [place, place], color=colour, linewidth=1.8)
                axes.plot(point.value, place, "D" if point.strong else "o", color=colour, markersize=5.5)
                if point.paper is not None:
                    axes.plot(point.paper, place, "x", color=COLOURS[1], markersize=7, label="the paper's")
            axes.set_yticks(range(len(points)), [point.label for point in reversed(points)])
            axes.set_ylim(-0.6, len(points) - 0.4)
            axes.set_title(title)
            axes.set_xlabel(unit)
            axes.grid(axis="y", visible=False)
            if zero:
                axes.axvline(0, color="#30363d", linewidth=1)
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
    with matplotlib.rc_context(STYLE):
        places = max(len(points) for series in panels.values() for points in series.values())
        figure = Figure(figsize=(max(4.9, 0.9 * places) * len(panels), 3.8))
        names = list(dict.fromkeys(name for series in panels.values() for name in series))
        for nth, ((title, series), ylabel) in enumerate(zip(panels.items(), ylabels, strict=True)):
            axes = figure.add_subplot(1, len(panels), nth + 1)
            for name, points in series.items():
                which = names.index(name)
                colour, x = COLOURS[which % len(COLOURS)], range(len(points))
                axes.plot(
                    x,
                    [point.value for point in points],
                    color=colour,
                    marker=MARKERS[which % len(MARKERS)],
                    linestyle=DASHES[which % len(DASHES)],
                    markersize=5,
                    label=name,
                )
                axes.vlines(x, [p.low for p in points], [p.high for p in points], color=colour, linewidth=1.2)
                axes.set_xticks(x, [point.label for point in points])
            axes.tick_params(axis="x", labelsize=8)
            if title in signed:
                axes.axhline(0, color="#30363d", linewidth=1)
            axes.set_title(title)
            axes.set_xlabel(xlabel)
            axes.set_ylabel(ylabel)
        _legend(figure)
        return figure


def frontier(series: Mapping[str, Sequence[tuple[float, Point]]], xlabel: str, ylabel: str) -> Figure:
    """What is gained for what is paid: a line per series through its points, from the cheapest on, on a logarithmic axis.

    The step behind them joins the points that nothing as cheap or cheaper reaches.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.6))
        axes = figure.add_subplot()
        everything = sorted((x, point.value) for points in series.values() for x, point in points)
        best = np.maximum.accumulate([value for _, value in everything])
        axes.step(
            [x for x, _ in everything], best, where="post", color="#c3c8d0", linewidth=5, zorder=0, label="frontier"
        )
        _through(axes, series)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        _legend(figure, 3)
        return figure


def curves(series: Mapping[str, Sequence[tuple[float, Point]]], xlabel: str, ylabel: str) -> Figure:
    """A line per series through its points, against a number."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.2))
        axes = figure.add_subplot()
        _through(axes, series)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        _legend(figure, 3)
        return figure


def progress(panels: Mapping[str, Mapping[str, Sequence[tuple[float, Point]]]], xlabel: str) -> Figure:
    """A panel per quantity, whose name is its title; a line per series, with markers where there are few points."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(panels), 3.4))
        for nth, (title, series) in enumerate(panels.items()):
            axes = figure.add_subplot(1, len(panels), nth + 1)
            _through(axes, series)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
            axes.set_title(title)
            axes.set_xlabel(xlabel)
        _legend(figure)
        return figure


def _through(axes: Axes, series: Mapping[str, Sequence[tuple[float, Point]]]) -> None:
    for which, (name, points) in enumerate(series.items()):
        ordered = sorted(points, key=lambda point: point[0])
        x, colour = [x for x, _ in ordered], COLOURS[which % len(COLOURS)]
        axes.plot(
            x,
            [point.value for _, point in ordered],
            color=colour,
            marker=MARKERS[which % len(MARKERS)] if len(x) <= MARKED else "",
            linestyle=DASHES[which % len(DASHES)],
            markersize=5.5,
            label=name,
        )
        axes.vlines(x, [p.low for _, p in ordered], [p.high for _, p in ordered], color=colour, linewidth=1)


def histograms(places: Mapping[str, Sequence[float]], problems: int, bins: int = 10) -> Figure:
    """A panel per order: where in the order it first went wrong, from 0 to 1, as shares of its failures, on one scale.

    Shares of all problems would leave the panel of a good order empty; how many it fails is in its title.
    """
    edges = np.linspace(0, 1, bins + 1)
    with matplotlib.rc_context(STYLE):
        across = min(4, len(places))
        down = -(-len(places) // across)
        figure = Figure(figsize=(2.6 * across, 0.3 + 2.1 * down))
        shared = None
        for nth, (order, values) in enumerate(places.items()):
            axes = figure.add_subplot(down, across, nth + 1, sharey=shared)
            shared = shared or axes
            counts, _ = np.histogram(values, edges)
            axes.bar(100 * edges[:-1], 100 * counts / max(1, len(values)), 100 / bins, align="edge", color=COLOURS[0])
            axes.set_title(f"{order}: {100 * len(values) / problems:.1f} % fail")
            axes.set_xlim(0, 100)
            if nth >= len(places) - across:
                axes.set_xlabel("place in the order, %")
            if nth % across == 0:
                axes.set_ylabel("failures, %")
        return figure


def boards(
    panels: Mapping[str, tuple[Float[np.ndarray, "L"], Int[np.ndarray, "L"] | None, Int[np.ndarray, "L"] | None]],
    box: tuple[int, int],
) -> Figure:
    """A board per panel, coloured from the first reveal (blue) to the last (red); white where a cell is always given.

    A panel is the place of each cell in the order from 0 to 1 (NaN: given), the digits to write into it, if any, and, if it is one
    board and not a mean, the truth: wrong cells are crossed and the first reveal is boxed.
    """
    ramp = ListedColormap([_unit(heat(share)) for share in np.linspace(0, 1, 101)]).with_extremes(bad="white")
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        across = min(4, len(panels))
        down = -(-len(panels) // across)
        figure = Figure(figsize=(2.5 * across + 0.8, 2.7 * down))
        shown, image = [], None
        for nth, (title, (place, digits, truth)) in enumerate(panels.items()):
            axes = figure.add_subplot(down, across, nth + 1)
            size = round(place.size**0.5)
            image = axes.imshow(np.ma.masked_invalid(place.reshape(size, size)), cmap=ramp, vmin=0, vmax=1)
            for cell in range(place.size) if digits is not None else ():
                assert digits is not None
                given = np.isnan(place[cell])
                wrong = truth is not None and digits[cell] != truth[cell]
                style: dict[str, Any] = {"weight": "bold" if given else "normal", "size": 8.5}
                at = (cell % size, cell // size)
                axes.text(*at, str(digits[cell]), ha="center", va="center", color="#14181f", **style)
                if wrong:
                    axes.plot(*at, "x", color="#14181f", markersize=13)
            if truth is not None and not np.isnan(place).all():
                first = int(np.nanargmin(place))
                corner = (first % size - 0.5, first // size - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#14181f", linewidth=2.5))
            for edge in range(0, size + 1, box[0]):
                axes.axhline(edge - 0.5, color="#30363d", linewidth=1.2)
            for edge in range(0, size + 1, box[1]):
                axes.axvline(edge - 0.5, color="#30363d", linewidth=1.2)
            axes.set(xticks=[], yticks=[], title=title)
            shown.append(axes)
        assert image is not None
        bar = figure.colorbar(image, ax=shown, ticks=[0, 0.5, 1], shrink=0.7, pad=0.03)
        bar.ax.set_yticklabels(["first", "middle", "last"])
        return figure


def _legend(figure: Figure, across: int = 5) -> None:
    """Each label of any panel once, above all of them; none where there is nothing to tell apart."""
    found = {}
    for axes in figure.axes:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, line)
    if found:
        figure.legend(
            found.values(), found.keys(), loc="outside upper left", ncols=min(across, len(found)), fontsize=9.5
        )


def _unit(colour: str) -> tuple[float, ...]:
    return tuple(int(value) / 255 for value in colour.removeprefix("rgb(").removesuffix(")").split(","))
