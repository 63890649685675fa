"""One fused pass over logits: everything that schedulers, rewards and the loop need of a distribution.

``N`` priced positions, ``V`` vocabulary. All in float32, whatever the denoiser computes in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Prices:
    """The distributions of ``N`` positions after one forward.

    ``confidence`` is log p̂ = −log1p(Σ_{a≠â} p(a)/p̂), which keeps its precision where a softmax saturates at 1: confident
    positions still differ, and ties are real ties.
    """

    logp: Float[Tensor, "N V"]
    best: Int[Tensor, "N"]
    confidence: Float[Tensor, "N"]
    margin: Float[Tensor, "N"]
    entropy: Float[Tensor, "N"]


AT_ONCE = 2**25
"""Logits priced at once: the intermediate tensors are as large as they are, several times over."""
BYTES_PER_LOGIT = 8
"""A logit and its log-probability, both in float32."""


def price(logits: Float[Tensor, "N V"], forbidden: Sequence[int] = ()) -> Prices:
    """Distributions over the tokens that may be revealed: ``forbidden`` ids have probability 0."""
    positions = max(1, AT_ONCE // max(1, logits.shape[1]))
    if len(logits) <= positions:
        return _price(logits, forbidden)
    logp = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    rest: list[tuple[Tensor, ...]] = []
    for start in range(0, len(logits), positions):
        part = _price(logits[start : start + positions], forbidden)
        logp[start : start + positions] = part.logp
        rest.append((part.best, part.confidence, part.margin, part.entropy))
    return Prices(logp, *(torch.cat(column) for column in zip(*rest, strict=True)))


def _price(logits: Float[Tensor, "N V"], forbidden: Sequence[int]) -> Prices:
    logits = logits.float()
    if forbidden:
        logits = logits.index_fill(1, torch.tensor(forbidden, device=logits.device), -torch.inf)
    top, best = logits.max(1)
    if not bool(torch.isfinite(top).all()):
        raise ValueError(
            "the denoiser returned logits that are NaN or infinite: expected finite numbers; "
            "check its weights and dtype (float16 overflows where bfloat16 does not)"
        )
    # In place where a tensor is ours: at a vocabulary of 10⁵, new memory costs as much as the arithmetic.
    relative = (logits - top[:, None]).exp_()
    others = relative.scatter(1, best[:, None], 0.0)
    rest = others.sum(1)
    confidence = -torch.log1p(rest)
    logp = (logits - top[:, None]).add_(confidence[:, None])
    p_best = confidence.exp()
    margin = p_best * (1 - others.amax(1))
    # Σ p log p, with 0·log 0 = 0 where a token is forbidden: its logarithm is made finite.
    entropy = -(relative.mul_(logp.clamp(min=torch.finfo(logp.dtype).min))).sum(1) * p_best
    return Prices(logp=logp, best=best, confidence=confidence, margin=margin, entropy=entropy.clamp(min=0))
