"""How tables, pages, terminals and figures write numbers: percentages, intervals, signed differences, p-values.

A share is a number in 0 … 1 and is written in percent; a difference of two shares is written in percentage points. An interval is
its value, then its limits in brackets: ``71.2 [69.0, 73.4]``. Negative numbers have a minus sign (−), not a hyphen.
"""

from __future__ import annotations

import math


def percent(share: float, digits: int = 1) -> str:
    """``0.712`` → ``71.2``, without the sign: columns name the unit."""
    return number(100 * share, digits)


def percent_limits(low: float, high: float, digits: int = 1) -> str:
    """``[69.0, 73.4]``; empty where the limits are unknown (NaN)."""
    return limits(100 * low, 100 * high, digits)


def percent_interval(share: float, low: float, high: float, digits: int = 1) -> str:
    """``71.2 [69.0, 73.4]``."""
    return interval(100 * share, 100 * low, 100 * high, digits)


def points(difference: float, low: float, high: float, digits: int = 1) -> str:
    """A difference of shares in percentage points: ``+2.1 [−0.3, +4.5]``."""
    return interval(100 * difference, 100 * low, 100 * high, digits, signed=True)


def won_lost(won: int, lost: int) -> str:
    """Problems that only the one scheduler solves, and those that only the other does: ``+12 −3``."""
    return f"+{won} −{lost}"


def interval(value: float, low: float, high: float, digits: int = 2, signed: bool = False) -> str:
    """A number and its limits as they are: ``4.25 [4.10, 4.40]``."""
    return f"{number(value, digits, signed)} {limits(low, high, digits, signed)}".rstrip()


def limits(low: float, high: float, digits: int = 2, signed: bool = False) -> str:
    """``[4.10, 4.40]``; empty where the limits are unknown (NaN)."""
    if not math.isfinite(low):
        return ""
    return f"[{number(low, digits, signed)}, {number(high, digits, signed)}]"


def number(value: float, digits: int = 2, signed: bool = False) -> str:
    """``−4.25``; ``signed`` writes the plus sign, too."""
    return f"{value:{'+' if signed else ''}.{digits}f}".replace("-", "−")


def p_value(p: float) -> str:
    """Two digits; below what a float can hold, the bound."""
    return f"{p:.2g}" if p > 0 else "< 1e-300"


def excludes_zero(low: float, high: float) -> bool:
    """Whether an interval shows a difference: tables print only such differences in bold."""
    return low > 0 or high < 0
