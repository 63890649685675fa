"""Draws from distributions: the tokens of a step, and the log-probability of positions drawn without replacement."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.decoding.draws import TOKEN_NOISE
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import AT_ONCE
from unmask.decoding.protocols import View

LIKELIEST = 256
"""How many tokens of a distribution are ranked at first; eight times as many where a draw lies beyond them."""


def draw_tokens(view: View, decoding: Decoding) -> Int[Tensor, "b L"]:
    """The token that each priced position would get: the likeliest, or a draw at the token temperature within ``top_p``."""
    if decoding.token_temperature == 0:
        return view.best
    logp, draw = view.prices.logp, view.uniform(TOKEN_NOISE)[view.at]
    rows = max(1, AT_ONCE // max(1, logp.shape[1]))
    drawn = [
        draw_from(part / decoding.token_temperature, u, decoding.top_p)
        for part, u in zip(logp.split(rows), draw.split(rows), strict=True)
    ]
    return view.tokens.index_put(view.at, torch.cat(drawn))


def draw_from(logits: Float[Tensor, "N V"], draw: Float[Tensor, "N"], top_p: float = 1.0) -> Int[Tensor, "N"]:
    """Tokens by the inverse of their cumulative distribution, the likeliest first and the lower id first among equals.

    ``draw`` is one uniform number for each; ``top_p`` keeps the likeliest tokens up to the one that completes this probability.
    Only as many tokens are ranked as the draws need, never the vocabulary as a whole unless they do.
    """
    wide = torch.float32 if logits.device.type == "mps" else torch.float64  # MPS has no float64
    p = logits.log_softmax(1).to(wide).exp()
    count, vocabulary = min(LIKELIEST, p.shape[1]), p.shape[1]
    while True:
        top, token = _rank(p, count)
        ladder = top.cumsum(1)
        before = ladder - top
        # Equals of the last one may be among those that were not ranked.
        sure = torch.ones_like(top, dtype=torch.bool) if count == vocabulary else top > top[:, -1:]
        inside = before < top_p
        mass = p.sum(1) if top_p == 1 else ladder.masked_fill(~inside, 0.0).amax(1)
        target = draw.to(wide) * mass
        found = (target < ladder.masked_fill(~sure, 0.0).amax(1)) & ((top_p == 1) | (sure & ~inside).any(1))
        if count == vocabulary or bool(found.all()):
            last = inside.sum(1) - 1 if top_p < 1 else vocabulary - 1
            nth = (ladder <= target[:, None]).sum(1).clamp(max=last)
            return token.gather(1, nth[:, None])[:, 0]
        count = min(8 * count, vocabulary)


def _rank(p: Float[Tensor, "N V"], count: int) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    """The ``count`` largest in descending order, and where they are; the lower index first among equals."""
    if count == p.shape[1]:
        return p.sort(dim=1, descending=True, stable=True)
    token = p.topk(count, dim=1, sorted=False).indices.sort(dim=1).values
    top, place = p.gather(1, token).sort(dim=1, descending=True, stable=True)
    return top, token.gather(1, place)


def plackett_luce_logp(
    scores: Float[Tensor, "b L"], position: Int[Tensor, "b m"], count: Int[Tensor, "b"]
) -> Float[Tensor, "b m"]:
    """log v of drawing ``position`` one after another without replacement from softmax(scores), in log space.

    Entries past a row's ``count`` are 0. With m = 1 this is the masked softmax (Eq. masked_softmax).
    """
    valid = torch.arange(position.shape[1], device=position.device) < count[:, None]
    drawn = scores.gather(1, position).masked_fill(~valid, -torch.inf)
    taken = torch.zeros_like(scores, dtype=torch.long).scatter_add_(1, position, valid.long()) > 0
    rest = scores.masked_fill(taken, -torch.inf).logsumexp(1, keepdim=True)
    # Walking back from the last draw, the pool grows by one position at a time.
    pool = torch.cat([rest, drawn.flip(1)], dim=1).logcumsumexp(1)[:, 1:].flip(1)
    return torch.where(valid, drawn - pool, 0.0)
