"""Published values, hand-computed binomials, and coverage counted exactly or with fixed seeds."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.evaluation.statistics import Interval, compare, mcnemar_exact, mean_interval, paired_bootstrap, wilson


# Newcombe (1998), Statistics in Medicine 17, 857-872, table I, method 3.
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_published(successes: int, n: int, low: float, high: float) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson(n - successes, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 2 / 32), (7, 1, 2 * 9 / 256), (10, 2, 2 * 79 / 4096), (4, 3, 1.0)],
)
def test_mcnemar_by_hand(won: int, lost: int, p: float) -> None:
    assert mcnemar_exact(won, lost) == mcnemar_exact(lost, won) == pytest.approx(p, rel=1e-12)


def outcomes(both: int, won: int, lost: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    a = np.repeat([True, True, False, False], [both, won, lost, neither])
    b = np.repeat([True, False, True, False], [both, won, lost, neither])
    return a, b


def test_compare_by_hand() -> None:
    """1 won, 7 lost of 21: (2 - 8)/23 ± 1.96 √((10/23 - (6/23)²)/23), and p = 2 (1 + 8)/256."""
    paired = compare(*outcomes(1, 1, 7, 12))
    assert (paired.won, paired.lost, paired.difference) == (1, 7, pytest.approx(-6 / 21))
    assert (paired.low, paired.high, paired.p) == pytest.approx((-0.508, -0.013, 0.0703), abs=5e-4)


@settings(deadline=None)  # the first call imports scipy
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1), st.sampled_from([0.5, 0.9, 0.95]))
def test_compare_is_antisymmetric_and_contains_the_difference(pairs: list[tuple[bool, bool]], level: float) -> None:
    a, b = np.array(pairs).T
    forth, back = compare(a, b, level), compare(b, a, level)
    assert forth.difference == pytest.approx(a.mean() - b.mean())
    assert -1 <= forth.low <= forth.difference <= forth.high <= 1 and forth.low < forth.high
    assert (back.won, back.lost, back.p) == (forth.lost, forth.won, forth.p)
    assert (back.difference, back.low, back.high) == pytest.approx((-forth.difference, -forth.high, -forth.low))


@pytest.mark.parametrize(("p_won", "p_lost"), [(0.1, 0.1), (0.3, 0.1), (0.05, 0.02), (0.5, 0.3)])
def test_compare_coverage(p_won: float, p_lost: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact coverage over the trinomial (won, lost, tied) of 30 pairs."""
    monkeypatch.setattr("unmask.evaluation.statistics.mcnemar_exact", lambda won, lost: 1.0)  # its p is not used here
    n, covered = 30, 0.0
    for won in range(n + 1):
        for lost in range(n + 1 - won):
            tied = n - won - lost
            paired = compare(*outcomes(0, won, lost, tied))
            if paired.low <= p_won - p_lost <= paired.high:
                ways = math.comb(n, won) * math.comb(n - won, lost)
                covered += ways * p_won**won * p_lost**lost * (1 - p_won - p_lost) ** tied
    few_differ = n * (p_won + p_lost) < 6  # the win and the loss that it adds make it wide
    assert 0.935 < covered < (1 if few_differ else 0.985)


def test_bootstrap_is_deterministic_and_paired() -> None:
    generator = np.random.default_rng(1)
    level = 10 * generator.normal(size=200)  # items differ far more than the two methods do
    a, b = level + 0.5 + generator.normal(size=200), level
    first = paired_bootstrap(a, b, seed=3)
    assert first == paired_bootstrap(a, b, seed=3) != paired_bootstrap(a, b, seed=4)
    assert 0 < first.low < first.mean < first.high < 1
    shuffled = paired_bootstrap(a, generator.permutation(b), seed=3)
    assert shuffled.high - shuffled.low > 5 * (first.high - first.low)


def test_bootstrap_by_counts_agrees_with_bootstrap_by_index() -> None:
    """Few distinct differences are resampled by counts, many by index; a tiny jitter switches between them."""
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 2, 300), generator.integers(0, 2, 300)
    counted, indexed = paired_bootstrap(a, b), paired_bootstrap(a + 1e-9 * generator.normal(size=300), b)
    assert (counted.low, counted.high) == pytest.approx((indexed.low, indexed.high), abs=0.008)


# Two-sided critical values of Student's t, from the usual table.
@pytest.mark.parametrize(("n", "level", "t"), [(2, 0.95, 12.706), (5, 0.99, 4.604), (6, 0.9, 2.015), (31, 0.95, 2.042)])
def test_mean_interval_against_the_t_table(n: int, level: float, t: float) -> None:
    values = np.arange(n, dtype=float)
    interval, scale = mean_interval(values, level), values.std(ddof=1) / math.sqrt(n)
    limits = ((interval.high - interval.mean) / scale, (interval.mean - interval.low) / scale)
    assert limits == pytest.approx((t, t), abs=5e-4)


def test_intervals_of_no_or_one_or_equal_observations() -> None:
    assert wilson(0, 0) == (0.0, 1.0) and wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == 1.0
    nothing, same = compare([], []), compare(np.ones(100, bool), np.ones(100, bool))
    assert (nothing.won, nothing.lost, nothing.low, nothing.high, nothing.p) == (0, 0, -1.0, 1.0, 1.0)
    assert (same.difference, same.p) == (0.0, 1.0) and -0.05 < same.low < 0 < same.high < 0.05
    for empty in (paired_bootstrap([], []), mean_interval([])):
        assert math.isnan(empty.mean) and (empty.low, empty.high) == (-math.inf, math.inf)
    assert paired_bootstrap([2.0], [1.0]) == Interval(1.0, -math.inf, math.inf)
    assert mean_interval([3.0]) == Interval(3.0, -math.inf, math.inf)
    equal = paired_bootstrap([0.1] * 10, [0.0] * 10)
    assert equal.low == equal.mean == equal.high == pytest.approx(0.1)
    assert mean_interval([0.1, 0.1, 0.1]) == Interval(0.1, 0.1, 0.1)


def test_wrong_input_is_refused() -> None:
    for successes, level, message in [(-1, 0.95, "successes <= n"), (6, 0.95, "successes <= n"), (1, 95.0, "0 and 1")]:
        with pytest.raises(ValueError, match=message):
            wilson(successes, 5, level)
    with pytest.raises(ValueError, match=">= 0"):
        mcnemar_exact(-1, 3)
    with pytest.raises(ValueError, match="same items, got 2 and 3"):
        compare([True, False], [True, False, True])
    with pytest.raises(ValueError, match="use paired_bootstrap"):
        compare([0.5, 1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="one-dimensional"):
        compare(np.ones((2, 2), bool), np.ones((2, 2), bool))
    with pytest.raises(ValueError, match="finite"):
        paired_bootstrap([1.0, math.nan], [1.0, 2.0])
    with pytest.raises(ValueError, match="resamples"):
        paired_bootstrap([1.0, 2.0], [1.0, 2.0], resamples=0)
    with pytest.raises(ValueError, match="finite"):
        mean_interval([1.0, math.inf])
