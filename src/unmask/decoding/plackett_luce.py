"""Plackett–Luce in log space: positions drawn one after another, without replacement, from a softmax."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def plackett_luce_logp(
    scores: Float[Tensor, "b L"], position: Int[Tensor, "b m"], count: Int[Tensor, "b"]
) -> Float[Tensor, "b m"]:
    """log v of drawing ``position`` one after another without replacement from softmax(scores), in log space.

    Entries past a row's ``count`` are 0. With m = 1 this is the masked softmax (Eq. masked_softmax).
    """
    valid = torch.arange(position.shape[1], device=position.device) < count[:, None]
    drawn = scores.gather(1, position).masked_fill(~valid, -torch.inf)
    taken = torch.zeros_like(scores, dtype=torch.bool).scatter(1, position.masked_fill(~valid, 0), False)
    row, nth = torch.nonzero(valid, as_tuple=True)
    taken[row, position[row, nth]] = True
    rest = scores.masked_fill(taken, -torch.inf).logsumexp(1, keepdim=True)
    # Walking back from the last draw, the pool grows by one position at a time.
    pool = torch.cat([rest, drawn.flip(1)], dim=1).logcumsumexp(1)[:, 1:].flip(1)
    return torch.where(valid, drawn - pool, 0.0)
