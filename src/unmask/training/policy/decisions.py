"""What rollouts consist of: drawn orders, their decisions, and the batch that the policy learns from.

``B = P·G`` rows, the ``G`` of a prompt next to each other; ``Z`` states; ``S`` decisions. A decision is one draw: in a state that
reveals a block, the first is from all candidates, the next from the remaining ones, so the log-probability of a block is
Plackett–Luce's and R_par is a sum over its positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.protocols import Canvas, States, Trajectory

SEEN = "seen."


@dataclass(frozen=True)
class Decisions:
    """Of each draw: its ``row``, its number ``k`` in the row, its ``state``, its candidates, and whether it is the row's last."""

    row: Int[Tensor, "S"]
    k: Int[Tensor, "S"]
    state: Int[Tensor, "S"]
    chosen: Int[Tensor, "S"]
    eligible: Bool[Tensor, "S L"]
    last: Bool[Tensor, "S"]

    @classmethod
    def per_reveal(cls, trajectory: Trajectory, states: States) -> Decisions:
        """One decision per revealed position."""
        rows, steps = len(trajectory.tokens), int(states.step.max()) + 1
        place = torch.zeros(rows, steps, dtype=torch.long, device=trajectory.order.device)
        place[states.row, states.step] = torch.arange(len(states), device=place.device)
        row, k = torch.nonzero(trajectory.order >= 0, as_tuple=True)
        state, chosen = place[row, trajectory.step[row, k]], trajectory.order[row, k]
        # What was drawn before in the same state is not drawn again.
        rank = trajectory.rank[row]
        earlier = states.revealed[state] & (rank >= 0) & (rank < k[:, None])
        return cls(row, k, state, chosen, states.eligible[state] & ~earlier, k == trajectory.reveals[row] - 1)

    @classmethod
    def per_state(cls, trajectory: Trajectory, states: States) -> Decisions:
        """One decision per state, which reveals a set."""
        state = (states.row * (int(states.step.max()) + 1) + states.step).argsort()
        row, k = states.row[state], states.step[state]
        chosen, eligible = states.revealed.int().argmax(1)[state], states.eligible[state]
        return cls(row, k, state, chosen, eligible, k == trajectory.step.amax(1)[row])

    def logp(self, scores: Float[Tensor, "Z L"], temperature: float) -> Float[Tensor, "S"]:
        """log v(i | s) of each draw for these scores."""
        logv = (scores[self.state] / temperature).masked_fill(~self.eligible, -torch.inf).log_softmax(1)
        return logv.gather(1, self.chosen[:, None])[:, 0]

    def timeline(self, values: Float[Tensor, "S"], rows: int) -> Float[Tensor, "B K"]:
        """Values of decisions as a table, 0 where a row has ended."""
        return values.new_zeros(rows, int(self.k.max()) + 1).index_put((self.row, self.k), values)


@dataclass(frozen=True)
class Draws:
    """The orders of a batch. ``candidate_reward`` is the dense reward r(s, i) of every candidate of every state."""

    canvas: Canvas
    trajectory: Trajectory
    states: States
    decisions: Decisions
    candidate_reward: Float[Tensor, "Z L"]


@dataclass(frozen=True)
class Rollout:
    """The decisions of one step with at least two candidates.

    ``seen`` is per state, everything else per decision; ``state`` is the decision's row in ``seen``. ``drawn`` is the set that a
    Bernoulli decision revealed. ``regret`` is what a draw of the policy loses on average: Σ_i v(i | s) (1 − exp r(s, i)).
    ``totals`` are numerators and denominators of logged means (denominator 0: a count).
    """

    seen: dict[str, Tensor]
    state: Int[Tensor, "S"]
    eligible: Bool[Tensor, "S L"]
    chosen: Int[Tensor, "S"]
    old_logv: Float[Tensor, "S"]
    advantage: Float[Tensor, "S"]
    live: Bool[Tensor, "S"]
    reward: Float[Tensor, "S L"]
    truth_margin: Float[Tensor, "S L"]
    drawn: Bool[Tensor, "S L"]
    regret: Float[Tensor, "S"]
    totals: dict[str, tuple[float, float]]

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def summary(self) -> dict[str, float]:
        return {name: above / (below or 1.0) for name, (above, below) in self.totals.items()}

    def emptied(self) -> Rollout:
        """The same without a decision: the part of a process that has none."""
        none = {name: value[:0] for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **none, totals=dict.fromkeys(self.totals, (0.0, 0.0)))

    @classmethod
    def concatenate(cls, parts: Sequence[Rollout]) -> Rollout:
        """The rollouts of several batches of prompts as one."""
        offsets = torch.tensor([0, *(len(part.seen["hidden"]) for part in parts[:-1])]).cumsum(0).tolist()
        plain = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name in (
                "eligible",
                "chosen",
                "old_logv",
                "advantage",
                "live",
                "reward",
                "truth_margin",
                "drawn",
                "regret",
            )
        }
        return cls(
            seen={name: torch.cat([part.seen[name] for part in parts]) for name in parts[0].seen},
            state=torch.cat([part.state + offset for part, offset in zip(parts, offsets, strict=True)]),
            totals={
                name: (sum(part.totals[name][0] for part in parts), sum(part.totals[name][1] for part in parts))
                for name in parts[0].totals
            },
            **plain,
        )

    def tensors(self) -> dict[str, Tensor]:
        """All but the totals, by name; those of ``seen`` begin with ``seen.``."""
        plain = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return plain | {f"{SEEN}{name}": value for name, value in self.seen.items()}

    @classmethod
    def from_tensors(cls, stored: Mapping[str, Tensor]) -> Rollout:
        """What :meth:`tensors` returned."""
        seen = {name.removeprefix(SEEN): value for name, value in stored.items() if name.startswith(SEEN)}
        plain: Any = {name: value for name, value in stored.items() if not name.startswith(SEEN)}
        return cls(seen=seen, totals={}, **plain)

    def observed(self, rows: Int[Tensor, "s"]) -> dict[str, Tensor]:
        """What the policy read at these decisions, with the remaining candidates of each."""
        return {name: value[self.state[rows]] for name, value in self.seen.items()} | {"eligible": self.eligible[rows]}
