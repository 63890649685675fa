"""An evaluation as tables of formatted numbers. A difference is strong only when its paired interval excludes 0."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

from unmask.decoding.protocols import needs_truth
from unmask.evaluation.evaluate import Report, Row, Versus
from unmask.report import numbers
from unmask.runs.names import build
from unmask.schedulers.loading import SCHEDULERS
from unmask.tasks.sudoku.techniques import TECHNIQUES

MOST_PAIRED = 10


def table(report: Report) -> dict[str, Any]:
    """The headline table. A difference is strong only when its paired interval excludes 0."""
    versus = next((row.versus for row in report.rows if row.versus), None)
    return {
        "several": len({row.decoding for row in report.rows}) > 1,
        "baseline": versus and versus.baseline,
        "priced": any(math.isfinite(row.nll) for row in report.rows),
        "published": any(row.published is not None for row in report.rows),
        "rows": [_row(row) for row in report.rows],
    }


def lead(report: Report) -> str:
    """The evaluation in a sentence: the best scheduler without access to the truth, and the baseline."""
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
        return f"{text}; no scheduler does better." if len(rows) > 1 else f"{text}."
    v = best.versus
    sure = "" if differs(best) else "; these problems show no difference"
    points, limits = _points(v.difference, v.low, v.high)
    return (
        f"{text}, {v.baseline} {_share(base)}: a paired difference of {points} points {limits}, "
        f"{v.won} won and {v.lost} lost{sure}."
    )


def _share(row: Row) -> str:
    return f"{numbers.percent(row.exact)} % {numbers.percent_limits(row.exact_low, row.exact_high)}"


def is_oracle(scheduler: str) -> bool:
    name = scheduler.partition(":")[0]
    return name in SCHEDULERS and needs_truth(build(name, SCHEDULERS, "scheduler"))


def _row(row: Row) -> dict[str, Any]:
    out = {
        "scheduler": row.scheduler,
        "decoding": row.decoding,
        "oracle": is_oracle(row.scheduler),
        "solved": (numbers.percent(row.exact), numbers.percent_limits(row.exact_low, row.exact_high)),
        "cells": (numbers.percent(row.cell, 2), numbers.percent_limits(row.cell_low, row.cell_high, 2)),
        "nll": numbers.number(row.nll) if math.isfinite(row.nll) else "",
        "calls": f"{row.denoiser_calls:.1f}",
        "ms": f"{1000 * row.seconds / row.n:.0f}",
        "published": "" if row.published is None else numbers.percent(row.published),
        "versus": None,
        "strong": differs(row),
    }
    if row.versus is not None:
        v = row.versus
        out["versus"] = (*_points(v.difference, v.low, v.high), v.won, v.lost, numbers.p_value(v.p))
    return out


def _points(difference: float, low: float, high: float) -> tuple[str, str]:
    """The two parts of ``numbers.points``: pages print the limits smaller."""
    value, limits = numbers.points(difference, low, high).split(" ", 1)
    return value, limits


def name_of(row: Row, several: bool) -> str:
    return f"{row.scheduler}, {row.decoding}" if several else row.scheduler


def differs(row: Row) -> bool:
    return row.versus is not None and numbers.excludes_zero(row.versus.low, row.versus.high)


def is_better(row: Row) -> bool:
    return row.versus is not None and row.versus.low > 0


def sort_strata(strata: Iterable[str]) -> list[str]:
    """The easiest first, where the strata are techniques of Sudoku."""
    known = ("full", *TECHNIQUES)
    return sorted(strata, key=lambda label: known.index(label) if label in known else len(known))


def pairs(report: Report) -> list[dict[str, Any]]:
    """Every two schedulers of a decoding, compared on the same problems."""
    if not 3 <= len(report.rows) <= MOST_PAIRED:
        return []
    out = []
    for a, b in itertools.combinations(sorted(report.rows, key=lambda row: -row.exact), 2):
        if a.decoding == b.decoding and a.n == b.n:
            v = Versus.of(b.scheduler, a.marks, b.marks)
            out.append(
                {
                    "a": a.scheduler,
                    "b": b.scheduler,
                    "decoding": a.decoding,
                    "difference": _points(v.difference, v.low, v.high),
                    "strong": numbers.excludes_zero(v.low, v.high),
                    "won": v.won,
                    "lost": v.lost,
                    "p": numbers.p_value(v.p),
                }
            )
    return out
