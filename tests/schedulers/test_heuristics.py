"""Each scheduler against its formula, position by position in float64, and the ways in which public ones go wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from support.denoisers import CountingTable, Fixed, view_of
from support.reference import HEURISTICS, distributions
from unmask.decoding.draws import TIE_NOISE
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, View
from unmask.schedulers.heuristics import (
    confidence,
    end_damped,
    entropy,
    gumbel_confidence,
    look_ahead,
    margin,
    pc_sampler,
    softmax_confidence,
    top_k_random,
)
from unmask.schedulers.loading import load_scheduler

TARGET = torch.tensor([[0, 1, 2, 4, 5, 6, 0, 1], [6, 5, 4, 2, 1, 0, 6, 5]])


def entropy_of(p: list[float]) -> float:
    return -sum(q * math.log(q) for q in p if q > 0)


def partly_hidden(scale: float = 1.5, end_ids: tuple[int, ...] = ()) -> View:
    """Two rows of eight, of which some are hidden and some of those eligible; two positions stand outside the region."""
    denoiser = CountingTable(scale=scale, end_ids=end_ids)
    tokens = TARGET.clone()
    tokens[0, 1:7] = denoiser.mask_id
    tokens[1, [2, 4, 5, 7]] = denoiser.mask_id
    eligible = (tokens == denoiser.mask_id) & (torch.arange(8) < 6)
    index = torch.arange(8).expand(2, -1) - 1
    return view_of(denoiser, tokens, eligible, total=torch.tensor([7, 5]), index=index, step=3)


def assert_formula(view: View, scores: Tensor, formula: Callable[[int, int, list[list[float]]], float]) -> None:
    """``formula(row, position, distributions of that row)`` gives the score of each eligible position."""
    assert scores.shape == view.tokens.shape
    for row in range(len(view.rows)):
        p = distributions(view.denoiser, view.tokens[row].tolist())
        for i in torch.nonzero(view.eligible[row])[:, 0].tolist():
            assert scores[row, i].item() == pytest.approx(formula(row, i, p), rel=1e-4, abs=1e-5), (row, i)


PLAIN: dict[str, Callable[[list[float], int], float]] = {
    "left_to_right": lambda p, j: -j,
    "right_to_left": lambda p, j: j,
    "confidence": lambda p, j: math.log(max(p)),
    "margin": lambda p, j: sorted(p)[-1] - sorted(p)[-2],
    "entropy": lambda p, j: -entropy_of(p),
    "uncertainty": lambda p, j: entropy_of(p),
}


@pytest.mark.parametrize("scale", [0.3, 1.5, 4.0])
@pytest.mark.parametrize("name", PLAIN)
def test_plain_formulas(name: str, scale: float) -> None:
    view = partly_hidden(scale)
    assert_formula(view, load_scheduler(name)(view), lambda row, i, p: PLAIN[name](p[i], i - 1))


def test_noisy_formulas() -> None:
    """The noise is the view's own; the rest of each formula is exact."""
    view = partly_hidden()
    gumbel, uniform = view.gumbel(TIE_NOISE).double(), view.uniform(TIE_NOISE)
    torch.testing.assert_close(gumbel, -(-uniform.double().log()).log(), atol=1e-5, rtol=1e-5)
    share = [6 / 7, 4 / 5]
    assert_formula(
        view,
        gumbel_confidence(0.5)(view),
        lambda row, i, p: math.log(max(p[i])) + 0.5 * share[row] * gumbel[row, i].item(),
    )
    assert_formula(view, softmax_confidence(0.05)(view), lambda row, i, p: max(p[i]) / 0.05 + gumbel[row, i].item())
    assert torch.equal(load_scheduler("random")(view), uniform)


@pytest.mark.parametrize("k", [1, 3, 50])
def test_top_k_random(k: int) -> None:
    view = partly_hidden()
    scores, uniform = top_k_random(k)(view), view.uniform(TIE_NOISE)
    for row in range(2):
        p = distributions(view.denoiser, view.tokens[row].tolist())
        eligible = torch.nonzero(view.eligible[row])[:, 0].tolist()
        ranked = sorted(eligible, key=lambda i: -max(p[i]))
        for i in ranked[:k]:
            assert scores[row, i] == uniform[row, i]
        rest = [scores[row, i].item() for i in ranked[k:]]
        assert rest == sorted(rest, reverse=True) and all(s <= -1 for s in rest)


