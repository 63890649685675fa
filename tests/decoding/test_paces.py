"""How many per step: every rule against its formula, one row at a time, under every scheduler."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from support.denoisers import CountingTable, Fixed, view_of
from support.reference import HEURISTICS, PLAIN_PACES, apportion, distributions, puzzles
from unmask.decoding.draws import BERNOULLI_NOISE
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.paces import bernoulli, dilated, kl_stable, load_pace, threshold
from unmask.decoding.pricing import price
from unmask.decoding.protocols import Canvas, Pace, View
from unmask.decoding.rows import spread
from unmask.schedulers.heuristics import confidence, left_to_right
from unmask.schedulers.loading import load_scheduler

Walk = list[int]
"""A row's eligible positions, the best key first, ties by index."""


class Calm(CountingTable):
    """Its distributions move little from one step to the next, and some of them are sure; rows differ by their first token."""

    def __init__(self, **ids: Any) -> None:
        super().__init__(scale=0.06, **ids)
        self.base = torch.randn(self.vocabulary, 20, self.vocabulary, generator=torch.Generator().manual_seed(1)) * 2.5

    def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool) if attention is None else attention
        first = tokens.gather(1, real.int().argmax(1, keepdim=True))
        return super().answer(tokens, attention) + self.base[first, (real.cumsum(1) - 1).clamp(min=0)]


def entropy_of(p: list[float]) -> float:
    return -sum(q * math.log(q) for q in p if q > 0)


def brute_top(walk: Walk, p: list[list[float]], quota: int, **_: Any) -> set[int]:
    return set(walk[:quota])


def brute_threshold(walk: Walk, p: list[list[float]], **_: Any) -> set[int]:
    return {i for i in walk if max(p[i]) > 0.6} or {walk[0]}


def brute_factor(walk: Walk, p: list[list[float]], **_: Any) -> set[int]:
    n = 0
    while n < len(walk) and max(p[walk[n]]) >= 1 - 1.3 / (n + 2):  # its n counts from 1
        n += 1
    return set(walk[: max(1, n)])


def brute_entropy_bound(walk: Walk, p: list[list[float]], **_: Any) -> set[int]:
    entropies = [entropy_of(p[i]) for i in walk]
    within = [k for k in range(1, len(walk) + 1) if sum(entropies[:k]) - max(entropies[:k]) <= 0.7]
    return set(walk[: max(within)])


def brute_dilated(walk: Walk, p: list[list[float]], place: list[int], **_: Any) -> set[int]:
    stride = lambda n: max(2**e for e in range(8) if n % 2**e == 0)  # noqa: E731
    coarsest = max((stride(n) for n in place if n > 0), default=0)
    of = {i: stride(place[i]) if place[i] else coarsest for i in walk}
    return {i for i in walk if of[i] == max(of.values())}


def brute_kl_stable(walk: Walk, p: list[list[float]], quota: int, past: list[list[list[float]]], **_: Any) -> set[int]:
    """``past`` holds the distributions of the row's last steps in this block, the latest last."""

    def divergence(now: list[float], before: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(now, before, strict=True) if a > 0)

    steps = [*past, p]
    sure = {
        i
        for i in walk
        if len(steps) > 2
        and max(p[i]) > 0.5
        and all(divergence(now[i], before[i]) < 0.004 for before, now in zip(steps[-3:], steps[-2:], strict=False))
    }
    return sure or set(walk[:quota])


def brute_less(walk: Walk, p: list[list[float]], past: list[list[list[float]]], **_: Any) -> set[int]:
    def divergence(now: list[float], before: list[float]) -> float:
        among = sorted(range(len(now)), key=lambda token: -now[token])[:3]
        a, b = ([x[token] / sum(x[t] for t in among) for token in among] for x in (now, before))
        middle = [(u + v) / 2 for u, v in zip(a, b, strict=True)]
        terms = [u * math.log(u / m) for x in (a, b) for u, m in zip(x, middle, strict=True) if u > 0]
        return sum(terms) / 2

    steps = [*past, p]
    sure = {
        i
        for i in walk
        if len(steps) > 1
        and max(p[i]) >= 0.5
        and len({max(range(len(q[i])), key=lambda token: q[i][token]) for q in steps[-2:]}) == 1
        and divergence(p[i], steps[-2][i]) <= 0.002
    }
    return sure or {walk[0]}


