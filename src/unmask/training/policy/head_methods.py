"""How heads are learned: what is wrong, and what is final, from free-running decodings of the frozen denoiser.

``Z`` states, ``s`` decisions, ``L`` positions, ``N`` tokens that stand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import DeclaredScheduler, Scheduler, States, Trajectory, View
from unmask.decoding.standing import Standing
from unmask.schedulers.features import OF_SCHEDULER
from unmask.schedulers.heads import Doubt, LearnedPace, observe_standing
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy.decisions import Decisions
from unmask.training.policy.method import Batch, Method, Value

LIKELY = 8
"""The likeliest tokens that are kept of each position, to see how likely another one is in its turn."""


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
        if self.policy.config.base == OF_SCHEDULER:
            observed["base"] = states.scores.masked_fill(~states.eligible, 0.0)
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
