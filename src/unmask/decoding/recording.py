"""The record of a decoding: one :class:`Step` after another becomes a ``Trajectory``.

``b`` live rows of ``B``, ``L`` positions, ``K`` reveals of the longest row, ``m`` reveals of one step in the row that has most.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.protocols import Denoiser, Observe, States, Trajectory, View, count_positions
from unmask.decoding.revising import Revised
from unmask.decoding.rows import LiveRows
from unmask.decoding.sampling import plackett_luce_logp
from unmask.decoding.standing import Revisions


@dataclass(frozen=True)
class Step:
    """One step: the view, the scheduler's scores, the keys that the pace ranks, what is revealed, taken back and drawn."""

    view: View
    scores: Float[Tensor, "b L"]
    keys: Float[Tensor, "b L"]
    revealed: Bool[Tensor, "b L"]
    chosen: Int[Tensor, "b L"]
    revised: Revised

    @cached_property
    def tokens(self) -> Int[Tensor, "b L"]:
        """The canvas after the step."""
        return torch.where(self.revealed, self.chosen, self.revised.tokens)

    @cached_property
    def chosen_logp(self) -> Float[Tensor, "b L"]:
        """log p of the tokens drawn."""
        view = self.view
        return view.dense(view.prices.logp.gather(1, self.chosen[view.at][:, None])[:, 0])


class Recorder:
    """Collects the steps of one decoding. ``record`` keeps every state; ``observe`` adds tensors of its own to each."""

    def __init__(
        self, denoiser: Denoiser, live: LiveRows, temperature: float, record: bool, observe: Observe | None
    ) -> None:
        batch, length = live.result.shape
        most = live.total + live.left if live.revises else live.total
        shape, device = (batch, int(most.max()) if len(most) else 0), live.result.device
        self.order, self.step = (torch.full(shape, -1, dtype=torch.long, device=device) for _ in range(2))
        self.logp, self.order_logp, self.score = (torch.zeros(shape, device=device) for _ in range(3))
        self.count = torch.zeros(batch, dtype=torch.long, device=device)
        self.temperature, self.record, self.observe = temperature, record, observe
        self.states: list[dict[str, Tensor]] = []
        self.observed: list[dict[str, Tensor]] = []
        self.taken_back: list[tuple[Tensor, ...]] | None = [] if live.revises else None
        self.denoiser, self.length = denoiser, length
        self.calls, self.positions = denoiser.forwarded, count_positions(denoiser, length)
        self.began, self.denoiser_seconds = time.perf_counter(), 0.0

    def add(self, step: Step, truth: Int[Tensor, "b L"] | None) -> None:
        """Append what the live rows reveal; ``truth`` is priced in every recorded state."""
        if self.record:
            self.states.append(_state(step, truth))
        if self.observe is not None:
            self.observed.append(self.observe(step.view))
        view, count = step.view, step.revealed.sum(1)
        position = _ranked(step, int(count.max()))
        row, nth = torch.nonzero(torch.arange(position.shape[1], device=count.device) < count[:, None], as_tuple=True)
        where = position[row, nth]
        to = (view.rows[row], self.count[view.rows[row]] + nth)
        self.order[to], self.step[to], self.logp[to] = where, view.step, step.chosen_logp[row, where]
        self.score[to] = step.scores[row, where]
        if self.temperature > 0:
            scores = step.scores.masked_fill(~view.eligible, -torch.inf) / self.temperature
            self.order_logp[to] = plackett_luce_logp(scores, position, count)[row, nth]
        self.count[view.rows] += count
        if self.taken_back is not None:
            self._add_revision(step, self.taken_back)

    def _add_revision(self, step: Step, taken_back: list[tuple[Tensor, ...]]) -> None:
        """Note what was taken back; a token that was put in the place of another is a reveal, too."""
        view, after = step.view, step.revised.tokens
        row, where = torch.nonzero(after != view.tokens, as_tuple=True)
        at = view.rows[row]
        taken_back.append((at, torch.full_like(at, view.step), where, view.tokens[row, where], after[row, where]))
        if step.revised.logp is not None:
            replaced = after != view.tokens
            to = (at, self.count[at] + replaced.long().cumsum(1)[row, where] - 1)
            self.order[to], self.step[to], self.logp[to] = where, view.step, step.revised.logp[row, where]
            self.count[view.rows] += replaced.sum(1)

    def trajectory(self, live: LiveRows, rounds: int) -> Trajectory:
        columns, revisions = slice(None), None
        if self.taken_back is not None:
            # Room for every revision was kept; it is rarely needed.
            columns = slice(int(self.count.max()) if len(self.count) else 0)
            none = tuple(live.rows.new_zeros(0) for _ in range(5))
            revisions = Revisions(*map(torch.cat, zip(none, *self.taken_back, strict=True)))
        return Trajectory(
            tokens=live.result,
            order=self.order[:, columns],
            step=self.step[:, columns],
            logp=self.logp[:, columns],
            order_logp=self.order_logp[:, columns],
            score=self.score[:, columns],
            states=self._join_states() if self.states else None,
            denoiser_calls=self.denoiser.forwarded - self.calls,
            steps=rounds,
            seconds=time.perf_counter() - self.began,
            denoiser_seconds=self.denoiser_seconds,
            positions=count_positions(self.denoiser, self.length) - self.positions,
            revisions=revisions,
        )

    def _join_states(self) -> States:
        return States(**{"target_logp": None, **_concatenate(self.states)}, observed=_concatenate(self.observed))  # pyright: ignore


def _ranked(step: Step, most: int) -> Int[Tensor, "b m"]:
    """The revealed positions of each row from the best key to the worst; entries past a row's count mean nothing."""
    if most == 1:
        return step.revealed.int().argmax(1, keepdim=True)
    keys = step.keys.masked_fill(~step.revealed, -torch.inf)
    return keys.sort(dim=1, descending=True, stable=True).indices[:, :most]


def _state(step: Step, truth: Int[Tensor, "b L"] | None) -> dict[str, Tensor]:
    view = step.view
    state = {
        "row": view.rows,
        "step": torch.full_like(view.rows, view.step),
        "tokens": view.tokens,
        "eligible": view.eligible,
        "revealed": step.revealed,
        "scores": step.scores.masked_fill(~view.eligible, -torch.inf),
        "confidence": view.confidence,
        "margin": view.margin,
        "entropy": view.entropy,
        "best": view.best,
    }
    if truth is not None:
        state["target_logp"] = view.dense(view.prices.logp.gather(1, truth[view.at][:, None])[:, 0])
    return state


def _concatenate(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}
