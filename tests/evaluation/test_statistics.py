"""Published values, hand-computed binomials, and coverage counted exactly or with fixed seeds."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.evaluation.statistics import (
    Interval,
    Paired,
    compare,
    mcnemar_exact,
    mean_interval,
    paired_bootstrap,
    wilson,
)


# Newcombe (1998), Statistics in Medicine 17, 857-872, table I, method 3.
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_published(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_the_score_equation(counts: tuple[int, int]) -> None:
    successes, n = counts
    low, high = wilson(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    z = 1.959963984540054
    for limit in (low, high):  # |p̂ - π| = z √(π(1-π)/n) at both limits
        assert abs(successes / n - limit) == pytest.approx(z * math.sqrt(limit * (1 - limit) / n), abs=1e-7)


def test_wilson_edges() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
    wide, narrow = wilson(5, 10, level=0.99), wilson(5, 10, level=0.8)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    for successes, n in [(-1, 5), (6, 5)]:
        with pytest.raises(ValueError, match="0 <= successes <= n"):
            wilson(successes, n)
    for level in (0.0, 1.0, 95.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            wilson(1, 2, level)


def test_wilson_coverage() -> None:
    """Exact coverage over the binomial: near the level on average, never far below it away from the edges."""
    n = 50
    intervals = np.array([wilson(x, n) for x in range(n + 1)])
    counts = np.array([math.comb(n, x) for x in range(n + 1)], dtype=float)
    x = np.arange(n + 1)
    rates = np.linspace(0.05, 0.95, 181)
    covered = [
        (counts * p**x * (1 - p) ** (n - x))[(intervals[:, 0] <= p) & (p <= intervals[:, 1])].sum() for p in rates
    ]
    assert 0.945 < np.mean(covered) < 0.96
    assert min(covered) > 0.92


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),  # 2 · 1/2
        (5, 0, 2 / 32),
        (0, 6, 2 / 64),
        (7, 1, 2 * (1 + 8) / 256),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
        (3, 3, 1.0),
        (4, 3, 1.0),
    ],
)
def test_mcnemar_by_hand(won: int, lost: int, p: float) -> None:
    assert mcnemar_exact(won, lost) == pytest.approx(p, rel=1e-12)
    assert mcnemar_exact(lost, won) == mcnemar_exact(won, lost)


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_against_whole_numbers(won: int, lost: int) -> None:
    n = won + lost
    tail = Fraction(sum(math.comb(n, k) for k in range(min(won, lost) + 1)), 2**n)
    assert mcnemar_exact(won, lost) == pytest.approx(float(min(Fraction(1), 2 * tail)), rel=1e-10)


def test_mcnemar_large_and_refused() -> None:
    assert mcnemar_exact(10_000, 0) == 0.0  # 2^-9999, below the smallest double
    z = (2_000 - 1) / math.sqrt(998_000)  # the normal approximation, continuity corrected
    assert mcnemar_exact(500_000, 498_000) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-3)
    with pytest.raises(ValueError, match=">= 0"):
        mcnemar_exact(-1, 3)


def outcomes(both: int, won: int, lost: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    a = np.repeat([True, True, False, False], [both, won, lost, neither])
    b = np.repeat([True, False, True, False], [both, won, lost, neither])
    return a, b


def test_compare_by_hand() -> None:
    """1 won, 7 lost of 21: (2 - 8)/23 ± 1.96 √((10/23 - (6/23)²)/23), and p = 2 (1 + 8)/256."""
    paired = compare(*outcomes(1, 1, 7, 12))
    assert (paired.won, paired.lost) == (1, 7)
    assert paired.difference == pytest.approx(-6 / 21)
    assert (paired.low, paired.high) == pytest.approx((-0.508, -0.013), abs=5e-4)
    assert paired.p == pytest.approx(0.0703, abs=5e-5)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1), st.sampled_from([0.5, 0.9, 0.95]))
def test_compare_properties(pairs: list[tuple[bool, bool]], level: float) -> None:
    a, b = np.array([x for x, _ in pairs]), np.array([y for _, y in pairs])
    forth, back = compare(a, b, level), compare(b, a, level)
    assert forth.difference == pytest.approx(a.mean() - b.mean())
    assert -1 <= forth.low <= forth.difference <= forth.high <= 1
    assert forth.low < forth.high
    assert (back.won, back.lost, back.p) == (forth.lost, forth.won, forth.p)
    assert (back.difference, back.low, back.high) == pytest.approx((-forth.difference, -forth.high, -forth.low))


def test_compare_edges() -> None:
    nothing = compare([], [])
    assert (nothing.won, nothing.lost, nothing.low, nothing.high, nothing.p) == (0, 0, -1.0, 1.0, 1.0)
    assert math.isnan(nothing.difference)
    same = compare(np.ones(100, bool), np.ones(100, bool))
    assert (same.difference, same.p) == (0.0, 1.0)
    assert -0.05 < same.low < 0 < same.high < 0.05
    assert compare([1, 0, 1], [0, 0, 1]) == compare([True, False, True], [False, False, True])
    with pytest.raises(ValueError, match="same items, got 2 and 3"):
        compare([True, False], [True, False, True])
    with pytest.raises(ValueError, match="use paired_bootstrap"):
        compare([0.5, 1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="one-dimensional"):
        compare(np.ones((2, 2), bool), np.ones((2, 2), bool))


@pytest.mark.parametrize(("p_won", "p_lost"), [(0.1, 0.1), (0.3, 0.1), (0.05, 0.02), (0.5, 0.3)])
def test_compare_coverage(p_won: float, p_lost: float) -> None:
    """Exact coverage over the trinomial (won, lost, tied) of 30 pairs."""
    n, covered = 30, 0.0
    for won in range(n + 1):
        for lost in range(n + 1 - won):
            tied = n - won - lost
            ways = math.comb(n, won) * math.comb(n - won, lost)
            paired = compare(*outcomes(0, won, lost, tied))
            if paired.low <= p_won - p_lost <= paired.high:
                covered += ways * p_won**won * p_lost**lost * (1 - p_won - p_lost) ** tied
    assert covered > 0.935
    if n * (p_won + p_lost) >= 6:  # with fewer pairs that differ, the two it adds make it wide
        assert covered < 0.985


def test_bootstrap_is_deterministic_and_paired() -> None:
    generator = np.random.default_rng(1)
    level = 10 * generator.normal(size=200)  # items differ far more than the two methods do
    a, b = level + 0.5 + generator.normal(size=200), level
    first = paired_bootstrap(a, b, seed=3)
    assert first == paired_bootstrap(a, b, seed=3)
    assert first != paired_bootstrap(a, b, seed=4)
    assert 0 < first.low < first.mean < first.high < 1
    assert first.mean == pytest.approx(np.mean(a - b))
    shuffled = paired_bootstrap(a, generator.permutation(b), seed=3)
    assert shuffled.high - shuffled.low > 5 * (first.high - first.low)


def test_bootstrap_ways_agree() -> None:
    """Few distinct differences are resampled by counts, many by index; a tiny jitter switches between them."""
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 2, 300), generator.integers(0, 2, 300)
    counted = paired_bootstrap(a, b)
    indexed = paired_bootstrap(a + 1e-9 * generator.normal(size=300), b)
    assert (counted.low, counted.high) == pytest.approx((indexed.low, indexed.high), abs=0.008)


@pytest.mark.parametrize("kind", ["normal", "outcomes"])
def test_bootstrap_coverage(kind: str) -> None:
    generator = np.random.default_rng(7)
    hits, trials, n, shift = 0, 400, 60, 0.2
    for trial in range(trials):
        if kind == "normal":
            a, b = shift + generator.normal(size=n), np.zeros(n)
        else:
            a, b = generator.random(n) < 0.6, generator.random(n) < 0.4
        interval = paired_bootstrap(a, b, resamples=1000, seed=trial)
        hits += interval.low <= shift <= interval.high
    low, high = wilson(hits, trials, level=0.999)
    assert low <= 0.94 <= high  # the percentile interval falls a little short of 0.95 at this size


def test_bootstrap_edges() -> None:
    nothing = paired_bootstrap([], [])
    assert math.isnan(nothing.mean)
    assert (nothing.low, nothing.high) == (-math.inf, math.inf)
    assert paired_bootstrap([2.0], [1.0]) == Interval(1.0, -math.inf, math.inf)
    assert paired_bootstrap([1.0] * 7, [1.0] * 7) == Interval(0.0, 0.0, 0.0)
    point = paired_bootstrap(np.full(10, 0.1), np.zeros(10))
    assert point.low == point.mean == point.high == pytest.approx(0.1)
    with pytest.raises(ValueError, match="finite"):
        paired_bootstrap([1.0, math.nan], [1.0, 2.0])
    with pytest.raises(ValueError, match="same items"):
        paired_bootstrap([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="resamples"):
        paired_bootstrap([1.0, 2.0], [1.0, 2.0], resamples=0)


# Two-sided critical values of Student's t, from the usual table.
@pytest.mark.parametrize(
    ("n", "level", "t"),
    [(2, 0.95, 12.706), (3, 0.95, 4.303), (4, 0.95, 3.182), (5, 0.99, 4.604), (6, 0.9, 2.015), (31, 0.95, 2.042)],
)
def test_mean_interval_against_the_t_table(n: int, level: float, t: float) -> None:
    values = np.arange(n, dtype=float)
    interval = mean_interval(values, level)
    assert interval.mean == pytest.approx((n - 1) / 2)
    scale = values.std(ddof=1) / math.sqrt(n)
    assert (interval.high - interval.mean) / scale == pytest.approx(t, abs=5e-4)
    assert (interval.mean - interval.low) / scale == pytest.approx(t, abs=5e-4)


def test_mean_interval_is_smooth_into_the_normal() -> None:
    reaches = []
    for n in (10_000, 10_001, 10_002, 10_003):  # the approximation begins at 10,001 degrees of freedom
        values = np.resize([-1.0, 1.0], n)
        interval = mean_interval(values)
        reaches.append((interval.high - interval.mean) / values.std(ddof=1) * math.sqrt(n))
    assert reaches == pytest.approx([1.960201] * 4, abs=1e-6)


def test_mean_interval_coverage_of_three() -> None:
    generator = np.random.default_rng(5)
    intervals = [mean_interval(sample) for sample in generator.normal(size=(1000, 3))]
    low, high = wilson(sum(i.low <= 0 <= i.high for i in intervals), 1000, level=0.999)
    assert low <= 0.95 <= high


def test_mean_interval_edges() -> None:
    assert math.isnan(mean_interval([]).mean)
    assert mean_interval([3.0]) == Interval(3.0, -math.inf, math.inf)
    assert mean_interval([0.1, 0.1, 0.1]) == Interval(0.1, 0.1, 0.1)
    with pytest.raises(ValueError, match="finite"):
        mean_interval([1.0, math.inf])


def test_results_are_plain_numbers() -> None:
    paired = compare(*outcomes(3, 2, 1, 4))
    assert isinstance(paired, Paired)
    values = [paired.won, paired.lost, paired.difference, paired.low, paired.high, paired.p]
    assert [type(value) for value in values] == [int, int, float, float, float, float]
    interval = paired_bootstrap(np.arange(5), np.zeros(5))
    assert {type(value) for value in (interval.mean, interval.low, interval.high)} == {float}