@pytest.mark.parametrize("k", [2, 5])
def test_top_k_random_is_uniform_over_the_most_confident(k: int) -> None:
    """Among equals, over the k of the lowest index (`topk` would take any)."""
    denoiser, rows = Fixed(torch.zeros(40, 3), mask_id=2), 4000
    tokens = torch.full((rows, 40), 2)
    view = view_of(denoiser, tokens)
    first = Counter(top_k_random(k)(view).argmax(1).tolist())
    assert set(first) == set(range(k))
    assert stats.chisquare([first[i] for i in range(k)]).pvalue > 1e-3


def test_softmax_confidence_draws_in_proportion() -> None:
    logits, tau = torch.tensor([[0.0, 1.0, 0], [0.0, 1.2, 0], [0.9, 0.0, 0]]), 0.05
    denoiser, rows = Fixed(logits, mask_id=2), 4000
    trajectory = unmask(denoiser, softmax_confidence(tau), torch.full((rows, 3), 2), record=False)
    weight = np.array([math.exp(max(p) / tau) for p in distributions(denoiser, [2, 2, 2])])
    counts = np.bincount(trajectory.order[:, 0].numpy(), minlength=3)
    assert stats.chisquare(counts, weight / weight.sum() * rows).pvalue > 1e-3


@pytest.mark.parametrize("decay", [0.0, 0.25, 1.0])
def test_pc_sampler(decay: float) -> None:
    """e^{−λj}·min(α, −p̂·log f(x̂)), compared after the logarithm that the scheduler keeps it in."""
    view = partly_hidden()
    uniform = lambda p: max(p) * math.log(7)  # noqa: E731
    assert_formula(view, pc_sampler(decay)(view), lambda row, i, p: math.log(uniform(p[i])) - decay * (i - 1))
    frequency = torch.tensor([0.5, 0.2, 0.1, 0.0, 0.1, 0.1, 1e-9])

    def content(p: list[float], cap: float) -> float:
        return min(cap, -max(p) * math.log(frequency[p.index(max(p))].item()))

    for cap in (10.0, 0.5):
        assert_formula(
            view,
            pc_sampler(decay, cap, frequency)(view),
            lambda row, i, p, cap=cap: math.log(content(p[i], cap)) - decay * (i - 1),
        )


def test_end_damped() -> None:
    view = partly_hidden(end_ids=(0, 5))
    progress, floor, damped = [1 - 6 / 7, 1 - 4 / 5], 0.4, []

    def formula(row: int, i: int, p: list[list[float]]) -> float:
        ends = p[i].index(max(p[i])) in (0, 5)
        damped.append(ends)
        return math.log(max(p[i]) * ((floor + (1 - floor) * progress[row]) if ends else 1))

    assert_formula(view, end_damped(floor)(view), formula)
    assert set(damped) == {True, False}
    plain = partly_hidden()
    assert torch.equal(end_damped()(plain), plain.confidence)


@pytest.mark.parametrize("among", [1, 2, 50])
def test_look_ahead(among: int) -> None:
    """Fill the likeliest token, price everything that is left, of this block or not; only ``among`` candidates are tried."""
    view = partly_hidden()
    before = view.denoiser.forwarded
    scores = look_ahead(among)(view)
    eligible = [torch.nonzero(view.eligible[row])[:, 0].tolist() for row in range(2)]
    assert view.denoiser.forwarded - before == sum(min(among, len(e)) for e in eligible)
    for row in range(2):
        tokens = view.tokens[row].tolist()
        p = distributions(view.denoiser, tokens)
        ranked = sorted(eligible[row], key=lambda i: -max(p[i]))
        for i in ranked[:among]:
            filled = [p[i].index(max(p[i])) if j == i else t for j, t in enumerate(tokens)]
            after = distributions(view.denoiser, filled)
            rest = [entropy_of(after[j]) for j, t in enumerate(filled) if t == view.denoiser.mask_id]
            expected = -sum(rest) / len(rest) - entropy_of(p[i])
            assert scores[row, i].item() == pytest.approx(expected, abs=1e-4)
        if ranked[among:]:
            assert scores[row, ranked[among:]].max() < scores[row, ranked[:among]].min()


