"""One fused pass over logits: everything that schedulers, rewards and the loop ask of a distribution.

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
    """What one forward says about ``N`` positions.

    ``confidence`` is log p̂ = −log1p(Σ_{a≠â} p(a)/p̂), which keeps its precision where a softmax saturates at 1: confident
    positions still differ, and ties are real ties.
    """

    logp: Float[Tensor, "N V"]
    best: Int[Tensor, "N"]
    confidence: Float[Tensor, "N"]
    margin: Float[Tensor, "N"]
    entropy: Float[Tensor, "N"]


def price(logits: Float[Tensor, "N V"], forbidden: Sequence[int] = ()) -> Prices:
    """Distributions over the tokens that may be revealed: ``forbidden`` ids have probability 0."""
    logits = logits.float()
    if forbidden:
        logits = logits.index_fill(1, torch.tensor(forbidden, device=logits.device), -torch.inf)
    top, best = logits.max(1)
    if not bool(torch.isfinite(top).all()):
        raise ValueError(
            "the denoiser returned logits that are NaN or infinite: expected finite numbers; "
            "check its weights and dtype (float16 overflows where bfloat16 does not)"
        )
    relative = (logits - top[:, None]).exp()
    others = relative.scatter(1, best[:, None], 0.0)
    rest = others.sum(1)
    confidence = -torch.log1p(rest)
    logp = logits - top[:, None] + confidence[:, None]
    p_best = confidence.exp()
    margin = p_best * (1 - others.amax(1))
    # Σ p log p, with 0·log 0 = 0 where a token is forbidden.
    entropy = -(relative * logp.masked_fill(relative == 0, 0.0)).sum(1) * p_best
    return Prices(logp=logp, best=best, confidence=confidence, margin=margin, entropy=entropy.clamp(min=0))
