"""Intervals and paired tests for reported numbers: deterministic functions without state.

Symbols: n observations, x successes, z the normal quantile of the level; *won* (*lost*) counts the pairs in which only `a`
(only `b`) succeeded. Without observations an interval is everything that is possible.

    wilson            x of n                         score interval (Wilson 1927)
    mcnemar_exact     won, lost                      two-sided exact binomial test
    compare           two boolean arrays, paired     difference, interval (Bonett & Price 2012), p
    paired_bootstrap  two arrays of numbers, paired  mean difference, percentile interval
    mean_interval     a few numbers, e.g. one a seed mean, Student's t interval

scipy.stats takes half a second to import, so the function that needs it imports it.
"""

from dataclasses import dataclass
from math import inf, nan, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

CHUNK = 4_000_000
"""Resampled indices held in memory at a time."""


@dataclass(frozen=True)
class Interval:
    """A mean (or mean difference) and its confidence limits."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """`a` against `b` on the same items: `difference` is mean(a) - mean(b) with its limits, `p` McNemar's."""

    won: int
    lost: int
    difference: float
    low: float
    high: float
    p: float


def wilson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a proportion: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n).

    Unlike p ± z·se it stays inside [0, 1] and has a width at p = 0 and p = 1.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"expected 0 <= successes <= n, got successes={successes}, n={n}")
    z = _normal_quantile(level)
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    centre = p + z * z / (2 * n)
    reach = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # Rounding must not turn the exact 0 and 1 of the extreme counts into 1e-17 and 0.9999.
    low = 0.0 if successes == 0 else (centre - reach) / scale
    high = 1.0 if successes == n else (centre + reach) / scale
    return low, high


def mcnemar_exact(won: int, lost: int) -> float:
    """Two-sided exact McNemar test: p = min(1, 2·P(X <= min(won, lost))), X ~ Binomial(won + lost, 1/2)."""
    from scipy.stats import binomtest

    if won < 0 or lost < 0:
        raise ValueError(f"expected counts >= 0, got won={won}, lost={lost}")
    return float(binomtest(won, won + lost).pvalue) if won + lost else 1.0


def compare(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Paired:
    """Compare two outcomes (success or not) on the same items.

    The interval is Bonett & Price's: Wald's after one more win and one more loss. It keeps its coverage on
    small samples, errs on the wide side when few pairs differ, and has a width when none does, where a
    bootstrap has none. It does not invert the test: p may exceed 1 - level although the interval excludes 0, since
    the exact test is conservative.
    """
    a_success, b_success = _outcomes(a, "a"), _outcomes(b, "b")
    _same_length(a_success, b_success)
    n = len(a_success)
    won, lost = int((a_success & ~b_success).sum()), int((b_success & ~a_success).sum())
    difference = (won - lost) / n if n else nan
    p_won, p_lost = (won + 1) / (n + 2), (lost + 1) / (n + 2)
    centre = p_won - p_lost
    reach = _normal_quantile(level) * sqrt((p_won + p_lost - centre**2) / (n + 2))
    low, high = max(-1.0, centre - reach), min(1.0, centre + reach)
    if n:  # at low levels the shrunken centre can leave an extreme difference outside
        low, high = min(low, difference), max(high, difference)
    return Paired(won, lost, difference, low, high, mcnemar_exact(won, lost))


def paired_bootstrap(
    a: ArrayLike, b: ArrayLike, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Mean of a - b over pairs, with the percentile interval of `resamples` bootstrap means.

    One pair has no spread: its interval is (-inf, inf). Pairs that all differ by the same amount
    give a point, so use `compare` for successes and `mean_interval` for a handful of numbers.
    """
    _normal_quantile(level)  # rejects a level outside (0, 1)
    if resamples < 1:
        raise ValueError(f"expected resamples >= 1, got {resamples}")
    a_values, b_values = _numbers(a, "a"), _numbers(b, "b")
    _same_length(a_values, b_values)
    n = len(a_values)
    if n == 0:
        return Interval(nan, -inf, inf)
    differences = a_values - b_values
    mean = float(differences.mean())
    if n == 1:
        return Interval(mean, -inf, inf)
    generator = np.random.default_rng(seed)
    values, counts = np.unique(differences, return_counts=True)
    if len(values) == 1:  # a point exactly, whatever the rounding of a sum
        return Interval(mean, mean, mean)
    if len(values) <= 64:  # outcomes and ratings: draw how often each value comes up, not which pair
        means = generator.multinomial(n, counts / n, size=resamples) @ values / n
    else:
        rows = max(1, CHUNK // n)
        sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
        means = np.concatenate([differences[generator.integers(n, size=(size, n))].mean(axis=1) for size in sizes])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high))


def mean_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Student's t interval, mean ± t_{n-1} s/√n. Fit for a few seeds, where a bootstrap is far too narrow."""
    _normal_quantile(level)  # rejects a level outside (0, 1)
    numbers = _numbers(values, "values")
    n = len(numbers)
    if n == 0:
        return Interval(nan, -inf, inf)
    mean = float(numbers.mean())
    if n == 1:
        return Interval(mean, -inf, inf)
    if (numbers == numbers[0]).all():
        return Interval(float(numbers[0]), float(numbers[0]), float(numbers[0]))
    reach = float(stdtrit(n - 1, (1 + level) / 2)) * float(numbers.std(ddof=1)) / sqrt(n)
    return Interval(mean, mean - reach, mean + reach)


def _normal_quantile(level: float) -> float:
    """z with P(|Z| <= z) = level."""
    if not 0 < level < 1:
        raise ValueError(f"expected a confidence level between 0 and 1 such as 0.95, got {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def _outcomes(values: ArrayLike, name: str) -> np.ndarray:
    """[n] booleans; zeros and ones are accepted."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"expected {name} to be one-dimensional, got shape {array.shape}")
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise ValueError(f"expected {name} to hold successes (True/False), got other values; use paired_bootstrap")
    return array.astype(bool)


def _numbers(values: ArrayLike, name: str) -> np.ndarray:
    """[n] finite doubles."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"expected {name} to be one-dimensional, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"expected {name} to be finite, got {array[~np.isfinite(array)][0]}; drop or repair it first")
    return array


def _same_length(a: np.ndarray, b: np.ndarray) -> None:
    if len(a) != len(b):
        raise ValueError(f"expected a and b on the same items, got {len(a)} and {len(b)} of them")
