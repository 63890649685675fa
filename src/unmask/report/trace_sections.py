"""Traces in a report: when schedulers go wrong, where their orders begin and end, and a few cases in the viewer."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.report import figures, templates
from unmask.report.svg import inline_svg
from unmask.report.traces.format import Trace, TracedTrajectory, as_json
from unmask.report.viewer import page as viewer

MOST_CASES = 4
MOST_BYTES = 4_000_000  # of the cases together: traces of long texts are large, and a page must open
LEARNED = ("sas", "learned")
"""How the names of learned policies begin."""


@dataclass(frozen=True, eq=False)
class Case:
    """A traced problem; ``gain`` is the difference of the shares that the policy and the baseline reveal correctly."""

    trace: Trace
    gain: float
    right: float


def traces(given: Sequence[Trace]) -> dict[str, Any] | None:
    """The section on traces: figures over all of them, and a few cases in the viewer."""
    if not given:
        return None
    merged = viewer.merge_traces(given)
    groups = {title: cases for title, cases in select_cases(merged).items() if cases}
    shown = [case.trace for cases in groups.values() for case in cases]
    number = itertools.count()
    return {
        "count": len(merged),
        "first_wrong": _first_wrong(merged),
        "maps": _maps(merged),
        "cases": [
            {"title": title, "cases": [_summarize(case.trace, next(number)) for case in cases]}
            for title, cases in groups.items()
        ],
        "viewer": viewer.page(shown, title="Cases"),
    }


def _by_scheduler(merged: Sequence[Trace]) -> dict[str, list[tuple[Trace, TracedTrajectory]]]:
    out: dict[str, list[tuple[Trace, TracedTrajectory]]] = {}
    for trace in merged:
        for trajectory in trace.trajectories:
            out.setdefault(trajectory.scheduler, []).append((trace, trajectory))
    return out


def _first_wrong(merged: Sequence[Trace]) -> str | None:
    """Where in the order each scheduler first goes wrong, over the traces whose truth is known."""
    places: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for name, traced in _by_scheduler([trace for trace in merged if trace.target is not None]).items():
        first = [(trace.first_wrong(trajectory), len(trajectory.order)) for trace, trajectory in traced]
        places[name] = [k / length for k, length in first if k is not None]
        counts[name] = len(traced)
    if not any(places.values()):
        return None
    figure = figures.first_wrong(places, counts, theme="page")
    return inline_svg(figure, "first-wrong", "When the first wrong reveal happens")


def _maps(merged: Sequence[Trace]) -> str | None:
    """The mean place of each position in the order, over the traces of the most common shape."""
    (shape, count), *_ = Counter((len(trace.prompt), trace.kind) for trace in merged).most_common(1)
    if count < 2:
        return None
    same = [trace for trace in merged if (len(trace.prompt), trace.kind) == shape]
    means = {
        name: _mean_place([trajectory for _, trajectory in traced], shape[0])
        for name, traced in _by_scheduler(same).items()
    }
    panels = {name: (mean, None, None) for name, mean in means.items() if not np.isnan(mean).all()}
    if not panels:
        return None
    grid = same[0].grid
    box = (grid.box_rows, grid.box_cols) if grid else None
    figure = figures.boards(panels, box, theme="page")
    return inline_svg(figure, "maps", "Mean place of each position in the order")


def _mean_place(trajectories: Sequence[TracedTrajectory], length: int) -> np.ndarray:
    """``[L]`` from 0 (first) to 1 (last); NaN where a position is never revealed."""
    total, count = np.zeros(length), np.zeros(length)
    for trajectory in trajectories:
        where = list(trajectory.order)
        total[where] += np.arange(len(where)) / max(1, len(where) - 1)
        count[where] += 1
    return np.divide(total, count, out=np.full(length, np.nan), where=count > 0)


def select_cases(merged: Sequence[Trace]) -> Mapping[str, list[Case]]:
    """The problems on which the learned policy gains most over confidence, and those on which it does worst.

    Without a learned policy it is the best of the others; without confidence, the first trajectory is the baseline.
    """
    cases = sorted((_compare(trace) for trace in merged), key=lambda case: (-case.gain, -case.right))
    best = [case for case in cases if case.gain > 0][:MOST_CASES]
    # Worst means that something is wrong: a problem that all solve is shown only if there are no others.
    worst = [case for case in cases[::-1] if case not in best and (case.gain < 0 or case.right < 1)][:MOST_CASES]
    rest = [case for case in cases if case not in best + worst][: max(0, MOST_CASES - len(best + worst))]
    best, worst, rest = _fit_page(best, worst, rest)
    learned = any(_is_learned(trajectory) for trace in merged for trajectory in trace.trajectories)
    return {
        "Where the learned policy gains most" if learned else "Where a scheduler gains most": best,
        "Where it does worst": worst,
        "Others": rest,
    }


def _compare(trace: Trace) -> Case:
    def share_right(trajectory: TracedTrajectory) -> float:
        return 1 - trace.wrong(trajectory).sum() / max(1, len(trajectory.order))

    named = (one for one in trace.trajectories if one.scheduler.startswith("confidence"))
    base = next(named, trace.trajectories[0])
    others = [one for one in trace.trajectories if one is not base]
    best = max(others, key=share_right, default=base)
    chosen = next(filter(_is_learned, trace.trajectories), best)
    return Case(trace, share_right(chosen) - share_right(base), share_right(chosen))


def _is_learned(trajectory: TracedTrajectory) -> bool:
    return trajectory.scheduler.startswith(LEARNED)


def _fit_page(*groups: list[Case]) -> list[list[Case]]:
    """As many cases as fit into a page, the first of each group before the second of any; at least one."""
    room, kept = MOST_BYTES, []
    for case in itertools.chain.from_iterable(itertools.zip_longest(*groups)):
        if case is None:
            continue
        room -= len(templates.embed_json(as_json(case.trace)))
        if room < 0 and kept:
            break
        kept.append(case)
    return [[case for case in group if case in kept] for group in groups]


def _summarize(trace: Trace, number: int) -> dict[str, Any]:
    summary = "; ".join(f"{one.scheduler}: {_verdict(trace, one)}" for one in trace.trajectories)
    return {"number": number, "problem": trace.problem, "denoiser": trace.denoiser, "summary": summary}


def _verdict(trace: Trace, trajectory: TracedTrajectory) -> str:
    first = trace.first_wrong(trajectory)
    if trace.target is None:
        return f"{trajectory.steps} steps"
    if first is None:
        return "all right"
    wrong = int(trace.wrong(trajectory).sum())
    return f"{wrong} wrong of {len(trajectory.order)}, the first at step {trajectory.step[first] + 1}"
