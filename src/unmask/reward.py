"""Rewards of a rollout, from what its own forwards already said. ``S`` states of ``B = P·G`` rows, ``T`` steps of the longest.

``self_aware``: r_t = Σ_{i∈B_k} log p_θ^i(x_i | x̃^{(t−1)}) (Eq. self_aware_reward; one position per step sequentially, a block of
them in parallel, which is R_par of appendix "Parallel Decoding for Unique Solution"). ``terminal``: 1 at the last step if the
answer is right; ``share``: the part of it that is right. Terminal rewards need free-running rollouts.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.protocols import Path, States


def self_aware(states: States) -> Float[Tensor, "S"]:
    """r_t of every state: the target's log-probability at what was revealed there."""
    if states.target_logp is None:
        raise ValueError("the self-aware reward prices the target: decode with target= (or reference=)")
    return states.target_logp.masked_fill(~states.revealed, 0.0).sum(1)


def terminal(path: Path, target: Int[Tensor, "B L"], share: bool = False, exponent: float = 0.0) -> Float[Tensor, "B"]:
    """0/1 (or the share of right tokens) of a free-running rollout, times ((n − steps + 1)/n)^exponent for its n reveals."""
    row, k = torch.nonzero(path.order >= 0, as_tuple=True)
    right = (path.tokens == target)[row, path.order[row, k]].float()
    n = path.reveals.clamp(min=1)
    part = torch.zeros(len(n), device=right.device).index_add(0, row, right) / n
    value = part if share else (part == 1).float()
    return value * ((n - path.step.amax(1)) / n) ** exponent


def timeline(
    values: Float[Tensor, "S"], row: Int[Tensor, "S"], step: Int[Tensor, "S"], rows: int
) -> Float[Tensor, "B T"]:
    """Flat states to a table, 0 where a row has ended."""
    table = values.new_zeros(rows, int(step.max()) + 1)
    return table.index_put((row, step), values)


def to_go(rewards: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Σ_{t' ≥ t} r_t'; the first column is the return (Eq. monte_carlo_return)."""
    return rewards.flip(1).cumsum(1).flip(1)
