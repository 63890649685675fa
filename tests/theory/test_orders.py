"""Sums over orders by subsets, against the same sums one order at a time."""

import itertools
import math

import pytest
import torch

from unmask.theory.lattice import revealed
from unmask.theory.orders import (
    action_values,
    all_orders,
    along,
    best_order,
    block_return,
    expected_return,
    importance_bounds,
    log_p_seq,
    policy_gradient,
    return_variance,
    sample_orders,
    state_values,
    visits,
    worst_order,
)
from unmask.theory.states import choice_logp


def _problem(n: int, seed: int = 0, tau: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards, scores and the policy of a random lattice."""
    generator = torch.Generator().manual_seed(seed)
    shown = revealed(n)
    logp, scores = (torch.randn(2**n, n, generator=generator, dtype=torch.float64) * 2 for _ in range(2))
    logp = (-logp.abs()).masked_fill(shown, -torch.inf)
    scores = scores.masked_fill(shown, -torch.inf)
    return logp, scores, choice_logp(scores, tau)


def _walk(values: torch.Tensor, order: tuple[int, ...]) -> float:
    """The sum along one order, without any of the library's indexing."""
    state, total = 0, 0.0
    for j in order:
        total += float(values[state, j])
        state += 2**j
    return total


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_every_sum_equals_its_enumeration(n: int) -> None:
    logp, _, logv = _problem(n, seed=n)
    orders = list(itertools.permutations(range(n)))
    returns = [_walk(logp, order) for order in orders]
    chance = [math.exp(_walk(logv, order)) for order in orders]
    mean = sum(p * r for p, r in zip(chance, returns, strict=True))
    assert sum(chance) == pytest.approx(1)
    assert float(expected_return(logp, logv)) == pytest.approx(mean, abs=1e-10)
    spread = sum(p * (r - mean) ** 2 for p, r in zip(chance, returns, strict=True))
    assert float(return_variance(logp, logv)) == pytest.approx(spread, abs=1e-10)
    mixture = math.log(sum(p * math.exp(r) for p, r in zip(chance, returns, strict=True)))
    assert float(log_p_seq(logp, logv)) == pytest.approx(mixture, abs=1e-10)
    for extreme, pick in ((best_order, max), (worst_order, min)):
        order, value = extreme(logp)
        assert value == pytest.approx(pick(returns), abs=1e-10)
        assert _walk(logp, tuple(order.tolist())) == pytest.approx(value, abs=1e-10)
    assert along(logp, all_orders(n)).tolist() == pytest.approx(returns)


def test_visits_are_the_chance_of_passing_through() -> None:
    n = 4
    _, _, logv = _problem(n, seed=3)
    expected = [0.0] * 2**n
    for order in itertools.permutations(range(n)):
        chance, state = math.exp(_walk(logv, order)), 0
        expected[0] += chance
        for j in order:
            state += 2**j
            expected[state] += chance
    assert visits(logv).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("tau", [1.0, 0.3])
def test_gradient_equals_finite_differences_and_autograd(tau: float) -> None:
    logp, scores, logv = _problem(3, seed=4, tau=tau)
    exact = policy_gradient(logp, logv, tau)
    step = 1e-5
    for state, j in torch.nonzero(~revealed(3)).tolist():
        up, down = scores.clone(), scores.clone()
        up[state, j] += step
        down[state, j] -= step
        slope = (expected_return(logp, choice_logp(up, tau)) - expected_return(logp, choice_logp(down, tau))) / (
            2 * step
        )
        assert float(exact[state, j]) == pytest.approx(float(slope), abs=1e-7)
    leaf = scores.clone().requires_grad_()
    expected_return(logp, choice_logp(leaf, tau)).backward()
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad.nan_to_num(0.0), exact, atol=1e-12)
    assert float(exact[revealed(3)].abs().max()) == 0


