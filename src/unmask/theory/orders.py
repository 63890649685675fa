"""Exact sums over all ``n!`` orders, by dynamic programming over the ``2^n`` subsets of revealed positions.

``logp[s, j]`` = log p_θ(x_j | s) is the reward r(s, j) of revealing ``j`` in state ``s``; ``logv[s, j]`` = log v(j | s) the policy.
Both are float64 ``[*X, S, n]``, −inf where ``j`` is revealed in ``s``, with any leading axes ``X`` (sequences, canvases). ``M``
orders are ``[M, n]`` of the indices ``j``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST_ENUMERATED = 8
"""Up to here all orders are listed (8! = 40,320)."""


def expected_return(logp: Float[Tensor, "*#X S n"], logv: Float[Tensor, "*#X S n"]) -> Float[Tensor, "..."]:
    """E_{σ∼v}[R(x, σ)], R = log p_θ(x | σ) (Eq. self_aware_reward, the negative of Eq. self_aware_loss for one x)."""
    return state_values(logp, logv)[..., 0]


def state_values(logp: Float[Tensor, "*#X S n"], logv: Float[Tensor, "*#X S n"]) -> Float[Tensor, "... S"]:
    """V(s) = Σ_j v(j|s)·(r(s, j) + V(s ∪ j)): the expected return from each state on."""
    v = logv.exp()
    return _backward(
        lambda s, after: _weighted(v[..., s, :], logp[..., s, :] + after).sum(-1), logp.new_zeros(_shape(logp, logv))
    )


def action_values(logp: Float[Tensor, "*#X S n"], logv: Float[Tensor, "*#X S n"]) -> Float[Tensor, "... S n"]:
    """Q(s, j) = r(s, j) + V(s ∪ j), −inf where ``j`` is revealed."""
    values = state_values(logp, logv)
    return logp + values[..., _successors(logp.shape[-1])]


def return_variance(logp: Float[Tensor, "*#X S n"], logv: Float[Tensor, "*#X S n"]) -> Float[Tensor, "..."]:
    """Var_{σ∼v}[R]: what a group of sampled orders has to learn from. 0 for a perfect denoiser (Rem. expressivity_exactness)."""
    v, values = logv.exp(), state_values(logp, logv)
    n = logp.shape[-1]
    spread = _weighted(v, (action_values(logp, logv) - values[..., None]) ** 2).sum(-1)
    # Law of total variance: what the choice spreads, and what is still to come.
    return _backward(
        lambda s, after: spread[..., s] + _weighted(v[..., s, :], after).sum(-1),
        logp.new_zeros((*_shape(logp, logv)[:-1], 2**n)),
    )[..., 0]


def log_p_seq(logp: Float[Tensor, "*#X S n"], logv: Float[Tensor, "*#X S n"]) -> Float[Tensor, "..."]:
    """log P_seq(x) = log Σ_σ v(σ|x)·p_θ(x|σ) (Eq. sequential_dist)."""
    joint = logv + logp
    return _backward(
        lambda s, after: torch.logsumexp(joint[..., s, :] + after, -1), logp.new_zeros(_shape(logp, logv))
    )[..., 0]


def visits(logv: Float[Tensor, "*X S n"]) -> Float[Tensor, "*X S"]:
    """The probability that an order drawn from v passes through each state."""
    n = logv.shape[-1]
    v = logv.exp()
    reach = torch.zeros_like(v[..., 0])
    reach[..., 0] = 1
    before = torch.arange(2**n)[:, None] & ~(1 << torch.arange(n))
    for level in _levels(n)[1:]:
        # Where j is hidden, "before" is the state itself, whose chance is still 0.
        reach[..., level] = (reach[..., before[level]] * v[..., before[level], torch.arange(n)]).sum(-1)
    return reach


def policy_gradient(
    logp: Float[Tensor, "*X S n"], logv: Float[Tensor, "*X S n"], tau: float = 1.0
) -> Float[Tensor, "*X S n"]:
    """∂E[R]/∂score(s, j) = d(s)·v(j|s)·(Q(s, j) − V(s))/τ for v = softmax(score/τ), with ``d`` the visits.

    The gradient that estimators must hit on average. It is 0 where ``j`` is revealed.
    """
    advantage = action_values(logp, logv) - state_values(logp, logv)[..., None]
    return visits(logv)[..., None] * _weighted(logv.exp(), advantage) / tau


def best_order(logp: Float[Tensor, "S n"]) -> tuple[Int[Tensor, "n"], float]:
    """The order with the largest return, and the return."""
    return _extreme(logp, 1.0)


def worst_order(logp: Float[Tensor, "S n"]) -> tuple[Int[Tensor, "n"], float]:
    """The order with the smallest return, and the return."""
    return _extreme(logp, -1.0)


@cache
def all_orders(n: int) -> Int[Tensor, "M n"]:
    """Every order of ``n`` positions, ``n!`` rows."""
    if n > MOST_ENUMERATED:
        raise ValueError(f"{n} positions have too many orders to list: expected at most {MOST_ENUMERATED}")
    return torch.tensor(list(itertools.permutations(range(n))), dtype=torch.long)


def sample_orders(logv: Float[Tensor, "S n"], count: int, generator: torch.Generator) -> Int[Tensor, "M n"]:
    """``count`` orders drawn from v."""
    n = logv.shape[-1]
    state = torch.zeros(count, dtype=torch.long)
    steps = []
    for _ in range(n):
        choice = torch.multinomial(logv.exp()[state], 1, generator=generator)[:, 0]
        steps.append(choice)
        state = state | (1 << choice)
    return torch.stack(steps, 1)


def along(values: Float[Tensor, "*X S n"], orders: Int[Tensor, "M n"]) -> Float[Tensor, "*X M"]:
    """Σ_t values[s_{t−1}, i_t] along each order: R(x, σ) from ``logp``, log v(σ | x) from ``logv``."""
    bits = 1 << orders
    state = bits.cumsum(1) - bits
    return values[..., state, orders].sum(-1)


def block_return(logp: Float[Tensor, "*X S n"], blocks: list[list[int]]) -> Float[Tensor, "*X"]:
    """R_par(x, β) = Σ_k Σ_{i∈B_k} log p_θ(x_i | x_{B_<k}) (appendix parallel_dirac): a block is priced in one state."""
    if sorted(itertools.chain.from_iterable(blocks)) != list(range(logp.shape[-1])):
        raise ValueError(f"blocks must name each of the {logp.shape[-1]} positions once, got {blocks}")
    state, total = 0, logp.new_zeros(logp.shape[:-2])
    for block in blocks:
        total = total + logp[..., state, block].sum(-1)
        state += sum(1 << i for i in block)
    return total


def importance_bounds(logp: Float[Tensor, "S n"], logv: Float[Tensor, "S n"], Ks: Sequence[int]) -> list[float]:
    """E[log (1/K)·Σ_k p_θ(x | σ_k)] over K independent orders, for each K: the ELBO at K = 1, rising to log P_seq(x).

    Exact: with w_k = p(x|σ_k)/max_σ p(x|σ) and φ(t) = E[e^{−t·w}], Frullani's integral gives
    E[log Σ_k w_k] = ∫ (e^{−t} − φ(t)^K) dt/t, and the trapezoid in log t converges faster than any power of its step.
    """
    if min(Ks) < 1:
        raise ValueError(f"an importance-weighted bound needs at least one order, got K = {min(Ks)}")
    orders = all_orders(logp.shape[-1])
    returns, chance = along(logp, orders), along(logv, orders).exp()
    returns, chance = returns[chance > 0], chance[chance > 0]
    top = returns.max()
    w = (returns - top).exp()
    # Beyond t ~ 700/min w both terms vanish; below e^−40 their difference does.
    t = torch.arange(-160.0, 4 * float(top - returns.min() + 7), dtype=torch.float64).div(4).exp()
    phi = torch.cat([torch.exp(-part[:, None] * w) @ chance for part in t.split(64)])
    return [float(top + ((-t).exp() - phi**K).sum() / 4) - math.log(K) for K in Ks]


def _extreme(logp: Float[Tensor, "S n"], sign: float) -> tuple[Int[Tensor, "n"], float]:
    n = logp.shape[-1]
    reward = (sign * logp).masked_fill(_successors(n) == torch.arange(2**n)[:, None], -torch.inf)
    values = _backward(lambda s, after: (reward[s] + after).amax(-1), logp.new_zeros(2**n))
    q = reward + values[_successors(n)]
    state, order = 0, []
    for _ in range(n):
        order.append(int(q[state].argmax()))
        state |= 1 << order[-1]
    return torch.tensor(order), sign * float(values[0])


def _backward(
    step: Callable[[Tensor, Float[Tensor, "... s n"]], Float[Tensor, "... s"]], values: Float[Tensor, "... S"]
) -> Float[Tensor, "... S"]:
    """Fill ``values`` from the full state down: ``step(states, values of their successors)``."""
    n = values.shape[-1].bit_length() - 1
    successors = _successors(n)
    for level in reversed(_levels(n)[:-1]):
        values = values.index_copy(-1, level, step(level, values[..., successors[level]]))
    return values


def _weighted(v: Tensor, x: Tensor) -> Tensor:
    """v·x with 0·(−inf) = 0; the inner mask keeps the derivative finite too."""
    return v * x.masked_fill(v == 0, 0.0)


def _shape(logp: Tensor, logv: Tensor) -> tuple[int, ...]:
    return tuple((logp[..., 0] + logv[..., 0]).shape)


@cache
def _levels(n: int) -> list[Int[Tensor, "s"]]:
    """The states with 0, 1, …, n reveals."""
    count = ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).sum(1)
    return [torch.nonzero(count == k)[:, 0] for k in range(n + 1)]


@cache
def _successors(n: int) -> Int[Tensor, "S n"]:
    """s ∪ j; the state itself where ``j`` is revealed."""
    return torch.arange(2**n)[:, None] | (1 << torch.arange(n))