def test_look_ahead_tries_the_first_of_equals() -> None:
    denoiser = Fixed(torch.zeros(40, 4), mask_id=3)
    scores = look_ahead(3)(view_of(denoiser, torch.full((1, 40), 3)))
    assert torch.nonzero(scores[0] > -100)[:, 0].tolist() == [0, 1, 2]
    last = view_of(denoiser, torch.tensor([[0] * 39 + [3]]))
    assert look_ahead()(last)[0, 39].item() == pytest.approx(-math.log(3), abs=1e-5)  # nothing is left after it


def test_oracles() -> None:
    view = partly_hidden()
    view = View(**{**vars(view), "reference": TARGET})
    assert_formula(view, load_scheduler("gt_logp")(view), lambda row, i, p: math.log(p[i][int(TARGET[row, i])]))

    def gap(row: int, i: int, p: list[list[float]]) -> float:
        truth = int(TARGET[row, i])
        return p[i][truth] - max(q for a, q in enumerate(p[i]) if a != truth)

    assert_formula(view, load_scheduler("gt_margin")(view), gap)


@pytest.mark.parametrize("rule", [confidence, entropy])
@pytest.mark.parametrize("steps", [None, 3])
def test_saturated_positions_are_still_ranked(rule: Callable[[View], Tensor], steps: int | None) -> None:
    """Gaps of 30 to 60: a float32 softmax says p̂ = 1 and H = 0 for all, and a tie would give the order of the indices."""
    gaps = torch.tensor([31.0, 58.0, 30.0, 45.0, 44.9, 60.0])
    logits = torch.zeros(6, 4)
    logits[:, 1] = gaps
    assert (logits.softmax(1).amax(1) == 1).all()
    trajectory = unmask(Fixed(logits, mask_id=3), rule, torch.full((1, 6), 3), Decoding(steps=steps))
    assert trajectory.order[0].tolist() == gaps.argsort(descending=True).tolist()


def test_entropy_reveals_the_lowest_first() -> None:
    """With two tokens all certain rules agree; with more, entropy and margin differ from confidence as they should."""
    logits = torch.tensor([[0.0, 0.0, 9], [0.0, 4.0, 9], [0.0, 1.0, 9], [0.0, 2.0, 9]])
    tokens = torch.full((1, 4), 2)
    for rule in (confidence, margin, entropy):
        assert unmask(Fixed(logits, mask_id=2), rule, tokens).order.tolist() == [[1, 3, 2, 0]]
    p = torch.tensor([[0.5, 0.4, 0.05, 0.05, 1], [0.45, 0.19, 0.18, 0.18, 1], [0.48, 0.47, 0.025, 0.025, 1]])
    denoiser, tokens = Fixed(p.log(), mask_id=4), torch.full((1, 3), 4)
    assert unmask(denoiser, confidence, tokens).order.tolist() == [[0, 2, 1]]
    assert unmask(denoiser, margin, tokens).order.tolist() == [[1, 0, 2]]
    assert unmask(denoiser, entropy, tokens).order.tolist() == [[2, 0, 1]]


@pytest.mark.parametrize("name", HEURISTICS)
def test_unpriced_positions_never_matter(name: str) -> None:
    """Scores outside the eligible set may be anything: the loop ranks only the eligible."""
    denoiser = CountingTable()
    tokens = torch.full((1, 6), denoiser.mask_id)
    scheduler = load_scheduler(name)

    def loud(view: View) -> Tensor:
        return scheduler(view).masked_fill(~view.eligible, 1e9)

    loud.needs_truth = getattr(scheduler, "needs_truth", False)  # pyright: ignore[reportFunctionMemberAccess]
    reference = torch.tensor([[0, 1, 2, 4, 5, 6]])
    trajectories = [unmask(denoiser, s, Canvas(tokens, target=reference), Decoding(block=3)) for s in (scheduler, loud)]
    assert torch.equal(trajectories[0].order, trajectories[1].order)
    assert set(trajectories[0].order[0, :3].tolist()) == {0, 1, 2}
