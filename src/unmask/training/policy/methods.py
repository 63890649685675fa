"""Methods of learning an order by name: each class says what differs from Self-Aware Scheduling (:class:`.method.Method`).

``Z`` states, ``S`` (or ``s``) decisions, ``L`` positions. Terminal-reward GRPO and UPO differ only in reward and reference. To add
a rival, write its class and name it in ``METHODS``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from unmask.decoding.draws import BERNOULLI_NOISE
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Scheduler, States, Trajectory, View
from unmask.schedulers.features import base_scores
from unmask.schedulers.opinion import Opinion
from unmask.schedulers.policy import OrderPolicy
from unmask.schedulers.posterior import Posterior
from unmask.tasks.kinds import Judge
from unmask.training.policy import advantages as grpo
from unmask.training.policy.config import HEADS, PolicyTraining
from unmask.training.policy.decisions import Decisions
from unmask.training.policy.head_methods import DoubtHead, PaceHead
from unmask.training.policy.method import Batch, Method, Value

RANKING_TEMPERATURE = 0.1
"""Of the target softmax over the truth's margins, which lie in [−1, 1]."""


@dataclass(frozen=True)
class AllAction(Method):
    """The exact expectation of the immediate reward; only the future is sampled. With a teacher: adaptive order policies."""

    def objective(self, batch: Batch) -> Value:
        value, clipped = super().objective(batch)
        return self.config.future * value + grpo.expected_reward(batch.logv, batch.rollout.reward[batch.rows]), clipped


@dataclass(frozen=True)
class Regression(Method):
    """The scores learn the price of the truth at every hidden position; no draw is rewarded."""

    def seen(self, trajectory: Trajectory, states: States) -> dict[str, Tensor]:
        truth = {"truth": trajectory.tokens[states.row]} if self.config.label == "tokens" else {}
        return {**states.observed, **truth}  # which rollouts along the truth end with

    def read(self, seen: dict[str, Tensor]) -> tuple[Float[Tensor, "s L"], Float[Tensor, "N V"] | None]:
        if self.config.label != "tokens":
            return super().read(seen)
        scores, logits = self.policy.score_tokens(seen)
        return scores.float(), logits.float()

    def objective(self, batch: Batch) -> Value:
        value = torch.zeros(len(batch.rows), device=batch.scores.device)  # the loss is that of ``regression_weight``
        return value, torch.zeros_like(value)


@dataclass(frozen=True)
class Tokens(Method):
    """An opinion learns the true token of every hidden position, by cross-entropy; no draw is rewarded."""

    @property
    def compares_rollouts(self) -> bool:
        return False

    def seen(self, trajectory: Trajectory, states: States) -> dict[str, Tensor]:
        return {**states.observed, "truth": trajectory.tokens[states.row]}  # which rollouts along the truth end with

    def decisions(self, trajectory: Trajectory, states: States) -> Decisions:
        return Decisions.per_state(trajectory, states)

    def policy_scores(self, states: States) -> Float[Tensor, "Z L"]:
        return states.scores  # the update does not use what was scored before it

    def read(self, seen: dict[str, Tensor]) -> tuple[Float[Tensor, "s L"], Float[Tensor, "N V"] | None]:
        opinion = self.policy.network
        assert isinstance(opinion, Opinion)
        logits = opinion.predict(seen)
        return base_scores(seen) + opinion.weigh(logits.detach(), seen), logits

    def objective(self, batch: Batch) -> Value:
        hidden = batch.seen["hidden"]
        assert batch.logits is not None
        logp = -F.cross_entropy(batch.logits, batch.seen["truth"][hidden], reduction="none")
        value = logp.new_zeros(hidden.shape).masked_scatter(hidden, logp).sum(1) / hidden.sum(1)
        return value, torch.zeros_like(value)


@dataclass(frozen=True)
class Imitation(Method):
    """Likelihood of the teacher's choices; nothing is rewarded."""

    @property
    def compares_rollouts(self) -> bool:
        return False

    @property
    def relative(self) -> bool:
        return self.config.relative and self.config.behaviour == "teacher"

    def objective(self, batch: Batch) -> Value:
        value = batch.of_chosen(batch.logv)
        return value, torch.zeros_like(value)


