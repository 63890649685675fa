"""Draws from distributions: the tokens of a step, and the log-probability of positions drawn without replacement."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.decoding.draws import TOKEN_NOISE
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import View


def draw_tokens(view: View, decoding: Decoding) -> Int[Tensor, "b L"]:
    """The token that each priced position would get: the likeliest, or a draw at the token temperature within ``top_p``."""
    if decoding.token_temperature == 0:
        return view.best
    logp = (view.prices.logp / decoding.token_temperature).log_softmax(1)
    p, token = logp.double().exp().sort(dim=1, descending=True, stable=True)
    before = p.cumsum(1) - p
    p = p.masked_fill(before >= decoding.top_p, 0.0)
    ladder = p.cumsum(1)
    draw = view.uniform(TOKEN_NOISE)[view.at][:, None].double() * ladder[:, -1:]
    nth = torch.searchsorted(ladder, draw, right=True).clamp(max=p.shape[1] - 1)
    return view.tokens.index_put(view.at, token.gather(1, nth)[:, 0])


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
