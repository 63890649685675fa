"""What a policy reads of a state besides the denoiser's hidden states: statistics of each position, and the score it begins with.

``b`` states, ``L`` positions, ``N`` priced ones. What stays the same while no row leaves the batch is computed once, in the view's
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.kv_store import Place
from unmask.decoding.pricing import constant
from unmask.decoding.protocols import View
from unmask.schedulers import heuristics

FEATURES = ("confidence", "entropy", "position", "margin", "progress", "left", "right")
PRICED = ("confidence", "entropy", "margin", "logit")
"""Features that are prices; ``logit`` is one of the general kind's."""
BASES: dict[str, Callable[[View], Float[Tensor, "b L"]]] = {
    "confidence": heuristics.confidence,
    "uncertainty": heuristics.uncertainty,
    "entropy": heuristics.entropy,
    "margin": lambda view: 8 * view.margin,  # a power of two moves no margin onto another
    "left_to_right": heuristics.left_to_right,
}
"""Heuristics that an untrained policy can rank as, and their scores on the scale of logits."""
OF_SCHEDULER = "scheduler"
"""The base of a pace that begins with the scores of the scheduler that it is used with."""
LOGIT_CAP = 30.0


def compute_logit(confidence: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log p̂/(1 − p̂) from log p̂, exact where p̂ is all but 1."""
    return -torch.log(torch.expm1(-confidence).clamp(min=1e-30)).clamp(max=LOGIT_CAP)


def negative_logit(confidence: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """The same with the other sign, for what has no gradient: fewer kernels, as log 0 is capped, too."""
    return torch.log(torch.expm1(-confidence)).clamp(min=-LOGIT_CAP)


def confidence_logit(seen: dict[str, Tensor]) -> Float[Tensor, "b L"]:
    """log p̂/(1 − p̂) of an observation; that of p̂ = 1/e where nothing was priced."""
    return compute_logit(_known_confidence(seen))


def _known_confidence(seen: dict[str, Tensor]) -> Float[Tensor, "b L"]:
    return seen["confidence"].nan_to_num(neginf=-1.0)


def observe_base(view: View, base: str) -> Float[Tensor, "b L"]:
    """The scores of the heuristic ``base``, 0 where nothing was priced."""
    return torch.where(view.confidence > -torch.inf, BASES[base](view), constant(0.0, view.tokens.device))


def base_scores(seen: dict[str, Tensor]) -> Float[Tensor, "b L"]:
    """The scores that a policy begins with: those of its heuristic, or confidence as a logit."""
    return seen["base"] if "base" in seen else confidence_logit(seen)


def add_base(residual: Float[Tensor, "b L"], seen: dict[str, Tensor]) -> Float[Tensor, "b L"]:
    """The residual and :func:`base_scores`, which are subtracted where adding would launch a kernel more."""
    if "base" in seen:
        return residual + seen["base"]
    return residual - negative_logit(_known_confidence(seen))


def hidden_places(seen: dict[str, Tensor]) -> Place:
    row, position = torch.nonzero(seen["hidden"], as_tuple=True)
    return row, position


def compute_features(view: View, names: Sequence[str]) -> Float[Tensor, "b L F"]:
    """The features side by side: what is priced spread over the canvas at once, 0 where nothing was.

    ``names`` are among ``FEATURES``, ``hidden`` (the hidden bit) and ``logit`` (confidence as a logit).
    """
    columns: dict[str, Tensor] = {"hidden": view.hidden}
    if priced := [name for name in names if name in PRICED]:
        if "margin" in priced:
            _ = view.prices.margin  # before the entropy, which borrows what it is computed from
        values = torch.stack([_price_feature(name, view) for name in priced], dim=1)
        if view.prices.altered:  # an end token that has no confidence by decree is as if it were not priced
            values = values.masked_fill((view.prices.confidence == -torch.inf)[:, None], 0.0)
        dense = values.new_zeros(*view.tokens.shape, len(priced)).index_put_(view.at, values)
        columns |= dict(zip(priced, dense.unbind(-1), strict=True))
    if "position" in names:
        columns["position"] = _positions(view)
    if "progress" in names:
        columns["progress"] = _progress(view)[:, None].expand(view.tokens.shape)
    if "left" in names or "right" in names:
        columns["left"], columns["right"] = compute_distances(view)
    return torch.cat([columns[name][..., None] for name in names], dim=-1).float()


def _price_feature(name: str, view: View) -> Float[Tensor, "N"]:
    prices = view.prices
    if name == "entropy":
        vocabulary = prices.vocabulary - len(view.denoiser.forbidden_ids)
        return prices.entropy / torch.log(torch.tensor(float(max(2, vocabulary))))
    if name == "logit":
        return negative_logit(prices.confidence) / -10
    return prices.margin if name == "margin" else prices.confidence


def compute_distances(view: View) -> tuple[Float[Tensor, "b L"], Float[Tensor, "b L"]]:
    """log₂(1 + steps to the nearest known token)/8 on either side. Padding is neither a known token nor a step."""
    real, places, logarithms = _places(view)
    known = real > view.hidden  # for booleans: and not
    nearest = (torch.stack([known, known.flip(1)]) * places).cummax(2).values
    left, right = logarithms[places - nearest].unbind(0)
    return left, right.flip(1)


def remember(view: View) -> None:
    """Find what is found once while no row leaves: a compiled graph reads it."""
    for find in (_positions, _progress, _places):
        find(view)


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


def _places(view: View) -> tuple[Bool[Tensor, "b L"], Int[Tensor, "2 b L"], Float[Tensor, "n"]]:
    """What is no padding; the number of each token in its row, from its left end and, in reverse, from its right one; the
    logarithm of each distance."""
    known = view.memory.get("places")
    if known is None or known[0] is not view.rows:
        real = torch.ones_like(view.hidden) if view.attention is None else view.attention
        place = real.long().cumsum(1)
        places = torch.stack([place, (real.sum(1, keepdim=True) + 1 - place).flip(1)])
        distances = torch.arange(real.shape[1] + 2, device=real.device)
        known = view.memory["places"] = (view.rows, (real, places, torch.log2(1.0 + distances) / 8))
    return known[1]
