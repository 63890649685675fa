"""Temperatures, nuclei and step budgets: statistics of the draws against the distributions that they are drawn from."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from support.denoisers import CountingTable, Fixed
from support.reference import SCORES, distributions, puzzles
from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.decoding.sampling import plackett_luce_logp
from unmask.schedulers.heuristics import confidence, left_to_right
from unmask.schedulers.loading import load_scheduler

SCORE = torch.tensor([9.0, 0.3, -0.5, 1.1, 0.0])  # position 0 is given and would win


def luce(scores: Sequence[float], drawn: Sequence[int]) -> list[float]:
    """log v of each draw, one after another from a softmax over what is left."""
    left, result = dict(enumerate(scores)), []
    for i in drawn:
        result.append(left[i] - math.log(sum(math.exp(s) for s in left.values())))
        del left[i]
    return result


def likely(counts: Counter, expected: dict, total: int) -> bool:
    """Nothing impossible was drawn, and a chi-square test finds nothing at one in a thousand."""
    assert set(counts) <= set(expected)
    observed = np.array([counts[key] for key in expected], dtype=float)
    return bool(stats.chisquare(observed, np.array(list(expected.values())) * total).pvalue > 1e-3)


@pytest.mark.parametrize("steps", [None, 2, 1])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_orders_are_drawn_from_the_masked_softmax(temperature: float, steps: int | None) -> None:
    """All 24 orders of four positions; several at once are drawn without replacement, from the same distribution."""
    denoiser = Fixed(torch.zeros(5, 3), mask_id=2)
    rows = 6000
    tokens = torch.tensor([[1, 2, 2, 2, 2]]).expand(rows, -1)
    decoding = Decoding(steps=steps, order_temperature=temperature)
    trajectory = unmask(denoiser, lambda view: SCORE.expand(len(view.rows), -1), tokens, decoding, record=False)
    scaled = (SCORE[1:].double() / temperature).tolist()
    expected = {order: math.exp(sum(luce(scaled, order))) for order in itertools.permutations(range(4))}
    assert sum(expected.values()) == pytest.approx(1)
    assert likely(Counter(tuple(order) for order in (trajectory.order - 1).tolist()), expected, rows)
    for row in range(0, rows, 600):
        assert trajectory.order_logp[row].tolist() == pytest.approx(
            luce(scaled, (trajectory.order[row] - 1).tolist()), abs=1e-5
        )
    torch.testing.assert_close(trajectory.score, SCORE[trajectory.order])


@pytest.mark.parametrize(("block", "steps"), [(None, None), (3, None), (None, 3), (4, 5)])
@pytest.mark.parametrize("name", ["confidence", "entropy", "left_to_right"])
def test_order_logp_follows_the_states(name: str, block: int | None, steps: int | None) -> None:
    denoiser, temperature = CountingTable(), 0.7
    tokens, target = puzzles(denoiser, 5, 9, seed=2)
    trajectory = unmask(
        denoiser,
        load_scheduler(name),
        Canvas(tokens, target=target),
        Decoding(block, steps, order_temperature=temperature),
        forced=True,
    )
    score = {**SCORES, "confidence": lambda p, j: math.log(max(p))}[name]
    for row in range(len(tokens)):
        canvas = tokens[row].tolist()
        if denoiser.mask_id not in canvas:
            continue
        first = canvas.index(denoiser.mask_id)
        for step in range(int(trajectory.step[row].max()) + 1):
            mine = trajectory.step[row] == step
            order = trajectory.order[row][mine].tolist()
            p = distributions(denoiser, canvas)
            current = (order[0] - first) // (block or 99)
            eligible = [
                i for i, t in enumerate(canvas) if t == denoiser.mask_id and (i - first) // (block or 99) == current
            ]
            expected = luce(
                [score(p[i], i - first) / temperature for i in eligible], [eligible.index(i) for i in order]
            )
            assert trajectory.order_logp[row][mine].tolist() == pytest.approx(expected, abs=1e-4)
            for i in order:
                canvas[i] = int(target[row, i])


def test_a_greedy_order_is_certain() -> None:
    denoiser = CountingTable()
    tokens, _ = puzzles(denoiser, 4, 8)
    cold = unmask(denoiser, confidence, tokens)
    assert (cold.order_logp == 0).all()
    nearly = unmask(denoiser, confidence, tokens, Decoding(order_temperature=1e-6))
    assert torch.equal(nearly.order, cold.order)


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.8), (1.5, 0.5), (1.0, 1e-3)]
)
def test_tokens_are_drawn_from_the_nucleus(temperature: float, top_p: float) -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 99.0, 0.5], [2.0, -2.0, 0.0, 99.0, 0.3]])
    denoiser, rows = Fixed(logits, mask_id=3), 5000
    tokens = torch.full((rows, 2), denoiser.mask_id)
    decoding = Decoding(token_temperature=temperature, top_p=top_p)
    trajectory = unmask(denoiser, left_to_right, tokens, decoding, record=False)
    marginals = []
    for i in range(2):
        weight = {a: math.exp(x / temperature) for a, x in enumerate(logits[i].tolist()) if a != denoiser.mask_id}
        kept, mass = [], 0.0
        for a in sorted(weight, key=lambda a: -weight[a]):
            if mass >= top_p:
                break
            kept.append(a)
            mass += weight[a] / sum(weight.values())
        marginals.append({a: weight[a] / sum(weight[b] for b in kept) for a in kept})
    joint = {(a, b): p * q for a, p in marginals[0].items() for b, q in marginals[1].items()}
    drawn = Counter(tuple(row) for row in trajectory.tokens.tolist())
    assert set(drawn) <= set(joint)
    assert likely(drawn, joint, rows) or len(joint) == 1
    exact = torch.tensor(distributions(denoiser, [3, 3])).log().float()  # recorded at temperature 1
    torch.testing.assert_close(trajectory.logp, exact[torch.arange(2), trajectory.tokens], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 3.0])
def test_forbidden_tokens_are_never_drawn(temperature: float) -> None:
    logits = torch.zeros(3, 5)
    logits[:, 4] = 50.0
    denoiser = Fixed(logits, mask_id=1)
    denoiser.forbidden_ids = (1, 4)
    tokens = torch.full((2000, 3), denoiser.mask_id)
    trajectory = unmask(denoiser, confidence, tokens, Decoding(token_temperature=temperature), record=False)
    assert set(trajectory.tokens.unique().tolist()) == ({0} if temperature == 0 else {0, 2, 3})


@pytest.mark.parametrize("draw", [2**-25, 1 - 2**-24])
def test_nucleus_sampling_at_its_extremes(draw: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest and the largest draw there are: the likeliest token and the last of the nucleus, never one past it."""
    denoiser = Fixed(torch.tensor([[3.0, 2.0, 1.0, 0.0]]), mask_id=3)
    monkeypatch.setattr(
        "unmask.decoding.protocols.View.uniform", lambda view, purpose: torch.full(view.tokens.shape, draw)
    )
    tokens = torch.full((1, 1), 3)
    for top_p, last in ((1.0, 2), (0.7, 1), (0.5, 0)):
        trajectory = unmask(denoiser, confidence, tokens, Decoding(token_temperature=1.0, top_p=top_p))
        assert trajectory.tokens.item() == (0 if draw < 0.5 else last)


