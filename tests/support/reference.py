"""Plain reference implementations of distributions, budgets and heuristics, written from their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from unmask.decoding.paces import PACES
from unmask.decoding.revisions import REVISIONS
from unmask.schedulers.loading import SCHEDULERS

HEURISTICS = [
    name for name, point in SCHEDULERS.declared.items() if point.value.startswith("unmask.schedulers.heuristics")
]

# Rules that need no head, which is learned for one denoiser.
PLAIN_PACES = [name for name, point in PACES.declared.items() if point.value.startswith("unmask.decoding")]
PLAIN_REVISIONS = [name for name, point in REVISIONS.declared.items() if point.value.startswith("unmask.decoding")]

SCORES: dict[str, Callable[[list[float], int], float]] = {
    "confidence": lambda p, j: max(p),
    "margin": lambda p, j: sorted(p)[-1] - sorted(p)[-2],
    "entropy": lambda p, j: sum(q * math.log(q) for q in p if q > 0),
    "uncertainty": lambda p, j: -sum(q * math.log(q) for q in p if q > 0),
    "left_to_right": lambda p, j: -j,
    "right_to_left": lambda p, j: j,
}


def distributions(denoiser: Any, tokens: list[int], attention: list[bool] | None = None) -> list[list[float]]:
    """p_i(a) of every position, float64, nothing for forbidden tokens."""
    seen = None if attention is None else torch.tensor([attention])
    result = []
    for logits in denoiser.logits(denoiser.hidden(torch.tensor([tokens]), seen)[0]).tolist():
        weight = [0.0 if a in denoiser.forbidden_ids else math.exp(x - 30) for a, x in enumerate(logits)]
        result.append([w / sum(weight) for w in weight])
    return result


def apportion(counts: list[int], steps: int) -> list[int]:
    """Steps per block: proportional, at least one where something is hidden, the rest to the largest remainders."""
    total = sum(counts)
    budget = min(total, steps)
    exact = [Fraction(budget * n, max(1, total)) for n in counts]
    share = [min(n, max(1, math.floor(e))) for n, e in zip(counts, exact, strict=True)]
    while sum(share) < budget:
        open_blocks = [m for m, n in enumerate(counts) if share[m] < n]
        share[max(open_blocks, key=lambda m: exact[m] - share[m])] += 1
    while sum(share) > budget:
        rich = [m for m in range(len(counts)) if share[m] > 1]
        share[min(rich, key=lambda m: exact[m] - share[m])] -= 1
    return share


def puzzles(denoiser: Any, rows: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Canvases with between nothing and everything hidden, and complete targets that agree with what is given."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(denoiser.vocabulary - 1, (rows, length), generator=generator)
    target += (target >= denoiser.mask_id).long()
    share = torch.linspace(0, 1, rows)[:, None]
    hidden = torch.rand(rows, length, generator=generator) < share
    return target.masked_fill(hidden, denoiser.mask_id), target
