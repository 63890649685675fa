"""What traces say in a report: when orders go wrong, where they begin and end, and the few cases worth a look in the viewer."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.report import figures
from unmask.report.traces.format import Trace, TracedPath, as_json
from unmask.report.viewer import page as viewer

MOST_CASES = 4
MOST_BYTES = 4_000_000  # of the cases together: long texts have large traces, and a page must open
LEARNED = ("sas", "learned")
"""How the names of learned orders begin."""


def traces(given: Sequence[Trace]) -> dict[str, Any] | None:
    """What many traces say together, and the few that are worth a look, in the viewer."""
    if not given:
        return None
    together = viewer.merged(given)
    orders = list(dict.fromkeys(path.scheduler for trace in together for path in trace.paths))
    known = {
        o: [(t, p) for t in together for p in t.paths if p.scheduler == o and t.target is not None] for o in orders
    }
    fails = {o: [t.first_wrong(p) for t, p in pairs] for o, pairs in known.items()}
    shares = {
        o: [k / len(p.order) for k, (_, p) in zip(fails[o], pairs, strict=True) if k is not None]
        for o, pairs in known.items()
        if pairs
    }
    cases = _cases(together)
    return {
        "count": len(together),
        "first_wrong": figures.first_wrong(
            "first-wrong", shares, {o: len(known[o]) for o in shares}, "When the first wrong reveal happens"
        )
        if any(shares.values())
        else None,
        "maps": _maps(together, orders),
        "cases": [{"title": title, "cases": [case for case, _ in some]} for title, some in cases.items() if some],
        "viewer": viewer.page([trace for some in cases.values() for _, trace in some], title="Cases"),
    }


def _maps(together: Sequence[Trace], orders: Sequence[str]) -> str | None:
    """The mean place of each position, over the traces of the commonest shape."""
    (length, kind), _ = Counter((len(trace.prompt), trace.kind) for trace in together).most_common(1)[0]
    same = [trace for trace in together if (len(trace.prompt), trace.kind) == (length, kind)]
    if len(same) < 2:
        return None
    means = {}
    for order in orders:
        total, count = np.zeros(length), np.zeros(length)
        for trace in same:
            for path in (path for path in trace.paths if path.scheduler == order and path.order):
                where = list(path.order)
                total[where] += np.arange(len(where)) / max(1, len(where) - 1)
                count[where] += 1
        if count.any():
            means[order] = np.divide(total, count, out=np.full(length, np.nan), where=count > 0)
    board = same[0].grid
    boxes = (board.box_rows, board.box_cols) if board else None
    return figures.order_maps("maps", means, boxes, "Mean place of each position in the order") if means else None


def _cases(together: Sequence[Trace]) -> dict[str, list[tuple[dict[str, Any], Trace]]]:
    """The problems on which the learned order gains most over confidence, and those on which it does worst.

    Without a learned order it is the best of the others; without confidence, the first path is what they are compared with.
    """

    def right(trace: Trace, path: TracedPath) -> float:
        return 1 - trace.wrong(path).sum() / max(1, len(path.order))

    scored, learned_too = [], any(path.scheduler.startswith(LEARNED) for trace in together for path in trace.paths)
    for trace in together:
        base = next((path for path in trace.paths if path.scheduler.startswith("confidence")), trace.paths[0])
        best = max(
            (path for path in trace.paths if path is not base), key=lambda path: right(trace, path), default=base
        )
        learned = next((path for path in trace.paths if path.scheduler.startswith(LEARNED)), best)
        scored.append((right(trace, learned) - right(trace, base), right(trace, learned), trace))
    order = sorted(range(len(scored)), key=lambda nth: (-scored[nth][0], -scored[nth][1], nth))
    best = [nth for nth in order if scored[nth][0] > 0][:MOST_CASES]
    # Worst means that something is wrong there: a problem that everybody solves is no case, unless there are no others.
    worst = [nth for nth in order[::-1] if nth not in best and (scored[nth][0] < 0 or scored[nth][1] < 1)][:MOST_CASES]
    rest = [nth for nth in order if nth not in best + worst][: max(0, MOST_CASES - len(best + worst))]
    number = itertools.count()

    def told(nth: int) -> tuple[dict[str, Any], Trace]:
        trace = scored[nth][2]
        text = "; ".join(f"{path.scheduler}: {_verdict(trace, path)}" for path in trace.paths)
        case = {"number": next(number), "problem": trace.problem, "denoiser": trace.denoiser, "told": text}
        return case, trace

    best, worst, rest = _within(scored, best, worst, rest)
    return {
        "Where the learned order gains most" if learned_too else "Where an order gains most": [
            told(nth) for nth in best
        ],
        "Where it does worst": [told(nth) for nth in worst],
        "Others": [told(nth) for nth in rest],
    }


def _within(scored: Sequence[tuple[float, float, Trace]], *groups: list[int]) -> list[list[int]]:
    """What fits into a page, the first of each group before the second of any; always one."""
    room, kept = MOST_BYTES, set()
    turns = [nth for turn in itertools.zip_longest(*groups) for nth in turn if nth is not None]
    for nth in turns:
        room -= len(viewer.embedded(as_json(scored[nth][2])))
        if room < 0 and kept:
            break
        kept.add(nth)
    return [[nth for nth in group if nth in kept] for group in groups]


def _verdict(trace: Trace, path: TracedPath) -> str:
    first = trace.first_wrong(path)
    if trace.target is None:
        return f"{path.steps} steps"
    if first is None:
        return "all right"
    return f"{int(trace.wrong(path).sum())} wrong of {len(path.order)}, the first at step {path.step[first] + 1}"