RULES: dict[str, tuple[str, Callable[..., set[int]]]] = {
    "top": ("top", brute_top),
    "threshold": ("threshold:p=0.6", brute_threshold),
    "factor": ("factor:f=1.3", brute_factor),
    "entropy_bound": ("entropy_bound:gamma=0.7", brute_entropy_bound),
    "kl_stable": ("kl_stable:p=0.5:epsilon=0.004", brute_kl_stable),
    "less": ("less:p=0.5:epsilon=0.002:steps=1:likeliest=3", brute_less),
    "dilated": ("dilated", brute_dilated),
}


def checked(rule: Pace, brute: Callable[..., set[int]], block: int | None, sizes: list[int]) -> Pace:
    """The rule itself, with its answer for each row compared to the brute one."""
    past: dict[tuple[int, int], list[list[list[float]]]] = {}

    def pace(view: View, keys: Tensor, quota: Tensor) -> Tensor:
        revealed = rule(view, keys, quota)
        for r in range(len(view.rows)):
            eligible = torch.nonzero(view.eligible[r])[:, 0].tolist()
            walk = sorted(eligible, key=lambda i: (-keys[r, i].item(), i))
            p = distributions(view.denoiser, view.tokens[r].tolist())
            history = past.setdefault((int(view.rows[r]), int(view.index[r, walk[0]]) // (block or 99)), [])
            expected = brute(walk, p, quota=int(quota[r]), place=view.place[r].tolist(), past=history)
            history.append(p)
            assert set(torch.nonzero(revealed[r])[:, 0].tolist()) == expected
            assert expected <= set(eligible)
            sizes.append(len(expected))
        return revealed

    return pace


@pytest.mark.parametrize("scheduler", HEURISTICS)
@pytest.mark.parametrize("name", RULES)
def test_each_pace_matches_its_formula(name: str, scheduler: str) -> None:
    denoiser = Calm()
    tokens, target = puzzles(denoiser, 4, 10, seed=1)
    sizes: list[int] = []
    spec, brute = RULES[name]
    for block, steps in ((None, None), (6, 5)):
        pace = checked(load_pace(spec), brute, block, sizes)
        trajectory = unmask(
            denoiser,
            load_scheduler(scheduler),
            Canvas(tokens, target=target),
            Decoding(block, steps, pace),
            record=False,
        )
        assert not (trajectory.tokens == denoiser.mask_id).any()
    assert min(sizes) == 1 and max(sizes) > 1


@pytest.mark.parametrize("name", PLAIN_PACES)
def test_every_pace_reveals_at_least_one_position(name: str) -> None:
    """No position is certain, or every one is: each row continues, independently."""
    for scale in (0.0, 60.0):
        denoiser = Fixed(torch.eye(6, 5) * scale, mask_id=4, limit=40)
        tokens = torch.full((3, 6), denoiser.mask_id)
        tokens[1, :5] = 0
        tokens[2, ::2] = 1
        trajectory = unmask(denoiser, confidence, tokens, Decoding(pace=load_pace(name)))
        assert trajectory.reveals.tolist() == [6, 1, 3]
        for row in range(3):
            assert torch.bincount(trajectory.step[row][trajectory.step[row] >= 0]).min() >= 1


def test_the_fallback_is_applied_per_row() -> None:
    """One row is sure of two positions, the other of none: the unsure one still reveals its best, and only that."""
    logits = torch.zeros(2, 4, 4)
    logits[0, :2, 1] = 9.0
    logits[1, 2, 1] = 0.1
    view = view_of(CountingTable(vocabulary=4, mask_id=3), torch.full((2, 4), 3))
    view = dataclasses.replace(view, prices=price(logits.flatten(0, 1), (3,)))
    one = torch.ones(2, dtype=torch.long)
    assert threshold(0.9)(view, view.confidence, one).tolist() == [
        [True, True, False, False],
        [False, False, True, False],
    ]
    never = kl_stable(0.9)(view, view.confidence, torch.tensor([3, 1]))  # the first step has nothing to compare with
    assert never.tolist() == [[True, True, True, False], [False, False, True, False]]


def test_bernoulli_draws_each_position_by_its_key() -> None:
    """Only eligible ones, each where its number is below σ(key); a row without any reveals the best, and only that."""
    tokens = torch.full((3, 5), 3)
    tokens[1, 2] = 0
    view = dataclasses.replace(view_of(CountingTable(vocabulary=4, mask_id=3), tokens), seeds=torch.tensor([5, 6, 7]))
    keys = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    keys[1, 2], keys[2] = 50.0, -50.0
    keys[2, 3] = -49.0
    number = view.uniform(BERNOULLI_NOISE)
    found = bernoulli(view, keys, torch.ones(3, dtype=torch.long))
    for row, position in itertools.product(range(2), range(5)):
        below = number[row, position].item() < 1 / (1 + math.exp(-keys[row, position].item()))
        assert found[row, position].item() == (below and bool(tokens[row, position] == 3))
    assert found[2].tolist() == [False, False, False, True, False]
    assert 0 < found[:2].sum() < 9


def test_defaults() -> None:
    """Of the published rules: 0.9 for a threshold, a factor of 1, a bound of 0.1 nats."""
    probability = torch.tensor([[0.91, 0.91, 0.89]])
    logits = torch.stack([probability, 1 - probability, torch.zeros_like(probability)], dim=-1).log()
    view = view_of(CountingTable(vocabulary=3, mask_id=2), torch.full((1, 3), 2))
    view = dataclasses.replace(view, prices=price(logits.flatten(0, 1), (2,)))
    one = torch.ones(1, dtype=torch.long)
    sure = {
        name: load_pace(name)(view, view.confidence, one)[0].tolist()
        for name in ("threshold", "factor", "entropy_bound")
    }
    assert sure == {"threshold": [True, True, False], "factor": [True] * 3, "entropy_bound": [True, False, False]}


def test_ties_go_to_the_lowest_index() -> None:
    denoiser = Fixed(torch.zeros(7, 4), mask_id=3)
    tokens = torch.full((1, 7), 3)
    tokens[0, 2] = 0
    assert unmask(denoiser, confidence, tokens).order.tolist() == [[0, 1, 3, 4, 5, 6]]
    trajectory = unmask(denoiser, confidence, tokens, Decoding(steps=4))
    assert trajectory.order.tolist() == [[0, 1, 3, 4, 5, 6]]
    assert trajectory.step.tolist() == [[0, 0, 1, 1, 2, 3]]


def test_dilated_goes_from_coarse_to_fine() -> None:
    denoiser = CountingTable()
    tokens = torch.full((1, 16), denoiser.mask_id)
    trajectory = unmask(denoiser, left_to_right, tokens, Decoding(block=8, pace=dilated))
    steps = [sorted(trajectory.order[0][trajectory.step[0] == s].tolist()) for s in range(trajectory.steps)]
    assert steps == [[0, 4], [2, 6], [1, 3, 5, 7], [8, 12], [10, 14], [9, 11, 13, 15]]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 12), min_size=5, max_size=5), min_size=1, max_size=4), st.integers(0, 60))
