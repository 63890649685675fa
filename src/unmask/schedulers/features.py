"""What a policy reads of a state besides the denoiser's hidden states: statistics of each position, and the score it begins with.

``b`` states, ``L`` positions, ``N`` priced ones. What stays the same while no row leaves the batch is computed once, in the view's
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.kv_store import Place
from unmask.decoding.pricing import constant
from unmask.decoding.protocols import View
from unmask.schedulers import heuristics

FEATURES = ("confidence", "entropy", "position", "margin", "progress", "left", "right")
BASES: dict[str, Callable[[View], Float[Tensor, "b L"]]] = {
    "confidence": heuristics.confidence,
    "uncertainty": heuristics.uncertainty,
    "entropy": heuristics.entropy,
    "margin": lambda view: 8 * view.margin,  # a power of two moves no margin onto another
    "left_to_right": heuristics.left_to_right,
}
"""Heuristics that an untrained policy can rank as, and their scores on the scale of logits."""
LOGIT_CAP = 30.0


def compute_logit(confidence: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log p̂/(1 − p̂) from log p̂, exact where p̂ is all but 1."""
    return -torch.log(torch.expm1(-confidence).clamp(min=1e-30)).clamp(max=LOGIT_CAP)


def confidence_logit(seen: dict[str, Tensor]) -> Float[Tensor, "b L"]:
    """log p̂/(1 − p̂) of an observation; that of p̂ = 1/e where nothing was priced."""
    return compute_logit(seen["confidence"].nan_to_num(neginf=-1.0))


def observe_base(view: View, base: str) -> Float[Tensor, "b L"]:
    """The scores of the heuristic ``base``, 0 where nothing was priced."""
    return torch.where(view.confidence > -torch.inf, BASES[base](view), constant(0.0, view.tokens.device))


def base_scores(seen: dict[str, Tensor]) -> Float[Tensor, "b L"]:
    """The scores that a policy begins with: those of its heuristic, or confidence as a logit."""
    return seen["base"] if "base" in seen else confidence_logit(seen)


def hidden_places(seen: dict[str, Tensor]) -> Place:
    row, position = torch.nonzero(seen["hidden"], as_tuple=True)
    return row, position


def compute_features(view: View, names: Sequence[str]) -> Float[Tensor, "b L F"]:
    """The features side by side: what is priced spread over the canvas at once, 0 where nothing was.

    ``names`` are among ``FEATURES``, ``hidden`` (the hidden bit) and ``logit`` (confidence as a logit).
    """
    prices = view.prices
    vocabulary = prices.vocabulary - len(view.denoiser.forbidden_ids)
    log_size = torch.log(torch.tensor(float(max(2, vocabulary))))
    packed: dict[str, Callable[[], Tensor]] = {
        "confidence": lambda: prices.confidence,
        "entropy": lambda: prices.entropy / log_size,
        "margin": lambda: prices.margin,
        "logit": lambda: compute_logit(prices.confidence) / 10,
    }
    distances = cache(lambda: compute_distances(view))
    other: dict[str, Callable[[], Tensor]] = {
        "position": lambda: _positions(view),
        "progress": lambda: _progress(view)[:, None].expand(view.tokens.shape),
        "left": lambda: distances()[0],
        "right": lambda: distances()[1],
        "hidden": lambda: view.hidden,
    }
    spread = [name for name in names if name in packed]
    dense = None
    if spread:
        values = torch.stack([packed[name]() for name in spread], dim=1)
        if prices.altered:  # an end token that has no confidence by decree is as if it were not priced
            values = values.masked_fill((prices.confidence == -torch.inf)[:, None], 0.0)
        dense = values.new_zeros(*view.tokens.shape, len(spread)).index_put_(view.at, values)
    columns = [
        other[name]()[..., None] if dense is None or name in other else dense[..., spread.index(name), None]
        for name in names
    ]
    return torch.cat(columns, dim=-1).float()


def compute_distances(view: View) -> Float[Tensor, "2 b L"]:
    """log₂(1 + steps to the nearest known token)/8 on either side. Padding is neither a known token nor a step."""
    real, place, behind_all = _places(view)
    known, device = real > view.hidden, view.tokens.device  # for booleans: and not
    before = torch.where(known, place, constant(0, device)).cummax(1).values
    behind = torch.where(known, place, constant(place.shape[1] + 1, device)).flip(1).cummin(1).values.flip(1)
    behind = behind.minimum(behind_all)  # what follows the last token of a row ends it
    return torch.log2(1.0 + torch.stack([place - before, behind - place]).clamp(min=0)) / 8


def is_full(view: View) -> bool:
    """Whether no row is padded: the host waits for it."""
    known = view.memory.get("full")
    if known is None or known[0] is not view.attention:
        known = view.memory["full"] = (view.attention, view.attention is None or bool(view.attention.all()))
    return known[1]


def _positions(view: View) -> Float[Tensor, "b L"]:
    """j / L."""
    known = view.memory.get("positions")
    if known is None or known[0] is not view.index:
        region = (view.index >= 0).sum(1, keepdim=True).clamp(min=1)
        known = view.memory["positions"] = (view.index, view.index.clamp(min=0) / region)
    return known[1]


def _progress(view: View) -> Float[Tensor, "b"]:
    """The share that is revealed."""
    known = view.memory.get("total")
    if known is None or known[0] is not view.total:
        known = view.memory["total"] = (view.total, view.total.clamp(min=1))
    return 1 - view.remaining / known[1]


def _places(view: View) -> tuple[Bool[Tensor, "b L"], Int[Tensor, "b L"], Int[Tensor, "b 1"]]:
    """What is no padding, the number of each token in its row, 1 for the first, and that of what would follow the last."""
    known = view.memory.get("places")
    if known is None or known[0] is not view.rows:
        real = torch.ones_like(view.hidden) if view.attention is None else view.attention
        known = view.memory["places"] = (view.rows, (real, real.long().cumsum(1), real.sum(1, keepdim=True) + 1))
    return known[1]
