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
from unmask.decoding.rows import LiveRows
from unmask.decoding.sampling import plackett_luce_logp


@dataclass(frozen=True)
class Step:
    """One step: the view, the scheduler's scores, the keys that the pace ranks, what is revealed, and the tokens drawn."""

    view: View
    scores: Float[Tensor, "b L"]
    keys: Float[Tensor, "b L"]
    revealed: Bool[Tensor, "b L"]
    chosen: Int[Tensor, "b L"]

    @cached_property
    def tokens(self) -> Int[Tensor, "b L"]:
        """The canvas after the step."""
        return torch.where(self.revealed, self.chosen, self.view.tokens)


class Recorder:
    """Collects the steps of one decoding. ``record`` keeps every state; ``observe`` adds tensors of its own to each."""

    def __init__(
        self, denoiser: Denoiser, live: LiveRows, temperature: float, record: bool, observe: Observe | None
    ) -> None:
        batch, length = live.result.shape
        shape, device = (batch, int(live.hidden.sum(1).max()) if len(live.hidden) else 0), live.result.device
        self.order, self.step = (torch.full(shape, -1, dtype=torch.long, device=device) for _ in range(2))
        self.logp, self.order_logp, self.score = (torch.zeros(shape, device=device) for _ in range(3))
        self.count = torch.zeros(batch, dtype=torch.long, device=device)
        self.temperature, self.record, self.observe = temperature, record, observe
        self.states: list[dict[str, Tensor]] = []
        self.observed: list[dict[str, Tensor]] = []
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
        # Place of each canvas position in the packed prices.
        packed = torch.zeros_like(view.tokens).index_put(view.at, torch.arange(len(view.at[0]), device=count.device))
        self.order[to], self.step[to] = where, view.step
        self.logp[to] = view.prices.logp[packed[row, where], step.chosen[row, where]]
        self.score[to] = step.scores[row, where]
        if self.temperature > 0:
            scores = step.scores.masked_fill(~view.eligible, -torch.inf) / self.temperature
            self.order_logp[to] = plackett_luce_logp(scores, position, count)[row, nth]
        self.count[view.rows] += count

    def trajectory(self, live: LiveRows) -> Trajectory:
        return Trajectory(
            tokens=live.result,
            order=self.order,
            step=self.step,
            logp=self.logp,
            order_logp=self.order_logp,
            score=self.score,
            states=self._join_states() if self.states else None,
            denoiser_calls=self.denoiser.forwarded - self.calls,
            steps=live.step,
            seconds=time.perf_counter() - self.began,
            denoiser_seconds=self.denoiser_seconds,
            positions=count_positions(self.denoiser, self.length) - self.positions,
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
