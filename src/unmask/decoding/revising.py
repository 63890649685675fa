"""The part of a step that takes revealed tokens back. ``b`` live rows, ``L`` positions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.paces import take_first
from unmask.decoding.pricing import price
from unmask.decoding.protocols import Revision, View
from unmask.decoding.rows import LiveRows
from unmask.decoding.standing import Standing


@dataclass(frozen=True)
class Revised:
    """The canvas after a revision: what it has ``hidden`` again, or else log p of the tokens that it put in the place of others."""

    tokens: Int[Tensor, "b L"]
    hidden: Bool[Tensor, "b L"] | None = None
    logp: Float[Tensor, "b L"] | None = None


def revise(rule: Revision | None, view: View, live: LiveRows) -> Revised:
    """Take back what ``rule`` doubts most, within each row's budget."""
    if rule is None:
        return Revised(view.tokens)
    row, position = torch.nonzero(live.revisable(), as_tuple=True)
    if not len(row):
        return Revised(view.tokens)
    at = (row, position)
    prices = price(view.denoiser.logits(view.states[at]), view.denoiser.forbidden_ids)
    standing = Standing(at, view.tokens[at], prices, live.reveal_logp[at], live.quota(), live.left)
    doubt = view.dense(rule(view, standing).float(), at=at)
    taken = take_first(live.left, doubt) & (doubt > -torch.inf)
    if not getattr(rule, "replaces", False):
        return Revised(view.tokens.masked_fill(taken, view.denoiser.mask_id), hidden=taken)
    best = view.tokens.index_put(at, prices.best)
    return Revised(torch.where(taken, best, view.tokens), logp=view.dense(prices.confidence, at=at))
