"""The figure of the README: two schedulers on one puzzle, as an SVG that stands alone, without the styles of a page."""

from __future__ import annotations

import re
from html import escape as escape_html

from unmask.report.terminal.console import printable
from unmask.report.terminal.tables import heat
from unmask.report.traces.format import Trace, TracedTrajectory

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


def hero(trace: Trace, left: str | None = None, right: str | None = None) -> str:
    """Two schedulers on one puzzle side by side, cells coloured by step, wrong ones crossed."""
    if trace.grid is None:
        raise ValueError("the figure shows boards: expected a trace of a puzzle, got text")
    if len(trace.trajectories) < 2:
        raise ValueError(
            f"the figure compares two schedulers, but the trace has {[trajectory.scheduler for trajectory in trace.trajectories]}"
        )
    failing = [trajectory for trajectory in trace.trajectories if trace.solved(trajectory) is False]
    first = trace.trajectory(left) if left else (failing or list(trace.trajectories))[0]
    rest = [trajectory for trajectory in trace.trajectories if trajectory is not first]
    second = (
        trace.trajectory(right)
        if right
        else next((trajectory for trajectory in rest if trace.solved(trajectory)), rest[0])
    )
    cell, gap, top, edge = 44, 64, 86, 28
    side = cell * trace.grid.size
    width, height = 2 * side + gap + 2 * edge, top + side + 74
    ramp = "".join(f'<stop offset="{n}%" stop-color="{heat(n / 100)}"/>' for n in (0, 25, 50, 75, 100))
    under, ramp_at = height - 42, width - edge - 360
    label = f"{_summarize(trace, first)}; {_summarize(trace, second)}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(label)}" font-family="{escape(FONT)}">',
            f"<title>{escape(label)}</title>",
            f'<defs><linearGradient id="ramp">{ramp}</linearGradient><pattern id="hatch" width="7" height="7" '
            'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V7" stroke="#14181f" stroke-width="2" '
            'stroke-opacity=".35"/></pattern></defs>',
            f'<rect width="{width}" height="{height}" rx="14" fill="#ffffff"/>',
            *_board(trace, first, edge, top, cell),
            *_board(trace, second, edge + side + gap, top, cell),
            f'<g font-size="14" fill="#59626e"><text x="{edge}" y="{under + 11}">one frozen model, one puzzle, two orders</text>',
            f'<text x="{ramp_at - 10}" y="{under + 11}" text-anchor="end">first reveal</text>',
            f'<rect x="{ramp_at}" y="{under}" width="180" height="12" rx="6" fill="url(#ramp)"/>',
            f'<text x="{ramp_at + 190}" y="{under + 11}">last reveal</text>',
            f'<rect x="{ramp_at + 290}" y="{under - 3}" width="18" height="18" fill="url(#hatch)" stroke="#5a6472"/>',
            f'<text x="{ramp_at + 316}" y="{under + 11}">wrong</text></g>',
            "</svg>\n",
        ]
    )


def _board(trace: Trace, trajectory: TracedTrajectory, left: int, top: int, cell: int) -> list[str]:
    assert trace.grid is not None
    shape, wrong = trace.grid, trace.wrong(trajectory)
    size, side = shape.size, shape.size * cell
    step = dict(zip(trajectory.order, trajectory.step, strict=True))
    first = trace.first_wrong(trajectory)
    verdict, colour = (
        ("✓ solved", "#11603a") if trace.solved(trajectory) else (f"✗ {wrong.sum()} cells wrong", "#9c1f0a")
    )
    name = "learned order (SAS)" if trajectory.scheduler == "sas" else f"{trajectory.scheduler} order"
    out = [
        f'<text x="{left}" y="{top - 44}" font-size="20" font-weight="650" fill="#14181f">{escape(name)}</text>',
        f'<text x="{left}" y="{top - 18}" font-size="15" font-weight="600" fill="{colour}">{verdict}'
        + (f", the first at step {trajectory.step[first] + 1}" if first is not None else "")
        + "</text>",
    ]
    for position, token in enumerate(trajectory.tokens):
        x, y = left + position % size * cell, top + position // size * cell
        fill = "#ffffff"
        if position in step:
            red, green, blue = (
                round(0.72 * int(c) + 0.28 * 255)
                for c in re.findall(r"\d+", heat(step[position] / max(1, trajectory.steps - 1)))
            )
            fill = f"rgb({red},{green},{blue})"
        out.append(f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="{fill}" stroke="#dcdfe4"/>')
        if wrong[position]:
            out.append(f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="url(#hatch)"/>')
            out.append(f'<path d="M{x + 31} {y + 6}l7 7m0 -7l-7 7" stroke="#14181f" stroke-width="2.2"/>')
        weight = 400 if position in step else 700
        out.append(
            f'<text x="{x + cell / 2}" y="{y + cell * 0.68}" font-size="22" font-weight="{weight}" text-anchor="middle" '
            f'fill="#14181f">{escape(trace.labels[token])}</text>'
        )
        if position in step:
            out.append(f'<text x="{x + 4}" y="{y + 12}" font-size="9.5" fill="#14181f">{step[position] + 1}</text>')
    for n in range(size + 1):
        for along, box in ((n % shape.box_rows, "row"), (n % shape.box_cols, "column")):
            if along == 0:
                line = f"M{left} {top + n * cell}h{side}" if box == "row" else f"M{left + n * cell} {top}v{side}"
                out.append(f'<path d="{line}" stroke="#5a6472" stroke-width="2" stroke-linecap="square"/>')
    if first is not None:
        x, y = left + trajectory.order[first] % size * cell + 1.5, top + trajectory.order[first] // size * cell + 1.5
        box = f'x="{x}" y="{y}" width="{cell - 3}" height="{cell - 3}"'
        out.append(f'<rect {box} fill="none" stroke="#14181f" stroke-width="3.5"/>')
    return out


def _summarize(trace: Trace, trajectory: TracedTrajectory) -> str:
    wrong = int(trace.wrong(trajectory).sum())
    return f"{trajectory.scheduler}: {'solved' if trace.solved(trajectory) else f'{wrong} cells wrong'}"


def escape(text: str) -> str:
    """For XML, which cannot hold control characters."""
    return escape_html(printable(text))