@dataclass(frozen=True)
class WhereToUnmask(Method):
    """Listwise ranking: the softmax of the truth's margins is the target distribution over the candidates."""

    def objective(self, batch: Batch) -> Value:
        excluded = batch.logv == -torch.inf
        margin = batch.rollout.truth_margin[batch.rows] / RANKING_TEMPERATURE
        target = margin.masked_fill(excluded, -torch.inf).softmax(1)
        value = (target * batch.logv.masked_fill(excluded, 0.0)).sum(1)
        return value, torch.zeros_like(value)


@dataclass(frozen=True)
class Jazbec(Method):
    """Every candidate is revealed by a coin of its own, with probability σ(score)."""

    @property
    def decoding(self) -> Decoding:
        return replace(super().decoding, pace="bernoulli", order_temperature=0.0)

    def observe(self, view: View) -> dict[str, Tensor]:
        return {**self.policy.observe(view), "uniform": view.uniform(BERNOULLI_NOISE)}

    def decisions(self, trajectory: Trajectory, states: States) -> Decisions:
        return Decisions.per_state(trajectory, states)

    def drawn(self, states: States) -> Bool[Tensor, "Z L"]:
        # If all coins fail, the best candidate is revealed nevertheless: that was not the policy's draw.
        return states.eligible & (states.observed["uniform"] < states.scores.sigmoid())

    def old_logp(self, scores: Tensor, states: States, decisions: Decisions) -> Float[Tensor, "S"]:
        return grpo.bernoulli_logp(scores, self.drawn(states), states.eligible)[decisions.state]

    def objective(self, batch: Batch) -> Value:
        drawn, eligible = batch.rollout.drawn[batch.rows], batch.rollout.eligible[batch.rows]
        return batch.clip(grpo.bernoulli_logp(batch.scores, drawn, eligible), self.config.epsilon)


@dataclass(frozen=True)
class LoArm(Method):
    """A posterior q(σ | x), which sees the truth, draws; the policy learns from its choices.

    The return log p(x|σ) + log v(σ) − log q(σ|x) bounds log P(x) from below in the mean under q, and is maximised over both.
    """

    @property
    def scheduler(self) -> Scheduler:
        assert self.posterior is not None
        return self.posterior.scheduler(self.policy)

    def policy_scores(self, states: States) -> Float[Tensor, "Z L"]:
        return self.policy.score(states.observed)

    def old_logp(self, scores: Tensor, states: States, decisions: Decisions) -> Float[Tensor, "S"]:
        return super().old_logp(states.scores, states, decisions)

    def adjust(self, reward: Tensor, scores: Tensor, states: States, decisions: Decisions) -> Float[Tensor, "S"]:
        return reward + super().old_logp(scores, states, decisions) - self.old_logp(scores, states, decisions)

    def objective(self, batch: Batch) -> Value:
        assert self.posterior is not None
        scores = self.posterior.score(batch.scores, batch.rollout.reward[batch.rows], batch.seen["confidence"])
        value, clipped = batch.clip(batch.of_chosen(self.policy.logv(scores, batch.seen)), self.config.epsilon)
        return value + batch.of_chosen(batch.logv), clipped


METHODS = {
    "grpo": Method,
    "regression": Regression,
    "tokens": Tokens,
    "imitation": Imitation,
    "ranking": WhereToUnmask,
    "bernoulli": Jazbec,
    "variational": LoArm,
    "doubt": DoubtHead,
    "pace": PaceHead,
}


def choose_method(
    config: PolicyTraining,
    policy: OrderPolicy,
    step: int = 0,
    teacher: Scheduler | None = None,
    posterior: Posterior | None = None,
    judge: Judge | None = None,
) -> Method:
    """The method of a training step."""
    name = config.objective_at(step)
    method = AllAction if name == "grpo" and config.advantage == "all_action" else METHODS[name]
    draws = name in ("imitation", *HEADS) or config.behaviour == "teacher"
    return method(config, policy, teacher if draws else None, posterior, judge)


def build_posterior(config: PolicyTraining, device: torch.device) -> Posterior | None:
    """LO-ARM's posterior, from the seed; None for other objectives."""
    if config.objective != "variational":
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Posterior(floor=config.reward_floor).to(device)
