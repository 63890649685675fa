"""Prices against their definitions in float64, where float32 softmaxes saturate too; and the hash that draws are made of."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unmask.decoding import pricing
from unmask.decoding.draws import counter_uniform
from unmask.decoding.pricing import price


def brute(logits: list[float], forbidden: tuple[int, ...] = ()) -> dict[str, float]:
    """One position, plain float64; log p̂ by the sum of the others, which is exact where p̂ rounds to 1."""
    allowed = [a for a in range(len(logits)) if a not in forbidden]
    best = max(allowed, key=lambda a: logits[a])
    odds = [math.exp(logits[a] - logits[best]) for a in allowed if a != best]
    confidence = -math.log1p(math.fsum(odds))
    p = [math.exp(logits[a] - logits[best] + confidence) for a in allowed]
    logp = [logits[a] - logits[best] + confidence for a in allowed]
    return {
        "best": best,
        "confidence": confidence,
        "margin": math.exp(confidence) * (1 - max(odds, default=0.0)),
        "entropy": -math.fsum(q * lq for q, lq in zip(p, logp, strict=True)),
    }


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 5.0, 40.0]), st.integers(2, 9), st.booleans())
def test_prices_are_their_definitions(seed: int, scale: float, vocabulary: int, forbids: bool) -> None:
    logits = torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale
    forbidden = (seed % vocabulary,) if forbids else ()
    prices = price(logits, forbidden)
    for n, row in enumerate(logits.double().tolist()):
        expected = brute(row, forbidden)
        assert prices.best[n] == expected["best"]
        for name in ("confidence", "margin", "entropy"):
            assert getattr(prices, name)[n].item() == pytest.approx(expected[name], rel=2e-4, abs=2e-6), name
        for a, x in enumerate(row):
            known = -math.inf if a in forbidden else x - row[expected["best"]] + expected["confidence"]
            assert prices.logp[n, a].item() == pytest.approx(known, rel=1e-5, abs=1e-5)
    assert torch.allclose(prices.logp.exp().sum(1), torch.ones(5))
    assert (prices.entropy >= 0).all() and (prices.entropy <= math.log(vocabulary) + 1e-5).all()


@pytest.mark.parametrize("gap", [20.0, 30.0, 45.0, 60.0])
def test_saturated_prices_keep_their_digits(gap: float) -> None:
    """A float32 softmax gives p̂ = 1 for all of these; their confidences and entropies still differ as they should."""
    logits = torch.zeros(4, 5)
    logits[:, 2] = torch.tensor([gap, gap + 0.01, gap + 1, gap + 5])
    assert (logits.softmax(1).amax(1) == 1).all() or gap == 20.0
    prices = price(logits)
    for n in range(4):
        expected = brute(logits[n].double().tolist())
        assert prices.confidence[n].item() == pytest.approx(expected["confidence"], rel=1e-5)
        assert prices.entropy[n].item() == pytest.approx(expected["entropy"], rel=1e-5)
    assert (prices.confidence.diff() > 0).all() and (prices.entropy.diff() < 0).all()


def test_equal_tokens_tie_and_one_token_is_certain() -> None:
    prices = price(torch.zeros(1, 4), forbidden=(0,))
    assert prices.best.tolist() == [1]  # the lowest index
    assert prices.margin.item() == 0
    assert prices.entropy.item() == pytest.approx(math.log(3))
    alone = price(torch.zeros(1, 3), forbidden=(0, 2))
    assert (alone.best.item(), alone.confidence.item(), alone.margin.item(), alone.entropy.item()) == (1, 0, 1, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_all_prices_are_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    prices = price(logits, (1,))
    assert {prices.logp.dtype, prices.confidence.dtype, prices.margin.dtype, prices.entropy.dtype} == {torch.float32}
    assert torch.equal(prices.logp, price(logits.float(), (1,)).logp)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_broken_logits_are_named(value: float) -> None:
    logits = torch.zeros(3, 4)
    logits[1] = value
    with pytest.raises(ValueError, match="logits that are NaN or infinite"):
        price(logits)


def test_a_forbidden_token_may_have_any_logit() -> None:
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    clean = price(logits, (2,))
    for value in (torch.nan, torch.inf, -torch.inf, 1e30):
        logits[:, 2] = value
        other = price(logits, (2,))
        assert torch.equal(other.logp, clean.logp) and torch.equal(other.entropy, clean.entropy)
    logits[:, 0] = -torch.inf  # a token that the denoiser itself rules out
    assert torch.isfinite(price(logits, (2,)).entropy).all()


def test_zero_positions_are_priced() -> None:
    assert price(torch.zeros(0, 4), (1,)).entropy.shape == (0,)


def test_draws_are_uniform_and_independent() -> None:
    """Chi-square over cells, over neighbouring counters, and between the purposes of one step."""
    draws = counter_uniform(torch.arange(50)[:, None, None], 3, torch.arange(4)[None, :, None], torch.arange(250))
    assert ((draws > 0) & (draws < 1)).all()
    assert stats.kstest(draws.flatten().numpy(), "uniform").pvalue > 1e-3
    cells = (draws * 8).long()
    for one, other in ((cells[:-1], cells[1:]), (cells[:, :-1], cells[:, 1:]), (cells[..., :-1], cells[..., 1:])):
        pairs = np.bincount((one * 8 + other).flatten().numpy(), minlength=64)
        assert stats.chisquare(pairs).pvalue > 1e-3
    assert len(draws.unique()) > 0.99 * draws.numel()


def test_a_draw_is_never_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One hash in 2²⁴ has all its upper bits set: (2²⁴ − ½)/2²⁴ rounds to 1 in float32, and the Gumbel of 1 is infinite."""
    monkeypatch.setattr("unmask.decoding.draws._mix", lambda x: torch.full_like(x, -1))
    top = counter_uniform(0, torch.zeros(1, dtype=torch.long))
    assert top.item() < 1
    assert torch.isfinite(-torch.log(-torch.log(top))).all()
    monkeypatch.setattr("unmask.decoding.draws._mix", lambda x: torch.zeros_like(x))
    assert counter_uniform(0, torch.zeros(1, dtype=torch.long)).item() > 0


def test_the_hash_is_splitmix64() -> None:
    """Against Python's unbounded integers: the shifts are logical and the products wrap."""

    def splitmix(*counters: int) -> float:
        state, word = 0, 2**64 - 1
        for counter in counters:
            state = (state + counter + 0x9E3779B97F4A7C15) & word
            state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & word
            state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & word
            state ^= state >> 31
        return ((state >> 40) + 0.5) / 2**24

    for counters in ((0,), (1, 2, 3), (2**62 - 1, 7, 1, 80), (123456789, 0, 3, 5)):
        drawn = counter_uniform(*counters[:-1], torch.tensor(counters[-1]))
        assert drawn.item() == pytest.approx(splitmix(*counters), abs=1e-7)


@pytest.mark.parametrize("rows", [1, 4, 5, 8, 9])
def test_pricing_in_chunks_equals_pricing_at_once(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four positions at a time: a chunk less than full, exactly full, and one row more."""
    logits = torch.randn(rows, 7, generator=torch.Generator().manual_seed(rows))
    at_once = price(logits, (0,))
    monkeypatch.setattr(pricing, "AT_ONCE", 4 * 7)
    in_chunks = price(logits, (0,))
    for name in ("logp", "best", "confidence", "margin", "entropy"):
        assert torch.equal(getattr(in_chunks, name), getattr(at_once, name)), name