def test_draws_depend_on_the_seed_of_the_row() -> None:
    denoiser = CountingTable()
    tokens, _ = puzzles(denoiser, 6, 9)
    decoding = Decoding(order_temperature=1.0, token_temperature=1.0)
    untouched = torch.get_rng_state()

    def decode(seed: int) -> Tensor:
        return unmask(denoiser, confidence, Canvas(tokens, seeds=row_seeds(seed, range(6))), decoding).order

    assert torch.equal(decode(1), decode(1))
    assert not torch.equal(decode(1), decode(2))
    assert torch.equal(torch.get_rng_state(), untouched)
    default, numbered = (
        unmask(denoiser, confidence, Canvas(tokens, seeds=s), decoding).order for s in (None, torch.arange(6))
    )
    assert torch.equal(default, numbered)
    same = unmask(denoiser, confidence, tokens[-1:].expand(40, -1), decoding)
    assert len({tuple(order) for order in same.order.tolist()}) > 30


@pytest.mark.parametrize("hidden", [1, 2, 5, 7, 12])
def test_a_budget_is_spread_over_its_steps(hidden: int) -> None:
    """Every step reveals something, no step more than one above another, and all of the budget is used."""
    denoiser = CountingTable()
    tokens = torch.full((1, hidden), denoiser.mask_id)
    for steps in range(1, 15):
        trajectory = unmask(denoiser, confidence, tokens, Decoding(steps=steps), record=False)
        counts = torch.bincount(trajectory.step[0])
        assert len(counts) == min(hidden, steps) == trajectory.steps
        assert counts.min() >= 1 and counts.max() - counts.min() <= 1
        assert (counts.diff() <= 0).all()