@example([[14, 23, 24, 9, 0]], 3)  # 1.4, 2.3, 2.4, 0.9: equal remainders, of which the earlier comes first
@example([[0, 0, 0, 0, 0], [10, 17, 28, 29, 0]], 3)
def test_spread(rows: list[list[int]], extra: int) -> None:
    """All of the budget, no more than is hidden, no block without a step; rows do not see each other."""
    steps = max(1, max(sum(n > 0 for n in row) for row in rows)) + extra
    shares = spread(torch.tensor(rows), steps)
    for row, share in zip(rows, shares.tolist(), strict=True):
        assert sum(share) == min(sum(row), steps)
        assert all(min(1, n) <= s <= n for n, s in zip(row, share, strict=True))
        assert share == apportion(row, steps)


def test_spread_refuses_less_than_a_step_per_block() -> None:
    with pytest.raises(ValueError, match="budget of 2 steps is too small for 3 blocks"):
        spread(torch.tensor([[4, 0, 0], [1, 1, 1]]), 2)
    assert spread(torch.tensor([[4, 0, 0], [0, 1, 1]]), 2).tolist() == [[2, 0, 0], [0, 1, 1]]
    assert spread(torch.zeros(2, 3, dtype=torch.long), 2).tolist() == [[0, 0, 0]] * 2
