"""An evaluation as tables: numbers formatted, differences marked strong only when their paired interval leaves out 0."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from unmask.decoding.protocols import needs_truth
from unmask.evaluation.evaluate import Report, Row
from unmask.evaluation.statistics import compare, paired_bootstrap
from unmask.runs.names import build
from unmask.schedulers.loading import SCHEDULERS

MOST_PAIRED = 10


def table(report: Report) -> dict[str, Any]:
    """The headline table. A difference is strong only when its paired interval leaves out 0."""
    versus = next((row.versus for row in report.rows if row.versus), None)
    return {
        "several": len({row.decoding for row in report.rows}) > 1,
        "baseline": versus and versus.baseline,
        "priced": any(math.isfinite(row.nll) for row in report.rows),
        "rows": [_row(row) for row in report.rows],
    }


def lead(report: Report) -> str:
    """The evaluation in a sentence: the best order that does not know the truth, beside the baseline."""
    rows = [row for row in report.rows if not is_oracle(row.scheduler)] or report.rows
    best = max(rows, key=lambda row: row.exact)
    text = f"{best.scheduler} solves {_share(best)} of {report.n:,} problems"
    base = next(
        (
            row
            for row in report.rows
            if best.versus and (row.scheduler, row.decoding) == (best.versus.baseline, best.decoding)
        ),
        None,
    )
    if best.versus is None or base is None:
        return f"{text}; no order does better." if len(rows) > 1 else f"{text}."
    v = best.versus
    sure = "" if differs(best) else "; these problems show no difference"
    points, limits = signed(v.difference, v.low, v.high)
    return (
        f"{text}, {v.baseline} {_share(base)}: {points} points {limits} in pairs, {v.won} won and {v.lost} lost{sure}."
    )


def _share(row: Row) -> str:
    return f"{100 * row.exact:.1f} % [{100 * row.exact_low:.1f}, {100 * row.exact_high:.1f}]"


def is_oracle(scheduler: str) -> bool:
    name = scheduler.partition(":")[0]
    return name in SCHEDULERS and needs_truth(build(name, SCHEDULERS, "scheduler"))


def _row(row: Row) -> dict[str, Any]:
    out = {
        "order": row.scheduler,
        "decoding": row.decoding,
        "oracle": is_oracle(row.scheduler),
        "solved": _limits(row.exact, row.exact_low, row.exact_high, 1),
        "cells": _limits(row.cell, row.cell_low, row.cell_high, 2),
        "nll": f"{row.nll:.2f}" if math.isfinite(row.nll) else "",
        "calls": f"{row.denoiser_calls:.1f}",
        "ms": f"{1000 * row.seconds / row.n:.0f}",
        "versus": None,
        "strong": differs(row),
    }
    if row.versus is not None:
        v = row.versus
        out["versus"] = (*signed(v.difference, v.low, v.high), v.won, v.lost, _p(v.p))
    return out


def _limits(value: float, low: float, high: float, digits: int) -> tuple[str, str]:
    return f"{100 * value:.{digits}f}", f"[{100 * low:.{digits}f}, {100 * high:.{digits}f}]" if math.isfinite(
        low
    ) else ""


def minus(text: str) -> str:
    return text.replace("-", "−")


def signed(value: float, low: float, high: float) -> tuple[str, str]:
    """A difference in points and its limits."""
    return minus(f"{100 * value:+.1f}"), minus(f"[{100 * low:+.1f}, {100 * high:+.1f}]")


def _p(p: float) -> str:
    return f"{p:.2g}" if p > 0 else "< 1e-300"


def name_of(row: Row, several: bool) -> str:
    return f"{row.scheduler}, {row.decoding}" if several else row.scheduler


def differs(row: Row) -> bool:
    return row.versus is not None and (row.versus.low > 0 or row.versus.high < 0)


def better(row: Row) -> bool:
    return row.versus is not None and row.versus.low > 0


def pairs(report: Report) -> list[dict[str, Any]]:
    """Every two orders of a decoding on the same problems, from what each solved."""
    if not 3 <= len(report.rows) <= MOST_PAIRED:
        return []
    out = []
    for a, b in itertools.combinations(sorted(report.rows, key=lambda row: -row.exact), 2):
        if a.decoding == b.decoding and a.n == b.n:
            mine, theirs = (np.array([mark == "1" for mark in row.solved]) for row in (a, b))
            test, limits = compare(mine, theirs), paired_bootstrap(mine, theirs)
            out.append(
                {
                    "a": a.scheduler,
                    "b": b.scheduler,
                    "decoding": a.decoding,
                    "difference": signed(limits.mean, limits.low, limits.high),
                    "strong": limits.low > 0 or limits.high < 0,
                    "won": test.won,
                    "lost": test.lost,
                    "p": _p(test.p),
                }
            )
    return out
