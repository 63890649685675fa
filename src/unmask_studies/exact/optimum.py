"""The best order that can be followed without knowing the answer, and how much of the way to it a policy goes.

A policy maps a state (the tokens on the canvas) to the next position. If the canvas has one completion, a state says what is
hidden, and the best policy is the best order. If it has ``M`` completions ``x`` with a law over them, the policy must choose
before it knows which is true. With E over x given s,

    V(s) = max_i E[log p_θ(x_i | s) + V(s ∪ {i = x_i})].

``n`` hidden positions, ``S = 2^n`` sets of revealed positions (bitmasks as in :mod:`unmask.theory.lattice`), ``T`` distinct states:
partial assignments that agree with at least one completion. A policy is a table ``logv[T, n]``; −inf where a position is revealed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from unmask.decoding.loop import score_positions
from unmask.decoding.protocols import Denoiser, Scheduler, needs_truth
from unmask.evaluation.statistics import Interval
from unmask.schedulers.heuristics import left_to_right
from unmask.theory.lattice import revealed
from unmask.theory.orders import best_order, expected_return, log_p_seq
from unmask.theory.states import Start

MOST_STATES = 2**16


@dataclass(frozen=True, eq=False)
class Completions:
    """A canvas, what it may turn out to be, and every state on the way.

    ``state[m, s]`` is the row of ``canvases`` in which the positions of ``s`` are revealed and completion ``m`` is true.
    ``logp[m, s, j]`` = log p_θ(x^m_j | state), float64, −inf where ``j`` is revealed; ``hit`` says where x^m_j is the denoiser's
    likeliest token. ``denoiser_calls`` = T − M.
    """

    start: Start
    truths: Int[Tensor, "M L"]
    law: Float[Tensor, "M"]
    canvases: Int[Tensor, "T L"]
    state: Int[Tensor, "M S"]
    logp: Float[Tensor, "M S n"]
    hit: Bool[Tensor, "M S n"]
    denoiser_calls: int

    @torch.no_grad()
    def scores(
        self, schedulers: Mapping[str, Scheduler], *, seed: int = 0, rows_at_once: int = 1024
    ) -> dict[str, Float[Tensor, "T n"]]:
        """The scores of several schedulers in every state, from one forward each; ``choice_logp`` makes policies of them.

        Oracles are refused: a policy may not depend on what is hidden.
        """
        if oracles := [name for name, scheduler in schedulers.items() if needs_truth(scheduler)]:
            raise ValueError(
                f"{', '.join(oracles)}: an oracle reads the hidden tokens; expected schedulers that do not"
            )
        shape = (len(self.canvases), len(self.start.positions))
        tables = {name: torch.full(shape, -torch.inf, dtype=torch.float64) for name in schedulers}
        # Every hidden position is a candidate here, so a scheduler that wants the whole canvas priced sees no more than others.
        for index, view in self.start.views(self.canvases, left_to_right, None, seed, rows_at_once):
            for name, scheduler in schedulers.items():
                scores = score_positions(scheduler, view).double().masked_fill(~view.eligible, -torch.inf)
                tables[name][index.cpu()] = scores[:, self.start.positions].cpu()
        return tables


@torch.no_grad()
def price_completions(
    denoiser: Denoiser,
    tokens: Int[Tensor, "L"],
    truths: Int[Tensor, "M L"],
    law: Float[Tensor, "M"] | None = None,
    *,
    rows_at_once: int = 1024,
) -> Completions:
    """Price every state of the canvas ``tokens`` that agrees with one of ``truths``; ``law`` is uniform unless given."""
    start = Start.of(denoiser, tokens)
    n, M = len(start.positions), len(truths)
    if M == 0 or M << n > MOST_STATES:
        raise ValueError(
            f"{n} hidden positions and {M} completions have up to {M}·2^{n} states: expected at least one completion and at "
            f"most {MOST_STATES} states; reveal more of the canvas"
        )
    weight = torch.full((M,), 1 / M, dtype=torch.float64) if law is None else law.double()
    if not bool((weight > 0).all()) or abs(float(weight.sum()) - 1) > 1e-9:
        raise ValueError("the law of the completions must be positive and sum to 1: leave out what cannot be")
    if bool(((tokens != denoiser.mask_id) & (tokens != truths)).any()):
        raise ValueError("a completion contradicts the canvas: expected truths that keep every revealed token")
    if len(torch.unique(truths[:, start.positions], dim=0)) < M:
        raise ValueError("two completions are the same: expected distinct ones, with their weights added in the law")
    shown = revealed(n).to(tokens.device)
    rows = torch.where(shown, truths[:, None, start.positions], denoiser.mask_id)
    distinct, state = torch.unique(rows.flatten(0, 1), dim=0, return_inverse=True)
    state = state.view(M, -1).cpu()
    canvases = start.tokens.repeat(len(distinct), 1)
    canvases[:, start.positions] = distinct

    calls = denoiser.forwarded
    priced = torch.full((len(canvases), n, M), -torch.inf, dtype=torch.float64)
    likeliest = torch.full((len(canvases), n), -1)
    for index, view in start.views(canvases, left_to_right, rows_at_once=rows_at_once):
        row, nth = index[view.at[0]].cpu(), torch.searchsorted(start.positions, view.at[1]).cpu()
        priced[row, nth] = view.prices.logp.gather(1, truths[:, view.at[1]].T).double().cpu()
        likeliest[row, nth] = view.prices.best.cpu()
    each = torch.arange(M)[:, None]
    hit = likeliest[state] == truths[:, None, start.positions].cpu()
    logp = priced.movedim(2, 0)[each, state]
    return Completions(start, truths, weight, canvases, state, logp, hit, denoiser.forwarded - calls)


def policy_value(canvas: Completions, logv: Float[Tensor, "T n"]) -> Float[Tensor, ""]:
    """E_x E_{σ∼v}[R(x, σ)] of a policy, greedy or not; differentiable in ``logv``."""
    return (canvas.law * expected_return(canvas.logp, logv[canvas.state])).sum()


def solve_chance(canvas: Completions, logv: Float[Tensor, "T n"]) -> float:
    """The chance that a decoding with greedy tokens ends in one of the completions.

    A decoding that solves the canvas never leaves the states that agree with a completion: all of them are here.
    """
    right = torch.where(canvas.hit, 0.0, -torch.inf).double()
    return float(log_p_seq(right, logv[canvas.state]).exp().sum())


def best_policy(canvas: Completions) -> tuple[Float[Tensor, "T n"], float]:
    """The policy that maximises E_x[R] without knowing x, as a table, and its value."""
    M, S, n = canvas.logp.shape
    hidden = ~revealed(n)
    subsets, bits = torch.arange(S), 1 << torch.arange(n)
    level = (subsets[:, None] & bits > 0).sum(1)
    mass = torch.zeros(len(canvas.canvases), dtype=torch.float64)
    mass = mass.index_add(0, canvas.state.flatten(), canvas.law[:, None].expand(M, S).flatten())
    values = torch.zeros_like(mass)
    logv = torch.full((len(mass), n), -torch.inf, dtype=torch.float64)
    for reveals in range(n - 1, -1, -1):
        s = subsets[level == reveals]
        after = values[canvas.state[:, s[:, None] | bits]]
        paid = (canvas.law[:, None, None] * (canvas.logp[:, s] + after)).masked_fill(~hidden[s], -torch.inf)
        here, place = torch.unique(canvas.state[:, s], return_inverse=True)
        q = torch.zeros(len(here), n, dtype=torch.float64).index_add(0, place.flatten(), paid.flatten(0, 1))
        q = q / mass[here][:, None]
        values[here] = q.amax(1)
        logv[here, q.argmax(1)] = 0.0
    return logv, float(values[canvas.state[0, 0]])


def clairvoyant_value(canvas: Completions) -> float:
    """E_x[max_σ R(x, σ)]: what an oracle that knows x would reach. No policy reaches more."""
    return float(sum(weight * best_order(logp)[1] for weight, logp in zip(canvas.law, canvas.logp, strict=True)))


@dataclass(frozen=True)
class Share:
    """What part of the way from ``base``, the best heuristic, to the optimum a policy goes; ``gap`` is that way, in nats."""

    base: str
    gap: float
    closed: Interval


def measure_share(
    policy: ArrayLike,
    heuristics: Mapping[str, ArrayLike],
    optimum: ArrayLike,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Share:
    """(E[R] of the policy − of the best heuristic)/(E[R] of the optimum − of the best heuristic), all ``[C]`` over canvases.

    The best heuristic is the one with the largest mean. The interval is the percentile bootstrap of the ratio of means over
    canvases; without a gap, or with one canvas, nothing is known.
    """
    values = {name: np.asarray(value, dtype=np.float64) for name, value in heuristics.items()}
    base = max(values, key=lambda name: float(values[name].mean()))
    won, way = (np.asarray(x, dtype=np.float64) - values[base] for x in (policy, optimum))
    if won.ndim != 1 or won.shape != way.shape:
        raise ValueError(f"expected values of the same canvases, got shapes {won.shape} and {way.shape}")
    gap = float(way.mean())
    if gap <= 0 or len(way) == 1:
        return Share(base, gap, Interval(float(won.mean()) / gap if gap > 0 else nan, -inf, inf))
    draws = np.random.default_rng(seed).integers(len(way), size=(resamples, len(way)))
    above, below = won[draws].sum(1), way[draws].sum(1)
    ratios = above[below > 0] / below[below > 0]
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Share(base, gap, Interval(float(won.mean()) / gap, float(low), float(high)))
