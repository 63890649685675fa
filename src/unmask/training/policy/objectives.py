"""The loss of a minibatch of decisions: the method's objective, KL to the reference, entropy, regression.

``s`` decisions, ``L`` positions. Terms are sums over decisions divided by the minibatch's counts (:class:`Counts`), so a minibatch
may be split into parts, over time or over processes, and the gradients of the parts add up to its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from unmask.schedulers.features import confidence_logit
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy import advantages as grpo
from unmask.training.policy.decisions import Rollout
from unmask.training.policy.method import Batch, Method


@dataclass(frozen=True)
class Counts:
    """Denominators of a minibatch: its decisions, those of live groups, the hidden positions of their states."""

    decisions: float
    live: float
    hidden: float

    @classmethod
    def of(cls, counted: Float[Tensor, "s 3"]) -> Counts:
        """From :func:`countable` of its decisions."""
        live, hidden, _ = counted.sum(0).tolist()
        return cls(max(1.0, float(len(counted))), max(1.0, live), max(1.0, hidden))


def countable(rollout: Rollout) -> Float[Tensor, "S 3"]:
    """Of every decision: is its group live, how many positions are hidden in its state, and what is its regret?"""
    hidden = rollout.seen["hidden"].sum(1)[rollout.state]
    return torch.stack([rollout.live.float(), hidden.float(), rollout.regret], dim=1)


def policy_loss(
    method: Method,
    rollout: Rollout,
    rows: Int[Tensor, "s"],
    reference: OrderPolicy | None = None,
    counts: Counts | None = None,
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """The loss of ``rows``, a part of the minibatch that ``counts`` counts, and statistics for the log."""
    config, policy = method.config, method.policy
    counts = counts or Counts.of(countable(rollout)[rows])
    seen = rollout.observed(rows)
    scores, logits = method.read(seen)
    logv = policy.logv(scores, seen)
    value, clipped = method.objective(Batch(rollout, rows, seen, scores, logv, logits))
    loss = -(value * rollout.live[rows].float()).sum() / counts.live
    divergence = grpo.categorical_kl(logv, reference_logv(policy, seen, reference)).sum() / counts.decisions
    if config.beta:
        loss = loss + config.beta * divergence
    if config.entropy:
        loss = loss - config.entropy * grpo.entropy(logv).sum() / counts.decisions
    if config.regression_weight:
        hidden = seen["hidden"]
        predicted = scores[hidden] if logits is None else logits
        if config.label == "tokens":
            target = (seen["truth"][hidden][:, None] == policy.network.get_buffer("columns")).float()
        elif config.label == "right":
            target = (rollout.truth_margin[rows][hidden] > 0).float()
        else:
            target = rollout.reward[rows][hidden].exp().clamp(max=1.0)
        regression = F.binary_cross_entropy_with_logits(predicted, target, reduction="sum")
        loss = loss + config.regression_weight * regression / counts.hidden
    clip_fraction = clipped.sum() / counts.decisions
    return loss, {"loss": loss.item(), "clip_fraction": clip_fraction.item(), "kl": divergence.item()}


@torch.no_grad()
def reference_logv(policy: OrderPolicy, seen: dict[str, Tensor], reference: OrderPolicy | None) -> Float[Tensor, "s L"]:
    """log v_ref: the reference policy's, or that of softmax-confidence."""
    if reference is not None:
        return reference.logv(reference.score(seen).float(), seen)
    return policy.logv(confidence_logit(seen), seen)
