"""All states that grow from one canvas, seen as the decoding loop would show them to a scheduler.

``L`` positions of the canvas, ``n`` of them hidden, ``S`` states; a state is a canvas in which some of the ``n`` are revealed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.loop import look, score_positions
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler, View
from unmask.decoding.rows import LiveRows


@dataclass(frozen=True, eq=False)
class Start:
    """The canvas that every state grows from, and the ``n`` positions that may be revealed."""

    denoiser: Denoiser
    tokens: Int[Tensor, "L"]
    positions: Int[Tensor, "n"]
    region: Bool[Tensor, "L"]
    attention: Bool[Tensor, "L"] | None = None

    @classmethod
    def of(
        cls,
        denoiser: Denoiser,
        tokens: Int[Tensor, "L"],
        attention: Bool[Tensor, "L"] | None = None,
        region: Bool[Tensor, "L"] | None = None,
        candidates: Bool[Tensor, "L"] | None = None,
    ) -> Start:
        """The arguments mean what they mean to ``unmask``, for a single row."""
        seeds = torch.zeros(1, dtype=torch.long, device=tokens.device)
        seen, inside, allowed = (None if x is None else x[None] for x in (attention, region, candidates))
        canvas = Canvas(tokens[None], None, inside, seen, allowed, seeds)
        live = LiveRows(denoiser, canvas, Decoding())
        if not len(live.rows):
            raise ValueError("the canvas hides nothing that may be revealed: expected at least one hidden position")
        return cls(denoiser, tokens, torch.nonzero(live.hidden[0])[:, 0], live.index[0] >= 0, attention)

    def views(
        self,
        canvases: Int[Tensor, "S L"],
        scheduler: Scheduler,
        reference: Int[Tensor, "L"] | None = None,
        seed: int = 0,
        rows_at_once: int = 1024,
    ) -> Iterator[tuple[Int[Tensor, "b"], View]]:
        """Views of the states that still hide something, with the states' indices; one forward each, fewest reveals first.

        All states belong to row 0 of one decoding: they share its seed and its memory, so a scheduler that plans once plans
        from the start. ``step`` is the number of reveals so far, as in sequential decoding.
        """
        n, length = len(self.positions), len(self.tokens)
        left = (canvases[:, self.positions] == self.denoiser.mask_id).sum(1)
        candidates = torch.zeros_like(self.region).index_fill(0, self.positions, True)
        memory: dict[Any, Any] = {}
        truth = None if reference is None else reference[None]
        for step in range(n):
            level = torch.nonzero(left == n - step)[:, 0]
            for index in level.split(rows_at_once) if len(level) else ():
                shape = (len(index), length)
                canvas = Canvas(
                    canvases[index],
                    None,
                    self.region.expand(shape),
                    None if self.attention is None else self.attention.expand(shape),
                    candidates.expand(shape),
                    torch.full_like(index, seed),
                )
                live = LiveRows(self.denoiser, canvas, Decoding())
                live.rows, live.step, live.total = torch.zeros_like(index), step, torch.full_like(index, n)
                with torch.no_grad():
                    view = look(self.denoiser, live, scheduler, truth, memory)
                yield index, view

    def scores(
        self,
        canvases: Int[Tensor, "S L"],
        scheduler: Scheduler,
        reference: Int[Tensor, "L"] | None = None,
        seed: int = 0,
        rows_at_once: int = 1024,
    ) -> Float[Tensor, "S n"]:
        """The scheduler's scores in every state, −inf where a position is revealed; differentiable in the scheduler."""
        table = torch.full((len(canvases), len(self.positions)), -torch.inf, dtype=torch.float64)
        for index, view in self.views(canvases, scheduler, reference, seed, rows_at_once):
            scores = score_positions(scheduler, view).double().masked_fill(~view.eligible, -torch.inf)
            table = table.index_put((index.cpu(),), scores[:, self.positions].cpu())
        return table


def choice_logp(scores: Float[Tensor, "*X S n"], tau: float) -> Float[Tensor, "*X S n"]:
    """log v(i | s) = log softmax(scores/τ) (Eq. masked_softmax); τ = 0 takes the best score, the lowest position among equals.

    A state that hides nothing has no choice: its row is −inf.
    """
    if tau < 0:
        raise ValueError(f"the temperature must not be negative, got {tau}")
    hidden = scores > -torch.inf
    if tau > 0:
        # Rows without a choice would be NaN, and so would their gradient.
        logv = torch.where(hidden.any(-1, keepdim=True), scores / tau, 0.0).log_softmax(-1)
    else:
        logv = torch.full_like(scores, -torch.inf).scatter(-1, scores.argmax(-1, keepdim=True), 0.0)
    return logv.masked_fill(~hidden, -torch.inf)
