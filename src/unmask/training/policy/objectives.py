"""The loss of a minibatch of decisions: J_GRPO and its rivals, each a function of recorded observations.

``s`` decisions, ``L`` positions. Terms are sums over decisions divided by the minibatch's counts (:class:`Counts`), so a minibatch
may be split into parts, over time or over processes, and the gradients of the parts add up to its own.
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
from unmask.training.policy.decisions import Rollout

RANKING_TEMPERATURE = 0.1
"""Of the target softmax over the truth's margins, which lie in [−1, 1]."""


@dataclass(frozen=True)
class Counts:
    """Denominators of a minibatch: its decisions, those of live groups, the hidden positions of their states."""

    decisions: float
    live: float
    hidden: float

    @classmethod
    def of(cls, counted: Float[Tensor, "s 2"]) -> Counts:
        """From :func:`countable` of its decisions."""
        live, hidden = counted.sum(0).tolist()
        return cls(max(1.0, float(len(counted))), max(1.0, live), max(1.0, hidden))


def countable(rollout: Rollout) -> Float[Tensor, "S 2"]:
    """Of every decision: is its group live, and how many positions are hidden in its state?"""
    return torch.stack([rollout.live.float(), rollout.seen["hidden"].sum(1)[rollout.state].float()], dim=1)


Value = tuple[Float[Tensor, "s"], Float[Tensor, "s"]]
"""What each decision adds to the objective (to be maximised), and whether its ratio was clipped."""


@dataclass(frozen=True)
class Batch:
    """Decisions of a rollout with the policy's present scores and log v."""

    policy: OrderPolicy
    rollout: Rollout
    rows: Int[Tensor, "s"]
    seen: dict[str, Tensor]
    scores: Float[Tensor, "s L"]
    logv: Float[Tensor, "s L"]

    @property
    def chosen_logv(self) -> Float[Tensor, "s"]:
        return self.logv.gather(1, self.rollout.chosen[self.rows][:, None])[:, 0]

    def clip(self, logp: Float[Tensor, "s"], epsilon: float) -> Value:
        """The clipped objective of decisions that have log-probability ``logp`` now."""
        old, advantage = self.rollout.old_logv[self.rows], self.rollout.advantage[self.rows]
        return grpo.clipped_objective(logp, old, advantage, epsilon)


@dataclass(frozen=True)
class Clipped:
    """Eq. grpo_objective."""

    epsilon: float

    def __call__(self, batch: Batch) -> Value:
        return batch.clip(batch.chosen_logv, self.epsilon)


@dataclass(frozen=True)
class AllAction:
    """The exact expectation of the immediate reward, and the clipped objective of the sampled ``future``."""

    epsilon: float
    future: float

    def __call__(self, batch: Batch) -> Value:
        value, clipped = batch.clip(batch.chosen_logv, self.epsilon)
        return self.future * value + grpo.expected_reward(batch.logv, batch.rollout.reward[batch.rows]), clipped


@dataclass(frozen=True)
class Imitation:
    """Likelihood of the teacher's choices."""

    def __call__(self, batch: Batch) -> Value:
        return batch.chosen_logv, torch.zeros_like(batch.chosen_logv)


@dataclass(frozen=True)
class Ranking:
    """Where-to-Unmask: listwise, the softmax of the truth's margins is the target distribution over the candidates."""

    temperature: float = RANKING_TEMPERATURE

    def __call__(self, batch: Batch) -> Value:
        excluded = batch.logv == -torch.inf
        margin = batch.rollout.truth_margin[batch.rows] / self.temperature
        target = margin.masked_fill(excluded, -torch.inf).softmax(1)
        value = (target * batch.logv.masked_fill(excluded, 0.0)).sum(1)
        return value, torch.zeros_like(value)


@dataclass(frozen=True)
class Coins:
    """Jazbec et al.: the clipped objective of the set that the coins drew."""

    epsilon: float

    def __call__(self, batch: Batch) -> Value:
        drawn, eligible = batch.rollout.drawn[batch.rows], batch.rollout.eligible[batch.rows]
        return batch.clip(grpo.bernoulli_logp(batch.scores, drawn, eligible), self.epsilon)


@dataclass(frozen=True)
class Variational:
    """LO-ARM: the clipped objective of the posterior, and likelihood of its choices under the policy."""

    epsilon: float
    posterior: Posterior

    def __call__(self, batch: Batch) -> Value:
        reward = batch.rollout.reward[batch.rows]
        scores = self.posterior.score(batch.scores, reward, batch.seen["confidence"])
        logq = batch.policy.logv(scores, batch.seen).gather(1, batch.rollout.chosen[batch.rows][:, None])[:, 0]
        value, clipped = batch.clip(logq, self.epsilon)
        return value + batch.chosen_logv, clipped


Objective = Clipped | AllAction | Imitation | Ranking | Coins | Variational


def build_objective(config: PolicyTraining, name: str | None = None, posterior: Posterior | None = None) -> Objective:
    """The objective that ``name`` (by default ``config.objective``) stands for."""
    name = name or config.objective
    if name == "variational":
        if posterior is None:
            raise ValueError("objective variational needs a posterior")
        return Variational(config.epsilon, posterior)
    grpo = AllAction(config.epsilon, config.future) if config.advantage == "all_action" else Clipped(config.epsilon)
    return {"grpo": grpo, "bernoulli": Coins(config.epsilon), "imitation": Imitation(), "ranking": Ranking()}[name]


def policy_loss(
    policy: OrderPolicy,
    rollout: Rollout,
    rows: Int[Tensor, "s"],
    config: PolicyTraining,
    objective: Objective | None = None,
    reference: OrderPolicy | None = None,
    counts: Counts | None = None,
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """The loss of ``rows``, a part of the minibatch that ``counts`` counts, and statistics for the log."""
    counts = counts or Counts.of(countable(rollout)[rows])
    objective = objective or build_objective(config)
    seen = rollout.observed(rows)
    scores = policy.score(seen).float()
    logv = policy.logv(scores, seen)
    value, clipped = objective(Batch(policy, rollout, rows, seen, scores, logv))
    loss = -(value * rollout.live[rows].float()).sum() / counts.live
    divergence = grpo.categorical_kl(logv, reference_logv(policy, seen, reference)).sum() / counts.decisions
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


@torch.no_grad()
def reference_logv(policy: OrderPolicy, seen: dict[str, Tensor], reference: OrderPolicy | None) -> Float[Tensor, "s L"]:
    """log v_ref: the reference policy's, or that of softmax-confidence."""
    if reference is not None:
        return reference.logv(reference.score(seen).float(), seen)
    return policy.logv(policy.confidence_logit(seen), seen)
