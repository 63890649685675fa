"""One checked statement: two numbers, how they should relate, and whether they do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE = 1e-6
APART = 1e-4
"""What must be equal may differ by rounding (relative to its size); what must differ is farther apart than this."""


@dataclass(frozen=True)
class Claim:
    """``left relation right``. ``label`` is the paper's; ``!=`` and ``>`` mark variants that lack an assumption and must fail.

    Over several canvases the sides are means, and the claim holds if it holds on each.
    """

    claim: str
    label: str
    left: float
    relation: str
    right: float
    holds: bool
    note: str = ""


def check(
    claim: str,
    label: str,
    left: float | Sequence[float],
    relation: str,
    right: float | Sequence[float],
    note: str = "",
    within: float | Sequence[float] = TOLERANCE,
) -> Claim:
    """``within`` is the tolerance of ``=``, ``<=``, ``>=`` (relative) and of ``~`` (absolute)."""
    lefts, rights = ([float(x)] if isinstance(x, int | float) else [float(v) for v in x] for x in (left, right))
    widths = [within] * len(lefts) if isinstance(within, int | float) else list(within)
    holds = all(_related(a, relation, b, w) for a, b, w in zip(lefts, rights, widths, strict=True))
    return Claim(claim, label, _mean(lefts), relation, _mean(rights), holds, note)


def _related(a: float, relation: str, b: float, within: float) -> bool:
    slack = within * (1 + max(abs(a), abs(b)))
    match relation:
        case "=":
            return abs(a - b) <= slack
        case "<=":
            return a <= b + slack
        case ">=":
            return a >= b - slack
        case "~":
            return abs(a - b) <= within
        case "!=":
            return abs(a - b) > APART
        case ">":
            return a > b + APART
    raise ValueError(f"a relation must be one of = <= >= ~ != >, got {relation!r}")


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
