"""Schedulers that know the truth and plan with it: the best and the worst order of each row, as the ends of the scale.

A row is planned once, when it is first seen, and again only when a block brings positions that no plan names. With teacher
forcing and one reveal per step the plan is optimal under any blocks, because a block's states do not depend on the order inside
earlier ones. The denoiser calls of planning count like all others.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.protocols import Scheduler, View, scheduler
from unmask.theory.beam import beam_order
from unmask.theory.lattice import MOST_HIDDEN, lattice
from unmask.theory.orders import best_order, worst_order

MOST_EXACT = 12


def best(exact: int = MOST_EXACT, width: int = 16) -> Scheduler:
    """Oracle: max_σ log p(x | σ), exact for up to ``exact`` positions at once, a beam of ``width`` beyond."""
    return _plan_scheduler(False, exact, width)


def worst(exact: int = MOST_EXACT, width: int = 16) -> Scheduler:
    """Oracle: min_σ log p(x | σ), exact for up to ``exact`` positions at once, a beam of ``width`` beyond."""
    return _plan_scheduler(True, exact, width)


def _plan_scheduler(worst: bool, exact: int, width: int) -> Scheduler:
    if not 0 <= exact <= MOST_HIDDEN:
        raise ValueError(f"exact must be from 0 to {MOST_HIDDEN} positions, got {exact}")
    key = object()

    @scheduler(needs_truth=True)
    def score(view: View) -> Float[Tensor, "b L"]:
        plans: dict[int, Int[Tensor, "L"]] = view.memory.setdefault(key, {})
        rows = view.rows.tolist()
        for nth, row in enumerate(rows):
            rank = plans.setdefault(row, torch.full_like(view.tokens[nth], -1))
            if bool((rank[view.eligible[nth]] < 0).any()):
                order = _order(view, nth, view.eligible[nth])
                rank[order] = torch.arange(len(order), device=order.device)
        return -torch.stack([plans[row] for row in rows]).float()

    def _order(view: View, nth: int, eligible: Bool[Tensor, "L"]) -> Int[Tensor, "n"]:
        assert view.reference is not None
        tokens, target = view.tokens[nth], view.reference[nth]
        attention = None if view.attention is None else view.attention[nth]
        if int(eligible.sum()) > exact:
            return beam_order(view.denoiser, tokens, target, width, worst, attention=attention, candidates=eligible)[0]
        states = lattice(view.denoiser, tokens, target, attention=attention, candidates=eligible)
        order, _ = (worst_order if worst else best_order)(states.logp)
        return states.positions[order.to(tokens.device)]

    return score
