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

from unmask.decoding.pricing import constant
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
        if self.chosen is view.best:  # whose log p the confidence is, to the bit
            return view.confidence
        return view.dense(view.prices.logp.gather(1, self.chosen[view.at][:, None])[:, 0])


class Reveals:
    """What each step revealed, in the shapes of the steps; spread over the rows' columns when the decoding ends."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, Tensor, Tensor, Tensor, dict[str, Tensor | None]]] = []

    def add(
        self,
        rows: Int[Tensor, "b"],
        step: int,
        count: Int[Tensor, "b"],
        position: Int[Tensor, "b m"],
        **values: Float[Tensor, "b m"] | None,
    ) -> None:
        """The first ``count`` of m reveals of each row, and what goes with them; 0 where there is nothing."""
        self.parts.append((step, rows, count, position, values))

    def spread(self, shape: tuple[int, int], device: torch.device) -> dict[str, Tensor]:
        """``[B, K]`` each: a row's reveals one after another, −1 and 0 behind them."""
        found: dict[str, Tensor] = {
            n: torch.full(shape, -1, dtype=torch.long, device=device) for n in ("order", "step")
        }
        found |= {name: torch.zeros(shape, device=device) for name in ("logp", "order_logp", "score")}
        if not self.parts:
            return found
        real, row = [], []
        flat: dict[str, list[Tensor]] = {name: [] for name in found}
        for step, rows, count, position, values in self.parts:
            real.append((torch.arange(position.shape[1], device=device) < count[:, None]).flatten())
            row.append(rows[:, None].expand(position.shape).flatten())
            known = {"order": position, "step": torch.full_like(position, step), **values}
            for name, parts in flat.items():
                value = known.get(name)
                parts.append((torch.zeros(position.shape, device=device) if value is None else value).flatten())
        kept, at = torch.cat(real), torch.cat(row)
        at = at[kept]
        # Steps follow each other, so a stable sort by row keeps each row's reveals in their order.
        by_row = at.argsort(stable=True)
        count = torch.bincount(at, minlength=shape[0])
        to = (at[by_row], torch.arange(len(at), device=device) - (count.cumsum(0) - count)[at[by_row]])
        for name, parts in flat.items():
            found[name][to] = torch.cat(parts)[kept][by_row]
        return found


class Recorder:
    """Collects the steps of one decoding. ``record`` keeps every state; ``observe`` adds tensors of its own to each."""

    def __init__(
        self, denoiser: Denoiser, live: LiveRows, temperature: float, record: bool, observe: Observe | None
    ) -> None:
        batch, length = live.result.shape
        most = live.total + live.left if live.revises else live.total
        self.shape = (batch, int(most.max()) if len(most) else 0)
        self.reveals = Reveals()
        self.temperature, self.record, self.observe = temperature, record, observe
        self.states: list[dict[str, Tensor]] = []
        self.observed: list[dict[str, Tensor]] = []
        self.taken_back: list[tuple[Tensor, ...]] | None = [] if live.revises else None
        self.denoiser, self.length = denoiser, length
        self.calls, self.positions = denoiser.forwarded, count_positions(denoiser, length)
        self.began, self.denoiser_seconds = time.perf_counter(), 0.0

    def add(self, step: Step, truth: Int[Tensor, "b L"] | None, most: int, count: Int[Tensor, "b"]) -> None:
        """Append what the live rows reveal: ``count`` positions, at most ``most``. ``truth`` is priced in every recorded state."""
        if self.record:
            self.states.append(_state(step, truth))
        if self.observe is not None:
            self.observed.append(self.observe(step.view))
        view = step.view
        position, score = _rank(step, most)
        logp = step.chosen_logp.gather(1, position)
        order_logp = None
        if self.temperature > 0:
            scores = step.scores.masked_fill(~view.eligible, -torch.inf) / self.temperature
            order_logp = plackett_luce_logp(scores, position, count)
        self.reveals.add(view.rows, view.step, count, position, logp=logp, order_logp=order_logp, score=score)
        if self.taken_back is not None:
            self._add_revision(step, self.taken_back)

    def _add_revision(self, step: Step, taken_back: list[tuple[Tensor, ...]]) -> None:
        """Note what was taken back; a token that was put in the place of another is a reveal, too."""
        view, after = step.view, step.revised.tokens
        row, where = torch.nonzero(after != view.tokens, as_tuple=True)
        at = view.rows[row]
        taken_back.append((at, torch.full_like(at, view.step), where, view.tokens[row, where], after[row, where]))
        if step.revised.logp is not None and len(at):
            logp = step.revised.logp[row, where][:, None]
            self.reveals.add(at, view.step, torch.ones_like(at), where[:, None], logp=logp)

    def trajectory(self, live: LiveRows, rounds: int) -> Trajectory:
        columns, revisions = self.reveals.spread(self.shape, live.result.device), None
        if self.taken_back is not None:
            # Room for every revision was kept; it is rarely needed.
            used = int((columns["order"] >= 0).sum(1).max()) if len(live.result) else 0
            columns = {name: column[:, :used] for name, column in columns.items()}
            none = tuple(live.rows.new_zeros(0) for _ in range(5))
            revisions = Revisions(*map(torch.cat, zip(none, *self.taken_back, strict=True)))
        return Trajectory(
            tokens=live.result,
            **columns,
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


def _rank(step: Step, most: int) -> tuple[Int[Tensor, "b m"], Float[Tensor, "b m"]]:
    """The revealed positions of each row from the best key to the worst, and their scores; entries past its count mean nothing."""
    revealed, ranking, ranked = step.view.memory.get("ranking", (None, None, None))
    if revealed is step.revealed:  # the pace has ranked them
        position = ranking[:, :most]
        return position, ranked[:, :most] if step.keys is step.scores else step.scores.gather(1, position)
    if most == 1:
        position = step.revealed.view(torch.uint8).argmax(1, keepdim=True)
    else:
        keys = torch.where(step.revealed, step.keys, constant(-torch.inf, step.keys.device))
        position = keys.sort(dim=1, descending=True, stable=True).indices[:, :most]
    return position, step.scores.gather(1, position)


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
