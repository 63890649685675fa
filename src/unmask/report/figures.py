"""Figures as SVG text: matplotlib for the plots of a report, plain elements for the boards of the README.

A plot goes inline into a page: its ink is ``currentColor`` and its lines the page's, so that it follows the page into the dark.
Series differ in marker as well as in colour (Okabe and Ito's, told apart by everyone). ``hero`` stands alone, on a card of its own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from unmask.report.boards import FONT, hero
from unmask.report.terminal.tables import heat

__all__ = ["Bar", "curves", "first_wrong", "grouped", "hero", "intervals", "order_maps"]

INK, LINE = "#010101", "#020202"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#B8860B", "#7A6FF0", "#8C8C8C")
MARKERS = "osD^vPX*"
DASHES = ("-", (0, (5, 1.5)), (0, (2, 1)), "-.")
WIDTH = 9.4  # inches of 96 pixels
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "unmask",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Bar:
    """A value with its limits; ``strong`` where it stands out for a reason."""

    label: str
    value: float
    low: float
    high: float
    strong: bool = False


def intervals(name: str, bars: Sequence[Bar], unit: str, label: str, zero: bool = False) -> str:
    """A line per bar: the value as a point, its limits as a line. With ``zero``, a line where there is no difference."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.62 + 0.3 * len(bars)))
        axes = figure.add_subplot()
        for place, bar in enumerate(reversed(bars)):
            low, high = (limit if np.isfinite(limit) else bar.value for limit in (bar.low, bar.high))
            colour = COLOURS[0] if bar.strong else INK
            axes.plot([low, high], [place, place], color=colour, linewidth=2.2 if bar.strong else 1.4)
            axes.plot(bar.value, place, "D" if bar.strong else "o", color=colour, markersize=6)
        axes.set_yticks(range(len(bars)), [bar.label for bar in reversed(bars)])
        axes.set_ylim(-0.6, len(bars) - 0.4)
        axes.set_xlabel(unit)
        axes.grid(axis="y", visible=False)
        axes.tick_params(length=0)
        if zero:
            axes.axvline(0, color=INK, linewidth=1)
        return _svg(figure, name, label)


def curves(
    name: str, panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], xlabel: str, label: str
) -> str:
    """A panel per quantity, a line per run: ``panels[quantity][run]`` are points (x, y)."""
    runs = list(dict.fromkeys(run for lines in panels.values() for run in lines))
    rows = -(-len(panels) // 2)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.35 + 2.35 * rows))
        for nth, (quantity, lines) in enumerate(panels.items()):
            axes = figure.add_subplot(rows, min(2, len(panels)), nth + 1)
            for run, points in lines.items():
                which = runs.index(run)
                x, y = zip(*points, strict=True)
                few = len(points) <= 30
                axes.plot(
                    *(x, y),
                    color=COLOURS[which % len(COLOURS)],
                    linewidth=1.6,
                    linestyle=DASHES[which % len(DASHES)],
                    marker=MARKERS[which % len(MARKERS)] if few else None,
                    markersize=4,
                    label=run,
                )
            axes.set_title(quantity)
            axes.tick_params(length=0)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            if nth >= len(panels) - 2:
                axes.set_xlabel(xlabel)
        if len(runs) > 1:
            lines, names = _legend(figure)
            figure.legend(lines, names, loc="outside upper left", ncols=min(4, len(runs)), fontsize=9.5)
        return _svg(figure, name, label)


def grouped(name: str, groups: Mapping[str, Sequence[Bar]], unit: str, label: str) -> str:
    """A group per stratum, in it a bar per order, told apart by colour and marker."""
    orders = list(dict.fromkeys(bar.label for bars in groups.values() for bar in bars))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 0.9 + len(groups) * (0.2 + 0.13 * len(orders))))
        axes = figure.add_subplot()
        for place, bars in enumerate(reversed(list(groups.values()))):
            for bar in bars:
                which = orders.index(bar.label)
                y = place + 0.36 - 0.72 * (which + 0.5) / len(orders)
                colour = COLOURS[which % len(COLOURS)]
                axes.plot([bar.low, bar.high], [y, y], color=colour, linewidth=1.3)
                axes.plot(bar.value, y, MARKERS[which % len(MARKERS)], color=colour, markersize=4.5, label=bar.label)
        axes.set_yticks(range(len(groups)), list(groups)[::-1])
        axes.set_ylim(-0.5, len(groups) - 0.5)
        axes.set_xlabel(unit)
        axes.grid(axis="y", visible=False)
        axes.tick_params(length=0)
        lines, names = _legend(figure)
        figure.legend(lines, names, loc="outside upper left", ncols=min(5, len(names)), fontsize=9.5)
        return _svg(figure, name, label)


