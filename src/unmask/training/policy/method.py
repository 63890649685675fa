"""A method of learning an order: how orders are drawn, what is added to their reward, what each decision adds to the objective.

``Z`` states, ``S`` (or ``s``) decisions, ``L`` positions. :class:`Method` is Self-Aware Scheduling; :mod:`.methods` has the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Scheduler, States, Trajectory, View
from unmask.schedulers.policy import OrderPolicy
from unmask.schedulers.posterior import Posterior
from unmask.tasks.kinds import Judge
from unmask.training.policy import advantages as grpo
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.decisions import Decisions, Rollout

Value = tuple[Float[Tensor, "s"], Float[Tensor, "s"]]
"""What each decision adds to the objective (to be maximised), and whether its ratio was clipped."""


@dataclass(frozen=True)
class Batch:
    """Decisions of a rollout with the policy's present scores and log v."""

    rollout: Rollout
    rows: Int[Tensor, "s"]
    seen: dict[str, Tensor]
    scores: Float[Tensor, "s L"]
    logv: Float[Tensor, "s L"]
    logits: Float[Tensor, "N V"] | None = None

    def of_chosen(self, logv: Float[Tensor, "s L"]) -> Float[Tensor, "s"]:
        return logv.gather(1, self.rollout.chosen[self.rows][:, None])[:, 0]

    def clip(self, logp: Float[Tensor, "s"], epsilon: float) -> Value:
        """Eq. grpo_objective for decisions that have log-probability ``logp`` now."""
        old, advantage = self.rollout.old_logv[self.rows], self.rollout.advantage[self.rows]
        return grpo.clipped_objective(logp, old, advantage, epsilon)


@dataclass(frozen=True)
class Method:
    """Self-Aware Scheduling: σ ∼ v_φ at the policy's temperature, learned by the clipped objective.

    A ``teacher``, if given, draws instead of the policy, greedily and along the truth. ``judge`` says which answers are right.
    """

    config: PolicyTraining
    policy: OrderPolicy
    teacher: Scheduler | None = None
    posterior: Posterior | None = None
    judge: Judge | None = None

    @property
    def compares_rollouts(self) -> bool:
        """Do groups without spread carry no loss?"""
        return self.config.compares_rollouts

    @property
    def relative(self) -> bool:
        return self.config.relative

    # How orders are drawn.

    @property
    def scheduler(self) -> Scheduler:
        return self.policy if self.teacher is None else self.teacher

    @property
    def forced(self) -> bool:
        """Do rollouts reveal the truth?"""
        return self.teacher is not None or not self.config.free

    @property
    def decoding(self) -> Decoding:
        own, drawn = self.policy.config.temperature, self.config.rollout_temperature
        temperature = own if drawn is None else drawn
        return replace(
            self.config.decoding,
            order_temperature=temperature if self.teacher is None else 0.0,
            share=self.config.decoding.share or self.config.group > 1,
        )

    def observe(self, view: View) -> dict[str, Tensor]:
        """What is recorded of a state for the update."""
        return self.policy.observe(view)

    def seen(self, trajectory: Trajectory, states: States) -> dict[str, Tensor]:
        """What is kept of the states, with what only the end of the trajectory shows."""
        return states.observed

    def decisions(self, trajectory: Trajectory, states: States) -> Decisions:
        return Decisions.per_reveal(trajectory, states)

    def policy_scores(self, states: States) -> Float[Tensor, "Z L"]:
        return states.scores if self.teacher is None else self.policy.score(states.observed)

    def drawn(self, states: States) -> Bool[Tensor, "Z L"]:
        """The set that was drawn in each state."""
        return states.revealed

    def old_logp(self, scores: Tensor, states: States, decisions: Decisions) -> Float[Tensor, "S"]:
        """log-probability of each decision when it was drawn: the denominator of the update's ratio."""
        return decisions.logp(scores, self.policy.config.temperature)

    def adjust(self, reward: Tensor, scores: Tensor, states: States, decisions: Decisions) -> Float[Tensor, "S"]:
        """The reward of each decision, with what the draw itself costs."""
        return reward

    # What is learned from them.

    def read(self, seen: dict[str, Tensor]) -> tuple[Float[Tensor, "s L"], Float[Tensor, "N V"] | None]:
        """The policy's present scores, and the logits that an opinion has of the tokens."""
        return self.policy.score(seen).float(), None

    def objective(self, batch: Batch) -> Value:
        return batch.clip(batch.of_chosen(batch.logv), self.config.epsilon)
