"""Rewards of a rollout, from what its own forwards said, and what a position costs alone.

``S`` states of ``B = P·G`` rows, ``T`` steps of the longest.

``self_aware``: r_t = Σ_{i∈B_k} log p_θ^i(x_i | x̃^{(t−1)}) (Eq. self_aware_reward; one position per step sequentially, a block of
them in parallel, which is R_par of appendix "Parallel Decoding for Unique Solution"). ``terminal``: 1 at the last step if the
answer is right; ``share``: the part of it that is right. Terminal rewards need free-running rollouts.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.pricing import price
from unmask.decoding.protocols import Canvas, Denoiser, Judge, States, Trajectory

AT_ONCE = 256
"""Canvases with one gap that are priced together, unless somebody says otherwise."""


def self_aware(states: States) -> Float[Tensor, "S"]:
    """r_t of every state: the target's log-probability at what was revealed there."""
    if states.target_logp is None:
        raise ValueError("the self-aware reward prices the target: decode with target= (or reference=)")
    return states.target_logp.masked_fill(~states.revealed, 0.0).sum(1)


def terminal(
    path: Trajectory, target: Int[Tensor, "B L"], share: bool = False, exponent: float = 0.0, judge: Judge | None = None
) -> Float[Tensor, "B"]:
    """0/1 (or the share of right tokens) of a free-running rollout, times ((n − steps + 1)/n)^exponent for its n reveals.

    Right is what the ``judge`` says; without one, what the target has.
    """
    row, k = torch.nonzero(path.order >= 0, as_tuple=True)
    right = (path.tokens == target)[row, path.order[row, k]].float()
    n = path.reveals.clamp(min=1)
    part = torch.zeros(len(n), device=right.device).index_add(0, row, right) / n
    if share:
        value = part
    else:
        value = (part == 1 if judge is None else judge(target, path.tokens)).float()
    return value * ((n - path.step.amax(1)) / n) ** exponent


def leave_one_out_logp(denoiser: Denoiser, canvas: Canvas, at_once: int = AT_ONCE) -> Float[Tensor, "B L"]:
    """log p_θ^i(x_i | x_∖i) of every position that is to be revealed, when all others are; 0 elsewhere. A forward for each.

    Their sum is the pseudo-log-likelihood of x, whatever the order: rewards relative to it, log p(x_i|s) − log p(x_i|x_∖i), add up
    to the same return but for a constant (they are shaped by the potential Σ_{i∈M} log p(x_i|x_∖i)). What no order can tell, such
    as which of several words for the same thing was used, no longer looks like a bad choice.
    """
    asked: Bool[Tensor, "B L"] = canvas.answer(denoiser.mask_id)
    known = torch.where(asked, canvas.truth, canvas.tokens)
    row, place = torch.nonzero(asked, as_tuple=True)
    found = torch.zeros(known.shape, device=known.device)
    for part in torch.arange(len(row), device=row.device).split(at_once):
        r, i = row[part], place[part]
        n = torch.arange(len(part), device=row.device)
        tokens = known[r].index_put((n, i), torch.tensor(denoiser.mask_id, device=known.device))
        states = denoiser.hidden(tokens, None if canvas.attention is None else canvas.attention[r])
        prices = price(denoiser.logits(states[n, i]), denoiser.forbidden_ids)
        found[r, i] = prices.logp.gather(1, canvas.truth[r, i][:, None])[:, 0]
    return found


def timeline(
    values: Float[Tensor, "S"], row: Int[Tensor, "S"], step: Int[Tensor, "S"], rows: int
) -> Float[Tensor, "B T"]:
    """Flat states to a table, 0 where a row has ended."""
    table = values.new_zeros(rows, int(step.max()) + 1)
    return table.index_put((row, step), values)


def to_go(rewards: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Σ_{t' ≥ t} r_t'; the first column is the return (Eq. monte_carlo_return)."""
    return rewards.flip(1).cumsum(1).flip(1)
