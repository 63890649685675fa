"""LO-ARM's posterior over orders q_ψ(σ | x): a policy that knows the truth and teaches the one that does not.

``u^q_i = u_φ(s)_i + f_ψ(log p_θ(x_i | s), confidence_i)``. It only ever draws training orders: the mean under q of
log p(x|σ) + log v(σ) − log q(σ|x) bounds log P(x) from below, and is maximised over both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.decoding.protocols import View
from unmask.schedulers.policy import OrderPolicy


class Posterior(nn.Module):
    """The correction of a policy's scores by the truth; zero before training. Log-probabilities are clamped at ``floor``."""

    def __init__(self, width: int = 16, floor: float = -10.0) -> None:
        super().__init__()
        self.floor = floor
        self.body = nn.Sequential(nn.Linear(2, width), nn.GELU())
        self.readout = nn.Linear(width, 1)
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def score(
        self, scores: Float[Tensor, "b L"], truth_logp: Float[Tensor, "b L"], confidence: Float[Tensor, "b L"]
    ) -> Float[Tensor, "b L"]:
        """u^q from the policy's scores, which get no gradient from here."""
        features = torch.stack([truth_logp, confidence], dim=-1).clamp(min=self.floor, max=0.0)
        return scores.detach() + self.readout(self.body(features))[..., 0]

    def scheduler(self, policy: OrderPolicy) -> PosteriorScheduler:
        return PosteriorScheduler(policy, self)


@dataclass(frozen=True)
class PosteriorScheduler:
    """The posterior as a scheduler."""

    policy: OrderPolicy
    posterior: Posterior
    prices_all = True
    needs_truth = True

    def __call__(self, view: View) -> Float[Tensor, "b L"]:
        assert view.reference_logp is not None
        return self.posterior.score(self.policy(view), view.reference_logp, view.confidence)
