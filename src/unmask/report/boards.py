"""The figure of the README: two schedulers on one puzzle, as an SVG that stands alone, without the styles of a page."""

from __future__ import annotations

import re
from typing import Any

from unmask.report import templates
from unmask.report.terminal.console import printable
from unmask.report.terminal.tables import heat
from unmask.report.traces.format import Trace, TracedTrajectory

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


def hero(trace: Trace, left: str | None = None, right: str | None = None) -> str:
    """Two schedulers on one puzzle side by side, cells coloured by step, wrong ones crossed.

    Each cell appears at its step, by style sheet alone, so that it also moves where scripts do not run (an image in a README).
    Readers who prefer reduced motion see the last frame.
    """
    if trace.grid is None:
        raise ValueError("the figure shows boards: expected a trace of a puzzle, got text")
    if len(trace.trajectories) < 2:
        names = [trajectory.scheduler for trajectory in trace.trajectories]
        raise ValueError(f"the figure compares two schedulers, but the trace has {names}")
    shown = _choose_pair(trace, left, right)
    return templates.render(
        "hero.svg",
        font=FONT,
        label=printable("; ".join(_summarize(trace, one) for one in shown)),
        ramp=[(n, heat(n / 100)) for n in (0, 25, 50, 75, 100)],
        boards=[_board(trace, one) for one in shown],
        **{name: getattr(trace.grid, name) for name in ("size", "box_rows", "box_cols")},
    )


def _choose_pair(trace: Trace, left: str | None, right: str | None) -> tuple[TracedTrajectory, TracedTrajectory]:
    """The named ones, or else one that fails, and one that solves the puzzle."""
    failing = [one for one in trace.trajectories if trace.solved(one) is False]
    first = trace.trajectory(left) if left else (failing or list(trace.trajectories))[0]
    rest = [one for one in trace.trajectories if one is not first]
    return first, trace.trajectory(right) if right else next((one for one in rest if trace.solved(one)), rest[0])


def _board(trace: Trace, trajectory: TracedTrajectory) -> dict[str, Any]:
    wrong, first = trace.wrong(trajectory), trace.first_wrong(trajectory)
    step = dict(zip(trajectory.order, trajectory.step, strict=True))
    verdict = "✓ solved" if trace.solved(trajectory) else f"✗ {wrong.sum()} cells wrong"
    return {
        "name": printable("learned order (SAS)" if trajectory.scheduler == "sas" else f"{trajectory.scheduler} order"),
        "verdict": verdict + ("" if first is None else f", the first at step {trajectory.step[first] + 1}"),
        "solved": trace.solved(trajectory),
        "first": None if first is None else trajectory.order[first],
        "steps": trajectory.steps,
        "cells": [
            {
                "label": printable(trace.labels[token]),
                "wrong": wrong[position],
                "step": step[position] + 1 if position in step else 0,
                "fill": _pale(heat(step[position] / max(1, trajectory.steps - 1))) if position in step else "#ffffff",
            }
            for position, token in enumerate(trajectory.tokens)
        ],
    }


def _pale(colour: str) -> str:
    return "rgb({},{},{})".format(*(round(0.72 * int(part) + 0.28 * 255) for part in re.findall(r"\d+", colour)))


def _summarize(trace: Trace, trajectory: TracedTrajectory) -> str:
    wrong = int(trace.wrong(trajectory).sum())
    return f"{trajectory.scheduler}: {'solved' if trace.solved(trajectory) else f'{wrong} cells wrong'}"
