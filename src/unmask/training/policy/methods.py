"""Methods of learning an order: how orders are drawn, what is added to their reward, and what each decision adds to the objective.

``Z`` states, ``S`` (or ``s``) decisions, ``L`` positions. :class:`Method` is Self-Aware Scheduling; the others say what differs.
Terminal-reward GRPO and UPO differ only in reward and reference. To add a rival, write its class and name it in ``METHODS``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from unmask.decoding.draws import BERNOULLI_NOISE
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import DeclaredScheduler, Scheduler, States, Trajectory, View
from unmask.decoding.standing import Standing
from unmask.schedulers.features import base_scores
from unmask.schedulers.heads import Doubt, LearnedPace, observe_standing
from unmask.schedulers.opinion import Opinion
from unmask.schedulers.policy import OrderPolicy
from unmask.schedulers.posterior import Posterior
from unmask.tasks.kinds import Judge
from unmask.training.policy import advantages as grpo
from unmask.training.policy.config import HEADS, PolicyTraining
from unmask.training.policy.decisions import Decisions, Rollout

RANKING_TEMPERATURE = 0.1
"""Of the target softmax over the truth's margins, which lie in [−1, 1]."""
LIKELY = 8
"""The likeliest tokens that are kept of each position, to see how likely another one is in its turn."""
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


@dataclass(frozen=True)
class Head(Method):
    """Cross-entropy on a question about some positions of the states that the teacher's free-running decodings visit.

    ``counted`` are those positions, ``label`` the answers.
    """

    @property
    def compares_rollouts(self) -> bool:
        return False

    @property
    def relative(self) -> bool:
        return False

    @property
    def forced(self) -> bool:
        return False

    def decisions(self, trajectory: Trajectory, states: States) -> Decisions:
        per_state = Decisions.per_state(trajectory, states)
        return replace(per_state, eligible=self.seen(trajectory, states)["counted"][per_state.state])

    def policy_scores(self, states: States) -> Float[Tensor, "Z L"]:
        return states.scores  # the teacher's: a head's answers before the update are not used

    def objective(self, batch: Batch) -> Value:
        counted, label = batch.seen["counted"], batch.seen["label"].float()
        loss = F.binary_cross_entropy_with_logits(batch.scores, label, reduction="none").masked_fill(~counted, 0.0)
        value = -loss.sum(1) / counted.sum(1)
        return value, torch.zeros_like(value)


@dataclass(frozen=True)
class DoubtHead(Head):
    """Is this revealed token another than the truth? The finished canvas is looked at, too."""

    @property
    def scheduler(self) -> Scheduler:
        assert self.teacher is not None
        return DeclaredScheduler(self.teacher, needs_truth=True)

    @property
    def decoding(self) -> Decoding:
        return replace(super().decoding, revision=_look_back)

    def observe(self, view: View) -> dict[str, Tensor]:
        standing = view.memory.pop(_look_back, None)
        seen = self.policy.observe(view) if standing is None else observe_standing(self.policy, view, standing)
        counted = torch.zeros_like(view.hidden)
        if standing is not None:
            counted[standing.at] = True
        assert view.reference is not None
        return {**seen, "counted": counted, "label": view.tokens != view.reference}


@dataclass(frozen=True)
class PaceHead(Head):
    """Is the likeliest token of this position the one that the decoding ends with, or settled: nearly as likely in its turn?"""

    def observe(self, view: View) -> dict[str, Tensor]:
        likely = view.prices.logp.topk(min(LIKELY, view.prices.vocabulary), dim=1)
        spread = {"likely": likely.indices, "likely_logp": likely.values}
        shape = (*view.tokens.shape, likely.indices.shape[1])
        return super().observe(view) | {name: x.new_zeros(shape).index_put(view.at, x) for name, x in spread.items()}

    def seen(self, trajectory: Trajectory, states: States) -> dict[str, Tensor]:
        observed = dict(states.observed)
        tokens, logp = observed.pop("likely"), observed.pop("likely_logp")
        state, position = torch.nonzero(states.revealed, as_tuple=True)
        turn = torch.zeros_like(trajectory.tokens)
        turn[states.row[state], position] = state
        then = (turn[states.row], torch.arange(turn.shape[1], device=turn.device))
        share = (logp[then] - logp[then].amax(2, keepdim=True)).exp()
        settled = ((tokens[then] == states.best[..., None]) & (share >= self.config.settled)).any(2)
        final = trajectory.tokens[states.row] == states.best
        return {**observed, "counted": states.eligible, "label": final | settled}


def _look_back(view: View, standing: Standing) -> Float[Tensor, "N"]:
    """A revision that doubts nothing, and keeps what a doubt would be about."""
    view.memory[_look_back] = standing
    return torch.full_like(standing.reveal_logp, -torch.inf)


def decode_with(learned: Scheduler, teacher: Scheduler | None) -> tuple[Scheduler, Decoding]:
    """How something is validated: a scheduler orders; a head doubts or paces what its teacher orders."""
    if teacher is None or not isinstance(learned, OrderPolicy) or learned.config.purpose == "order":
        return learned, Decoding()
    doubts = learned.config.purpose == "doubt"
    return teacher, Decoding(revision=Doubt(learned)) if doubts else Decoding(pace=LearnedPace(learned))


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
