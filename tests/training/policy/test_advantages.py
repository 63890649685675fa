"""Advantages and objectives against hand computations, and the estimators against the exact gradient."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from unmask.decoding.sampling import plackett_luce_logp
from unmask.training.policy import advantages as grpo
from unmask.training.policy.config import CHOICES
from unmask.training.policy.decisions import Decisions
from unmask.training.policy.rewards import to_go


def test_returns_to_go_are_suffix_sums() -> None:
    row, k = torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 0, 2])
    every = torch.ones(4, 3, dtype=torch.bool)
    decisions = Decisions(row, k, state=row, chosen=k, eligible=every, last=every[:, 0])
    rewards = decisions.timeline(torch.tensor([1.0, 2.0, 4.0, 8.0]), rows=2)
    assert rewards.tolist() == [[1, 2, 8], [4, 0, 0]]
    assert to_go(rewards).tolist() == [[11, 10, 8], [4, 0, 0]]


def test_trajectory_advantage_is_the_standardised_return() -> None:
    rewards = torch.tensor([[-1.0, -3.0], [-2.0, 0.0], [-5.0, -5.0], [-5.0, -5.0]])
    credit, live = grpo.advantages(rewards, group=2, kind="trajectory", floor=0.1)
    assert credit[:2].tolist() == [[-1.0, -1.0], [1.0, 1.0]]
    assert credit[2:].abs().max() == 0
    assert live.tolist() == [True, True, False, False]


def test_the_floor_keeps_small_spreads_small() -> None:
    rewards = torch.tensor([[-1.0], [-1.001]])
    credit, _ = grpo.advantages(rewards, group=2, kind="trajectory", floor=0.1)
    assert credit.abs().max() < 0.01


def test_reward_to_go_does_not_credit_the_past() -> None:
    rewards = torch.tensor([[-9.0, -1.0], [0.0, -1.0]])
    credit, _ = grpo.advantages(rewards, group=2, kind="reward_to_go")
    assert credit[:, 1].tolist() == [0.0, 0.0]
    assert credit[0, 0] < 0 < credit[1, 0]


def test_all_action_leaves_the_immediate_reward_to_the_expectation() -> None:
    rewards = torch.tensor([[-9.0, -1.0], [0.0, -1.0]])
    credit, _ = grpo.advantages(rewards, group=2, kind="all_action")
    assert credit.abs().max() == 0


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("kind", ["trajectory", "reward_to_go", "all_action"])
def test_advantages_are_their_definition(kind: str, normalise: bool) -> None:
    """Number by number: two prompts of three orders each, the second with less spread than the floor."""
    rewards = torch.tensor([[-4.0, -1], [0, -2], [-1, -3], [-0.1, -0.2], [-0.2, -0.2], [-0.1, -0.1]])
    credit, live = grpo.advantages(rewards, 3, kind, floor=0.5, normalise=normalise)
    for prompt in range(2):
        rows = [rewards[3 * prompt + order].tolist() for order in range(3)]
        returns = [sum(row) for row in rows]
        spread = (sum((one - sum(returns) / 3) ** 2 for one in returns) / 3) ** 0.5
        scale = max(spread, 0.5) if normalise and kind != "all_action" else 1.0
        for t in range(2):
            start = {"trajectory": 0, "reward_to_go": t, "all_action": t + 1}[kind]
            ahead = [sum(row[start:]) for row in rows]
            expected = [(one - sum(ahead) / 3) / scale for one in ahead]
            assert credit[3 * prompt : 3 * prompt + 3, t].tolist() == pytest.approx(expected, abs=1e-6)
    assert live.all()


def test_unknown_advantages_are_refused() -> None:
    with pytest.raises(ValueError, match=r"advantage must be one of trajectory, .*, got 'oracle'"):
        grpo.advantages(torch.zeros(2, 1), 2, "oracle")


def test_critic_credits_a_reveal_with_its_gain_on_the_others() -> None:
    """Two orders of three positions. δ_t = r_t + Φ_{t+1} − Φ_t; with decay 1 the sum is the return to go minus Φ_t."""
    rewards = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -0.5, -0.1]])
    expected = torch.tensor([[-6.0, -4.0, -0.5], [-6.0, -0.8, -0.1]])
    gain = torch.tensor([[1.0, 1.5, 0.0], [2.2, 0.2, 0.0]])
    for decay, traced in (
        (0.0, gain),
        (0.5, torch.tensor([[1.75, 1.5, 0.0], [2.3, 0.2, 0.0]])),
        (1.0, to_go(rewards) - expected),
    ):
        alone, _ = grpo.advantages(rewards, 1, "critic", normalise=False, expected=expected, decay=decay)
        assert torch.allclose(alone, traced, atol=1e-6)
        paired, _ = grpo.advantages(rewards, 2, "critic", normalise=False, expected=expected, decay=decay)
        assert torch.allclose(paired, traced - traced.mean(0), atol=1e-6)
        scaled, _ = grpo.advantages(rewards, 2, "critic", expected=expected, decay=decay)
        assert scaled.pow(2).mean() == pytest.approx(1, abs=1e-5)
    one_step, _ = grpo.advantages(rewards[:, :1], 1, "critic", normalise=False, expected=expected[:, :1])
    assert torch.allclose(one_step, rewards[:, :1] - expected[:, :1])
    with pytest.raises(ValueError, match=r"^advantage critic needs expected"):
        grpo.advantages(rewards, 2, "critic")


def test_clip_bites_on_one_side_only() -> None:
    old = torch.zeros(4)
    new = torch.tensor([0.5, 0.5, -0.5, -0.5])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    value, clipped = grpo.clipped_objective(new, old, advantage, epsilon=0.2)
    ratio = new.exp()
    assert torch.allclose(value, torch.tensor([1.2, -ratio[1].item(), ratio[2].item(), -0.8]))
    assert clipped.tolist() == [1, 1, 1, 1]


def test_ratios_are_bounded() -> None:
    """A choice that has become e⁵⁰ times likelier, or less likely, has a finite objective and a gradient of 0."""
    new = torch.tensor([50.0, -50.0], requires_grad=True)
    value, _ = grpo.clipped_objective(new, torch.zeros(2), torch.tensor([-1.0, -1.0]), epsilon=0.2)
    assert value.tolist() == pytest.approx([-math.exp(20), -0.8])
    assert torch.autograd.grad(value.sum(), new)[0].tolist() == [0, 0]
    value, _ = grpo.clipped_objective(new, torch.zeros(2), torch.tensor([1.0, 1.0]), epsilon=0.2)
    assert value.tolist() == pytest.approx([1.2, math.exp(-20)])


def test_expected_reward_ignores_non_candidates() -> None:
    logv = torch.tensor([[0.25, 0.75, 0.0]]).log()
    assert grpo.expected_reward(logv, torch.tensor([[-2.0, -4.0, -torch.inf]])).tolist() == pytest.approx([-3.5])


def test_bernoulli_logp_is_a_product_over_candidates() -> None:
    scores = torch.tensor([[0.0, 2.0, -1.0, 50.0]])
    drawn, eligible = torch.tensor([[True, False, True, True]]), torch.tensor([[True, True, True, False]])
    expected = math.log(0.5) + math.log(1 - 1 / (1 + math.exp(-2))) + math.log(1 / (1 + math.exp(1)))
    assert grpo.bernoulli_logp(scores, drawn, eligible).tolist() == pytest.approx([expected], abs=1e-6)


def test_kl_and_entropy_ignore_non_candidates() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0, -torch.inf]])
    logv = scores.log_softmax(1)
    assert grpo.categorical_kl(logv, logv).item() == 0
    p = torch.tensor([1.0, 2.0, 3.0]).softmax(0)
    assert torch.allclose(grpo.entropy(logv), -(p * p.log()).sum())
    other = torch.tensor([[3.0, 2.0, 1.0, -torch.inf]]).log_softmax(1)
    q = torch.tensor([3.0, 2.0, 1.0]).softmax(0)
    assert torch.allclose(grpo.categorical_kl(logv, other), (p * (p / q).log()).sum())


def _exact(scores: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
    """E[R] of a softmax policy with a table of scores per set of revealed positions, by enumerating all orders."""
    n = scores.shape[1]
    total = scores.new_zeros(())
    for order in itertools.permutations(range(n)):
        state, logp, value = 0, scores.new_zeros(()), 0.0
        for i in order:
            hidden = torch.tensor([not state >> j & 1 for j in range(n)])
            logp = logp + scores[state].masked_fill(~hidden, -torch.inf).log_softmax(0)[i]
            value += reward[state, i].item()
            state |= 1 << i
        total = total + logp.exp() * value
    return total


@pytest.mark.parametrize("kind", CHOICES["advantage"])
def test_estimators_agree_with_the_exact_gradient(kind: str) -> None:
    """Sampled with a large group, every advantage points along ∇E[R]."""
    generator = torch.Generator().manual_seed(3)
    n, group = 3, 20_000
    scores = torch.randn(2**n, n, generator=generator, dtype=torch.float64)
    reward = -torch.rand(2**n, n, generator=generator, dtype=torch.float64)
    exact = torch.autograd.grad(_exact(scores.requires_grad_(), reward), scores)[0]
    state = torch.zeros(group, dtype=torch.long)
    visited, chosen, rewards, expected = [], [], [], []
    for _ in range(n):
        hidden = torch.stack([(state >> j) & 1 == 0 for j in range(n)], 1)
        logv = scores.detach()[state].masked_fill(~hidden, -torch.inf).log_softmax(1)
        i = torch.multinomial(logv.exp(), 1, generator=generator)[:, 0]
        visited.append((state, hidden))
        chosen.append(i)
        rewards.append(reward[state, i])
        expected.append((reward[state] * hidden).sum(1))
        state = state | (1 << i)
    table = torch.stack(rewards, 1).float()
    credit, _ = grpo.advantages(table, group, kind, expected=torch.stack(expected, 1).float(), normalise=False)
    raw = credit.double()
    loss = scores.new_zeros(())
    for t, (at, hidden) in enumerate(visited):
        logv = scores[at].masked_fill(~hidden, -torch.inf).log_softmax(1)
        taken = logv.gather(1, chosen[t][:, None])[:, 0]
        value, _ = grpo.clipped_objective(taken, taken.detach(), raw[:, t], 0.2)
        if kind == "all_action":
            value = value + grpo.expected_reward(logv, reward[at])
        loss = loss + value.mean()
    estimate = torch.autograd.grad(loss, scores)[0]
    assert (estimate - exact).abs().max() < 0.02
    assert torch.nn.functional.cosine_similarity(estimate.flatten(), exact.flatten(), dim=0) > 0.99


def test_plackett_luce_sums_to_one_over_ordered_draws() -> None:
    scores = torch.tensor([[0.3, -1.0, 2.0, -torch.inf, 0.0]])
    draws = torch.tensor([list(d) for d in itertools.permutations([0, 1, 2, 4], 2)])
    logp = plackett_luce_logp(scores.expand(len(draws), -1), draws, torch.full((len(draws),), 2))
    assert torch.allclose(logp.sum(1).exp().sum(), torch.tensor(1.0), atol=1e-6)