def first_wrong(name: str, shares: Mapping[str, Sequence[float]], counts: Mapping[str, int], label: str) -> str:
    """When an order first goes wrong: how many of its failures have happened by each part of the order."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.9))
        axes = figure.add_subplot()
        for which, (order, values) in enumerate(shares.items()):
            x = [0.0, *sorted(100 * value for value in values), 100.0]
            y = [*range(len(values) + 1), len(values)]
            text = f"{order} ({len(values)} of {counts[order]} fail)"
            colour = COLOURS[which % len(COLOURS)]
            dash = DASHES[which % len(DASHES)]
            axes.step(x, y, where="post", color=colour, linewidth=1.8, linestyle=dash, label=text)
        axes.set_xlabel("place of the first wrong reveal in the order, %")
        axes.set_ylabel("problems")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.set_xlim(0, 100)
        axes.set_ylim(bottom=0)
        axes.tick_params(length=0)
        lines, names = _legend(figure)
        figure.legend(lines, names, loc="outside upper left", ncols=2, fontsize=9.5)
        return _svg(figure, name, label)


def order_maps(name: str, means: Mapping[str, np.ndarray], boxes: tuple[int, int] | None, label: str) -> str:
    """Where an order begins and where it ends: the mean place of each position, from 0 (first) to 1; NaN where always given.

    ``boxes`` are the rows and columns of a board's boxes; without them the positions are a line.
    """
    ramp = ListedColormap([_unit(heat(share)) for share in np.linspace(0, 1, 101)])
    many = len(means)
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        across = min(4, many) if boxes else 1
        down = -(-many // across)
        figure = Figure(figsize=(2.1 * across + 0.9, 2.3 * down) if boxes else (WIDTH, 0.5 + 0.62 * many))
        shown: list[Axes] = []
        image = None
        for nth, (order, mean) in enumerate(means.items()):
            axes = figure.add_subplot(down, across, nth + 1)
            grid = mean.reshape(round(mean.size**0.5), -1) if boxes else mean[None]
            image = axes.imshow(
                np.ma.masked_invalid(grid), cmap=ramp, vmin=0, vmax=1, aspect="equal" if boxes else "auto"
            )
            axes.set_title(order)
            axes.set_xticks([])
            axes.set_yticks([])
            if boxes:
                for edge in range(boxes[0], grid.shape[0], boxes[0]):
                    axes.axhline(edge - 0.5, color=INK, linewidth=1)
                for edge in range(boxes[1], grid.shape[1], boxes[1]):
                    axes.axvline(edge - 0.5, color=INK, linewidth=1)
            shown.append(axes)
        assert image is not None
        bar = figure.colorbar(image, ax=shown, ticks=[0, 0.5, 1], shrink=0.8, pad=0.03)
        bar.ax.set_yticklabels(["first", "middle", "last"])
        bar.ax.tick_params(length=0)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        return _svg(figure, name, label)


def _legend(figure: Figure) -> tuple[list, list[str]]:
    """Each label of any panel once."""
    found = {}
    for axes in figure.axes:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, line)
    return list(found.values()), list(found)


def _unit(colour: str) -> tuple[float, ...]:
    return tuple(int(value) / 255 for value in re.findall(r"\d+", colour))


def _svg(figure: Figure, name: str, label: str) -> str:
    """For a page: scales with it, takes its colours and font, and shares no id with another figure."""
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\b(id=")', rf"\1{name}-", text)
    text = re.sub(r'(url\(#|href="#)', rf"\1{name}-", text)
    text = text.replace("*{stroke-linejoin", f"#{name} *{{stroke-linejoin")
    text = re.sub(r"'DejaVu Sans'[^;\"]*", FONT.replace('"', "'"), text)
    text = text.replace(INK, "currentColor").replace(LINE, "var(--line, #d0d4da)")
    wide = figure.get_size_inches()[0] * 96
    head = f'<svg id="{name}" role="img" aria-label="{escape(label)}" style="width:100%;max-width:{wide:.0f}px;height:auto"'
    return re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf"{head} \1>", text, count=1, flags=re.DOTALL)
