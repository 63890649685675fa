"""Evaluation reports written by hand, for tables and pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from unmask.evaluation.evaluate import Report, Row, Stratum, Versus, read_marks
from unmask.evaluation.statistics import wilson

NAN = float("nan")


def row(scheduler: str, solved: str, baseline: tuple[str, str] | None = None, **changes: Any) -> Row:
    right = read_marks(solved)
    versus = None
    if baseline is not None:
        versus = replace(Versus.of(baseline[0], right, read_marks(baseline[1])), p=0.5)
    low, high = wilson(int(right.sum()), len(right))
    half = len(right) // 2
    parts = {"naked_single": right[:half], "fallback": right[half:]}
    strata = {
        name: Stratum(len(part), float(part.mean()), *wilson(int(part.sum()), len(part)))
        for name, part in parts.items()
        if len(part)
    }
    made = Row(
        *(scheduler, "sequential", len(right), float(right.mean()), low, high, 0.9, 0.85, 0.95, NAN, NAN, NAN),
        *(41.8, 41.8, 3.0, versus, strata, solved),
    )
    return replace(made, **changes)


def evaluation(n: int = 200, names: tuple[str, ...] = ("margin", "sas", "gt_logp")) -> Report:
    """Confidence solves 60 %; margin differs on a few at random, sas and the oracle solve more."""
    generator = np.random.default_rng(0)
    base = generator.random(n) < 0.6
    marks = lambda right: "".join("1" if one else "0" for one in right)  # noqa: E731
    rows = [row("confidence", marks(base))]
    for place, name in enumerate(names):
        flipped = base ^ (generator.random(n) < 0.05) if place == 0 else base | (generator.random(n) < 0.3 * place)
        rows.append(row(name, marks(flipped), ("confidence", marks(base))))
    return Report("sudoku", "some puzzles", "small", n, 0, rows)