def test_a_budget_too_small_for_the_blocks() -> None:
    denoiser = CountingTable()
    tokens = torch.full((2, 8), denoiser.mask_id)
    tokens[0, :6] = 1
    with pytest.raises(ValueError, match="budget of 3 steps is too small for 4 blocks"):
        unmask(denoiser, confidence, tokens, Decoding(block=2, steps=3))
    assert unmask(denoiser, confidence, tokens[:1], Decoding(block=2, steps=3)).steps == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block": 0}, "block: expected .* 1, got int 0"),
        ({"steps": 0}, "steps: expected .* 1, got int 0"),
        ({"order_temperature": -0.1}, "order_temperature: expected .* 0, got float -0.1"),
        ({"token_temperature": -1.0}, "token_temperature: expected"),
        ({"top_p": 0.0}, "top_p: expected .* greater than 0, got float 0.0"),
        ({"guidance": -1.0}, "guidance: expected"),
        ({"ends": "supress"}, "did you mean 'suppress'"),
        ({"cache": "duel"}, "'none', 'prefix' or 'dual'"),
        ({"cache": "none", "refresh": 4}, "no cache to refresh"),
        ({"cache": "dual", "refresh": 0}, "refresh: expected"),
        ({"top_p": 1.1}, "top_p: expected .* less than or equal to 1"),
    ],
)
def test_options_are_checked(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Decoding(**wrong)


def test_plackett_luce_against_its_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 7, generator=generator) * 20
    scores[:, 5] = -torch.inf  # not eligible
    pool = [0, 1, 2, 3, 4, 6]
    count = torch.tensor([1, 2, 3, 6, 5, 4])
    position = torch.stack([torch.randperm(6, generator=generator) for _ in range(6)])
    position = torch.tensor(pool)[position]
    logp = plackett_luce_logp(scores, position, count)
    for row in range(6):
        n = int(count[row])
        drawn = [pool.index(i) for i in position[row, :n].tolist()]
        expected = luce([scores[row, i].item() for i in pool], drawn)
        assert logp[row, :n].tolist() == pytest.approx(expected, abs=1e-4)
        assert (logp[row, n:] == 0).all()


def test_plackett_luce_sums_to_one_and_far_scores_stay_finite() -> None:
    draws = torch.tensor(list(itertools.permutations(range(5), 3)))
    scores = torch.tensor([[0.0, 3.0, -2.0, 1.0, 0.5]]).expand(len(draws), -1)
    logp = plackett_luce_logp(scores, draws, torch.full((len(draws),), 3))
    assert logp.sum(1).exp().sum().item() == pytest.approx(1, abs=1e-5)
    far = plackett_luce_logp(torch.tensor([[0.0, 500.0, -500.0]]), torch.tensor([[2, 0, 1]]), torch.tensor([3]))
    assert far[0].tolist() == pytest.approx([-1000, -500, 0], abs=1e-3)
