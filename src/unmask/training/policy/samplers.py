"""Samplers: what draws the orders of a training step, and the log-probability of its draws.

``Z`` states, ``S`` decisions. The policy draws in Self-Aware Scheduling and most rivals; the other classes say what differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from unmask.decoding.draws import BERNOULLI_NOISE
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Observe, Scheduler, States, Trajectory
from unmask.schedulers.policy import OrderPolicy
from unmask.schedulers.posterior import Posterior
from unmask.training.policy.advantages import bernoulli_logp
from unmask.training.policy.decisions import Decisions


@dataclass(frozen=True)
class PolicySampler:
    """σ ∼ v_φ at the policy's temperature."""

    policy: OrderPolicy
    forced: ClassVar[bool] = False
    """Reveal the truth, whatever the reward?"""

    @property
    def scheduler(self) -> Scheduler:
        return self.policy

    @property
    def observe(self) -> Observe:
        """What is recorded of a state for the update."""
        return self.policy.observe

    def decoding(self, decoding: Decoding) -> Decoding:
        return replace(decoding, order_temperature=self.policy.config.temperature)

    def decisions(self, trajectory: Trajectory, states: States) -> Decisions:
        return Decisions.per_reveal(trajectory, states)

    def policy_scores(self, states: States) -> Float[Tensor, "Z L"]:
        """The policy's scores in the states, whatever drew there."""
        return states.scores

    def drawn(self, states: States) -> Bool[Tensor, "Z L"]:
        """The set that was drawn in each state."""
        return states.revealed

    def policy_logp(self, scores: Tensor, states: States, decisions: Decisions) -> Float[Tensor, "S"]:
        """log v_φ of each decision, for the policy's ``scores``."""
        return decisions.logp(scores, self.policy.config.temperature)

    def ratio_logp(self, scores: Tensor, states: States, decisions: Decisions) -> Float[Tensor, "S"]:
        """log-probability of each decision under the distribution that drew it: the denominator of the update's ratio."""
        return self.policy_logp(scores, states, decisions)

    def adjust(
        self, reward: Float[Tensor, "S"], scores: Tensor, states: States, decisions: Decisions
    ) -> Float[Tensor, "S"]:
        """The reward of each decision, given what the draws themselves cost."""
        return reward


@dataclass(frozen=True)
class TeacherSampler(PolicySampler):
    """A given scheduler draws greedily; decisions are priced by the policy (imitation, adaptive order policies)."""

    teacher: Scheduler
    forced: ClassVar[bool] = True

    @property
    def scheduler(self) -> Scheduler:
        return self.teacher

    def decoding(self, decoding: Decoding) -> Decoding:
        return decoding

    def policy_scores(self, states: States) -> Float[Tensor, "Z L"]:
        return self.policy.score(states.observed)


@dataclass(frozen=True)
class PosteriorSampler(PolicySampler):
    """LO-ARM: σ ∼ q(σ | x), which sees the truth.

    The return log p(x|σ) + log v(σ) − log q(σ|x) bounds log P(x) from below in the mean under q.
    """

    posterior: Posterior

    @property
    def scheduler(self) -> Scheduler:
        return self.posterior.scheduler(self.policy)

    def policy_scores(self, states: States) -> Float[Tensor, "Z L"]:
        return self.policy.score(states.observed)

    def ratio_logp(self, scores: Tensor, states: States, decisions: Decisions) -> Float[Tensor, "S"]:
        return decisions.logp(states.scores, self.policy.config.temperature)

    def adjust(
        self, reward: Float[Tensor, "S"], scores: Tensor, states: States, decisions: Decisions
    ) -> Float[Tensor, "S"]:
        return reward + self.policy_logp(scores, states, decisions) - self.ratio_logp(scores, states, decisions)


@dataclass(frozen=True)
class CoinSampler(PolicySampler):
    """Jazbec et al.: every candidate is revealed by a coin of its own, with probability σ(score)."""

    @property
    def observe(self) -> Observe:
        return lambda view: {**self.policy.observe(view), "uniform": view.uniform(BERNOULLI_NOISE)}

    def decoding(self, decoding: Decoding) -> Decoding:
        return replace(decoding, pace="bernoulli")

    def decisions(self, trajectory: Trajectory, states: States) -> Decisions:
        return Decisions.per_state(trajectory, states)

    def drawn(self, states: States) -> Bool[Tensor, "Z L"]:
        # If all coins fail, the best candidate is revealed nevertheless: that was not the policy's draw.
        return states.eligible & (states.observed["uniform"] < states.scores.sigmoid())

    def policy_logp(self, scores: Tensor, states: States, decisions: Decisions) -> Float[Tensor, "S"]:
        return bernoulli_logp(scores, self.drawn(states), states.eligible)[decisions.state]
