"""The viewer: traces in one self-contained HTML file, without a server, a network or a font of its own.

``viewer.html`` is the page, ``traces.js`` reads the traces, ``elements.js`` makes elements, ``pane.js`` shows one trajectory and
``viewer.js`` is the rest. Traces are embedded as JSON that cannot end its script element, and the page inserts text as text only:
a token may hold any markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unmask.report import templates
from unmask.report.traces.format import Trace, TracedTrajectory, as_json

TITLE = "The order of thought"


def page(traces: Sequence[Trace], title: str = TITLE, start: int = 0) -> str:
    """The whole page. It opens with the trace number ``start``."""
    if not traces:
        raise ValueError("there is nothing to view: expected at least one trace")
    together = merge_traces(traces)
    start = next(nth for nth, trace in enumerate(together) if trace.prompt == traces[start].prompt)
    return page_of_json([as_json(trace) for trace in together], title, start)


def merge_traces(traces: Sequence[Trace]) -> list[Trace]:
    """Traces of the same problem become one: its orders are side by side, also of two denoisers, budgets or, in text, blocks."""
    problems: dict[tuple, list[Trace]] = {}
    for trace in traces:
        region = trace.block if trace.grid is not None else tuple(block >= 0 for block in trace.block)
        problems.setdefault((trace.kind, trace.prompt, trace.target, trace.mask_id, region), []).append(trace)
    return [_together(same) if len(same) > 1 else same[0] for same in problems.values()]


def _together(traces: list[Trace]) -> Trace:
    apart = [field for field in ("denoiser", "decoding") if len({getattr(trace, field) for trace in traces}) > 1]
    trajectories: dict[str, TracedTrajectory] = {}
    for trace in traces:
        names = {
            trajectory.scheduler: ", ".join([trajectory.scheduler, *(getattr(trace, field) for field in apart)])
            for trajectory in trace.trajectories
        }
        for trajectory in trace.trajectories:
            # The same order of the same denoiser twice: it is the same trajectory, and once is enough.
            others = {names.get(name, name): choice for name, choice in trajectory.others.items()}
            trajectories.setdefault(
                names[trajectory.scheduler], replace(trajectory, scheduler=names[trajectory.scheduler], others=others)
            )
    denoisers, decodings = (
        ", ".join(dict.fromkeys(getattr(trace, field) for trace in traces)) for field in ("denoiser", "decoding")
    )
    labels = {token: text for trace in traces for token, text in trace.labels.items()}
    return replace(
        traces[0],
        denoiser=denoisers,
        decoding=decodings,
        block=_common_blocks([trace.block for trace in traces]),
        labels=labels,
        trajectories=tuple(trajectories.values()),
    )


def _common_blocks(blocks: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The blocks of all; where they differ, one block: a boundary would be that of one trajectory only."""
    return blocks[0] if len(set(blocks)) == 1 else tuple(min(number, 0) for number in blocks[0])


def page_of_json(traces: Any, title: str = TITLE, start: int = 0) -> str:
    """The page of traces that are JSON already."""
    return templates.render("viewer/viewer.html", title=title, traces={"traces": traces, "start": start})
