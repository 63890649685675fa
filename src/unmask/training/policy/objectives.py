"""The loss of a minibatch of decisions: J_GRPO and its rivals, each a function of recorded observations.

Terms are sums over their decisions divided by the minibatch's counts (:class:`Counts`), so that a minibatch may be split into
parts, over time or over processes, and the parts' gradients add up to its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from unmask.schedulers.policy import OrderPolicy
from unmask.schedulers.posterior import Posterior
from unmask.training.policy import advantages as grpo
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.rollout import Rollout

RANKING_TEMPERATURE = 0.1
"""Of the softmax over the truth's margins that the ranking objective aims at; margins lie in [−1, 1]."""


@dataclass(frozen=True)
class Counts:
    """What a minibatch's sums are divided by: its decisions, those of living groups, the hidden positions of their states."""

    decisions: float
    live: float
    hidden: float

    @classmethod
    def of(cls, counted: Float[Tensor, "s 2"]) -> Counts:
        """From :func:`countable` of its decisions."""
        live, hidden = counted.sum(0).tolist()
        return cls(max(1.0, float(len(counted))), max(1.0, live), max(1.0, hidden))


def countable(rollout: Rollout) -> Float[Tensor, "S 2"]:
    """Of every decision: does its group live, and how many positions are hidden in its state?"""
    return torch.stack([rollout.live.float(), rollout.seen["hidden"].sum(1)[rollout.state].float()], dim=1)


def policy_loss(
    policy: OrderPolicy,
    rollout: Rollout,
    rows: Int[Tensor, "s"],
    config: PolicyTraining,
    reference: OrderPolicy | None = None,
    counts: Counts | None = None,
    objective: str = "grpo",
    posterior: Posterior | None = None,
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """The loss of ``rows``, a part of the minibatch that ``counts`` counts, and sums for the log, divided by its decisions."""
    counts = counts or Counts.of(countable(rollout)[rows])
    seen = rollout.observed(rows)
    scores = policy.score(seen).float()
    logv = policy.logv(scores, seen)
    per_decision, clipped = _objective(policy, rollout, rows, config, scores, logv, objective, posterior)
    weight = rollout.live[rows].float()
    loss = -(per_decision * weight).sum() / counts.live
    anchor = reference_logv(policy, seen, config, reference)
    divergence = grpo.categorical_kl(logv, anchor).sum() / counts.decisions
    if config.beta:
        loss = loss + config.beta * divergence
    if config.entropy:
        loss = loss - config.entropy * grpo.entropy(logv).sum() / counts.decisions
    if config.correctness:
        hidden = seen["hidden"]
        truth = rollout.reward[rows][hidden].exp().clamp(max=1.0)
        regression = F.binary_cross_entropy_with_logits(scores[hidden], truth, reduction="sum")
        loss = loss + config.correctness * regression / counts.hidden
    clip_fraction = clipped.sum() / counts.decisions
    return loss, {"loss": loss.item(), "clip_fraction": clip_fraction.item(), "kl": divergence.item()}


def reference_logv(
    policy: OrderPolicy, seen: dict[str, Tensor], config: PolicyTraining, reference: OrderPolicy | None
) -> Float[Tensor, "s L"]:
    """log v_ref: the reference policy's, or a soft confidence order's."""
    with torch.no_grad():
        if reference is not None:
            return reference.logv(reference.score(seen).float(), seen)
        return policy.logv(policy.confidence_logit(seen), seen)


def _objective(
    policy: OrderPolicy,
    rollout: Rollout,
    rows: Int[Tensor, "s"],
    config: PolicyTraining,
    scores: Float[Tensor, "s L"],
    logv: Float[Tensor, "s L"],
    objective: str,
    posterior: Posterior | None,
) -> tuple[Float[Tensor, "s"], Float[Tensor, "s"]]:
    """What each decision adds to the objective (the higher the better), and whether its ratio was clipped."""
    taken = logv.gather(1, rollout.chosen[rows][:, None])[:, 0]
    old, advantage = rollout.old_logv[rows], rollout.advantage[rows]
    unclipped = torch.zeros_like(taken)
    if objective == "imitation":
        return taken, unclipped
    if objective == "ranking":
        # Listwise: the order of the truth's margins, as a distribution over the candidates.
        aim = rollout.truth_margin[rows] / RANKING_TEMPERATURE
        aim = aim.masked_fill(logv == -torch.inf, -torch.inf).softmax(1)
        return (aim * logv.masked_fill(logv == -torch.inf, 0.0)).sum(1), unclipped
    if objective == "bernoulli":
        logp = grpo.bernoulli_logp(scores, rollout.drawn[rows], rollout.eligible[rows])
        return grpo.clipped_objective(logp, old, advantage, config.epsilon)
    if objective == "variational":
        assert posterior is not None
        seen = rollout.observed(rows)
        q_scores = posterior.score(scores, rollout.reward[rows], seen["confidence"])
        logq = policy.logv(q_scores, seen).gather(1, rollout.chosen[rows][:, None])[:, 0]
        value, clipped = grpo.clipped_objective(logq, old, advantage, config.epsilon)
        return value + taken, clipped
    value, clipped = grpo.clipped_objective(taken, old, advantage, config.epsilon)
    if config.advantage == "all_action":
        value = config.future * value + grpo.expected_reward(logv, rollout.reward[rows])
    return value, clipped
