"""The subset lattice of one canvas under teacher forcing: everything that any order of its hidden positions can meet.

``n`` hidden positions, ``S = 2^n`` states. State ``s`` is a bitmask: bit ``j`` is set where ``positions[j]`` is revealed, with the
target's token. An order is a sequence of the indices ``j``, not of canvas positions. What needs no denoiser is in
:mod:`unmask.theory.orders`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.protocols import Denoiser, Scheduler
from unmask.schedulers.heuristics import left_to_right
from unmask.theory.states import Start, choice_logp

MOST_HIDDEN = 16


@dataclass(frozen=True, eq=False)
class Lattice:
    """``logp[s, j]`` = log p_θ(x*_j | s) in float64, −inf where ``j`` is revealed. ``denoiser_calls`` = 2^n − 1."""

    start: Start
    target: Int[Tensor, "L"]
    logp: Float[Tensor, "S n"]
    denoiser_calls: int

    @property
    def positions(self) -> Int[Tensor, "n"]:
        return self.start.positions

    @property
    def canvases(self) -> Int[Tensor, "S L"]:
        return _canvases(self.start, self.target)


def lattice(
    denoiser: Denoiser,
    tokens: Int[Tensor, "L"],
    target: Int[Tensor, "L"],
    *,
    attention: Bool[Tensor, "L"] | None = None,
    region: Bool[Tensor, "L"] | None = None,
    candidates: Bool[Tensor, "L"] | None = None,
    rows_at_once: int = 1024,
) -> Lattice:
    """Price the target in every state of the canvas ``tokens``: one forward per state that hides something."""
    start = Start.of(denoiser, tokens, attention, region, candidates)
    n = len(start.positions)
    if n > MOST_HIDDEN:
        raise ValueError(
            f"a lattice of {n} hidden positions has 2^{n} states: expected at most {MOST_HIDDEN} positions; "
            "hide fewer, or use beam_order"
        )
    calls = denoiser.forwarded
    logp = torch.full((2**n, n), -torch.inf, dtype=torch.float64)
    for index, view in start.views(_canvases(start, target), left_to_right, rows_at_once=rows_at_once):
        truth = target[view.at[1]][:, None]
        dense = view.dense(view.prices.logp.gather(1, truth)[:, 0])
        logp[index.cpu()] = dense[:, start.positions].double().cpu()
    return Lattice(start, target, logp, denoiser.forwarded - calls)


def scheduler_logv(
    lattice: Lattice, scheduler: Scheduler, tau: float = 0.0, *, seed: int = 0, rows_at_once: int = 1024
) -> Float[Tensor, "S n"]:
    """log v(j | s) of a scheduler in every state, at the order's temperature τ (0: greedy, a deterministic policy).

    One forward per state. A scheduler that draws numbers of its own (``random``) is the deterministic one that ``seed`` makes
    of it. Differentiable in the scheduler's parameters, and so is every quantity built on it.
    """
    scores = lattice.start.scores(lattice.canvases, scheduler, lattice.target, seed, rows_at_once)
    return choice_logp(scores, tau)


def revealed(n: int) -> Bool[Tensor, "S n"]:
    """Which of the ``n`` positions each of the 2^n states has revealed."""
    return (torch.arange(2**n)[:, None] >> torch.arange(n)) & 1 == 1


def _canvases(start: Start, target: Int[Tensor, "L"]) -> Int[Tensor, "S L"]:
    shown = revealed(len(start.positions)).to(target.device)
    canvases = start.tokens.repeat(len(shown), 1)
    canvases[:, start.positions] = torch.where(shown, target[start.positions], start.denoiser.mask_id)
    return canvases