def test_score_function_estimator_is_unbiased() -> None:
    """Σ_σ v(σ)·R(σ)·∇log v(σ), the expectation of REINFORCE, is the exact gradient."""
    n = 4
    logp, scores, logv = _problem(n, seed=5)
    leaf = scores.clone().requires_grad_()
    orders = all_orders(n)
    trajectory = along(choice_logp(leaf, 1.0), orders)
    (trajectory.detach().exp() * along(logp, orders) * trajectory).sum().backward()
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad.nan_to_num(0.0), policy_gradient(logp, logv), atol=1e-10)


def test_a_greedy_policy_has_one_order() -> None:
    logp, scores, _ = _problem(5, seed=6)
    greedy = choice_logp(scores, 0.0)
    assert float(return_variance(logp, greedy)) == pytest.approx(0, abs=1e-12)
    assert float(log_p_seq(logp, greedy)) == pytest.approx(float(expected_return(logp, greedy)), abs=1e-12)


def test_ties_go_to_the_lowest_position() -> None:
    scores = torch.zeros(8, 3, dtype=torch.float64).masked_fill(revealed(3), -torch.inf)
    generator = torch.Generator().manual_seed(0)
    assert sample_orders(choice_logp(scores, 0.0), 4, generator).tolist() == [[0, 1, 2]] * 4


def test_values_obey_bellman_and_broadcast() -> None:
    logp, _, logv = _problem(4, seed=7)
    q, v = action_values(logp, logv), state_values(logp, logv)
    backed = torch.where(revealed(4), 0.0, logv.exp() * q.masked_fill(revealed(4), 0.0)).sum(1)
    assert torch.allclose(backed, v)
    other, _, policy = _problem(4, seed=8)
    both = torch.stack([logp, other])
    separate = [float(log_p_seq(x, policy)) for x in both]
    assert log_p_seq(both, policy).tolist() == pytest.approx(separate)
    assert expected_return(both, policy).tolist() == pytest.approx([float(expected_return(x, policy)) for x in both])


def test_importance_bound_is_exact() -> None:
    logp, _, logv = _problem(3, seed=9)
    orders = all_orders(3)
    returns, chance = along(logp, orders), along(logv, orders).exp()
    pair = sum(
        float(chance[a] * chance[b]) * float(torch.logsumexp(returns[[a, b]], 0) - math.log(2))
        for a in range(6)
        for b in range(6)
    )
    expected = [float(expected_return(logp, logv)), pair]
    assert importance_bounds(logp, logv, [1, 2]) == pytest.approx(expected, abs=1e-10)
    rising = importance_bounds(logp, logv, [1, 2, 4, 16, 256, 4096])
    assert rising == sorted(rising)
    top = float(log_p_seq(logp, logv))
    assert rising[-1] < top
    assert rising[-1] == pytest.approx(top, abs=1e-3)


def test_importance_bound_survives_returns_that_differ_by_hundreds_of_nats() -> None:
    logp, _, logv = _problem(4, seed=10)
    expected = [float(expected_return(60 * logp, logv))]
    assert importance_bounds(60 * logp, logv, [1]) == pytest.approx(expected, rel=1e-10)


def test_blocks_price_their_positions_in_one_state() -> None:
    logp, _, _ = _problem(4, seed=12)
    expected = logp[0, 2] + logp[0, 0] + logp[0b0101, 1] + logp[0b0111, 3]
    assert float(block_return(logp, [[2, 0], [1], [3]])) == pytest.approx(float(expected))
    assert float(block_return(logp, [[1], [3], [0], [2]])) == pytest.approx(_walk(logp, (1, 3, 0, 2)))
    with pytest.raises(ValueError, match="each of the 4 positions once"):
        block_return(logp, [[0, 1], [1, 2, 3]])


def test_best_order_where_a_token_is_impossible() -> None:
    """A target of probability 0 in some state: the best order avoids it, the worst runs into it."""
    logp, _, _ = _problem(3, seed=13)
    logp[0, 1] = -torch.inf
    order, value = best_order(logp)
    assert order[0] != 1 and math.isfinite(value)
    order, value = worst_order(logp)
    assert order[0] == 1 and value == -math.inf
    assert sorted(order.tolist()) == [0, 1, 2]
