"""The forwards of a decoding, and lossless drafts: the next canvases of a row, guessed and forwarded together with the present one.

If the scores of a step stayed, the next steps would reveal its next best positions: those canvases are the draft. The loop itself
verifies it: a later step whose canvas was drafted finds its states here, any other canvas is forwarded. States depend on the canvas
alone, so tokens, order and log-probabilities are those of the plain loop for every scheduler, pace and revision; only the number of
forwards one after another differs (after FreeDave, arXiv 2510.00294).

``B`` rows of the batch, ``b`` live ones, ``L`` positions, ``K`` canvases of a draft, ``D`` width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.protocols import Denoiser, takes_focus
from unmask.decoding.recording import Step
from unmask.decoding.rows import LiveRows

Forward = Callable[[Tensor, Tensor | None], Tensor]
"""From canvases and their attention to states."""


class Forwards:
    """The states of the live rows. ``rounds`` counts the forwards one after another."""

    def __init__(self, denoiser: Denoiser, live: LiveRows, draft: int = 1, share: bool = False) -> None:
        self.denoiser, self.share, self.rounds = denoiser, share, 0
        self.drafts = Drafts(live, draft) if draft > 1 else None

    def states(self, live: LiveRows) -> Float[Tensor, "b L D"]:
        """The states of the live rows' canvases."""
        if self.drafts is not None:
            return self.drafts.states(live, self._forward)
        if takes_focus(self.denoiser):
            # Its states may depend on a row's history: equal canvases are not shared.
            self.rounds += 1
            return self.denoiser.hidden(live.tokens, live.attention, focus=live.focus())
        return self._forward(live.tokens, live.attention)

    def expect(self, step: Step) -> None:
        """Draft the canvases that follow the step."""
        if self.drafts is not None:
            self.drafts.expect(step)

    def _forward(self, tokens: Int[Tensor, "n L"], attention: Bool[Tensor, "n L"] | None) -> Float[Tensor, "n L D"]:
        self.rounds += 1
        if not self.share or len(tokens) == 1:
            return self.denoiser.hidden(tokens, attention)
        first, place = distinct(tokens, attention)
        if len(first) == len(tokens):
            return self.denoiser.hidden(tokens, attention)
        return self.denoiser.hidden(tokens[first], None if attention is None else attention[first])[place]


class Drafts:
    """Canvases that each row may reach, and their states. Of the ``limit`` canvases a row drafts as many as were right lately.

    ``tokens[r, 0]`` is the canvas that row ``r`` was in at its last forward, the others follow it; ``place`` is where the states of
    each are in ``found``, −1 where there are none. ``next`` is what the next forward takes along.
    """

    def __init__(self, live: LiveRows, limit: int) -> None:
        rows, length, device = *live.result.shape, live.result.device
        self.limit, self.revises = limit, live.revises
        self.tokens = live.result.new_zeros(rows, limit, length)
        self.place = live.result.new_full((rows, limit), -1)
        self.found: Float[Tensor, "n L D"] | None = None
        self.next = live.result.new_zeros(rows, limit - 1, length)
        self.wanted = torch.zeros(rows, limit - 1, dtype=torch.bool, device=device)
        self.depth = live.result.new_full((rows,), limit)
        self.drafted, self.right = torch.zeros_like(self.depth), torch.zeros_like(self.depth)

    def states(self, live: LiveRows, forward: Forward) -> Float[Tensor, "b L D"]:
        """Drafted states; if any row needs a forward, the drafts of all rows go with it."""
        rows = live.rows
        same = (self.tokens[rows] == live.tokens[:, None]).all(2) & (self.place[rows] >= 0)
        hit, slot = same.any(1), same.int().argmax(1)
        self.right[rows] += hit.long()
        if not bool(hit.all()):
            self._forward(live, hit, self.place[rows, slot], forward)
            slot = torch.zeros_like(slot)
        assert self.found is not None
        return self.found[self.place[rows, slot]]

    def expect(self, step: Step) -> None:
        """The canvases after the step, if the scores stayed: its next best positions, as many at a time as it revealed."""
        view, kept = step.view, step.keys.masked_fill(~step.view.eligible | step.revealed, -torch.inf)
        count, left = step.revealed.sum(1).clamp(min=1), (kept > -torch.inf).sum(1)
        rank = kept.sort(dim=1, descending=True, stable=True).indices.argsort(1)
        ahead = torch.arange(1, self.limit, device=rank.device)
        filled = (
            rank[:, None].clamp(max=rank.shape[1]) < torch.minimum(ahead * count[:, None], left[:, None])[..., None]
        )
        self.next[view.rows] = torch.where(filled, step.chosen[:, None], step.tokens[:, None])
        # A canvas that hides nothing is looked at only by a revision.
        unfinished = ahead * count[:, None] < (view.remaining - step.revealed.sum(1) + self.revises)[:, None]
        self.wanted[view.rows] = ((ahead - 1) * count[:, None] < left[:, None]) & unfinished

    def _forward(self, live: LiveRows, hit: Bool[Tensor, "b"], known: Int[Tensor, "b"], forward: Forward) -> None:
        """Forward the canvases that are not known, and with them the drafts of every live row."""
        rows, missed = live.rows, torch.nonzero(~hit)[:, 0]
        # Twice as deep after a draft that was right to its end, else one deeper than it was right.
        right, depth = self.right[rows], self.depth[rows]
        depth = torch.where(right >= self.drafted[rows], 2 * depth, right + 2).clamp(max=self.limit)
        self.depth[rows] = torch.where(hit, self.depth[rows], depth)
        shallow = torch.arange(1, self.limit, device=rows.device) < self.depth[rows][:, None]
        row, nth = torch.nonzero(self.wanted[rows] & shallow, as_tuple=True)
        drafted = self.next[rows[row], nth]
        owner = torch.cat([missed, row])
        states = forward(
            torch.cat([live.tokens[missed], drafted]), None if live.attention is None else live.attention[owner]
        )
        kept = states[:0] if self.found is None else self.found[known[hit]]
        self.found = torch.cat([states, kept])
        number = torch.arange(len(self.found), device=rows.device)
        self.place[rows] = -1
        self.place[rows[owner], torch.cat([torch.zeros_like(missed), nth + 1])] = number[: len(states)]
        self.place[rows[hit], 0] = number[len(states) :]
        self.tokens[rows, 0] = live.tokens
        self.tokens[rows[row], nth + 1] = drafted
        self.drafted[rows] = torch.bincount(row, minlength=len(rows))
        self.right[rows] = 0


def distinct(
    tokens: Int[Tensor, "b L"], attention: Bool[Tensor, "b L"] | None
) -> tuple[Int[Tensor, "u"], Int[Tensor, "b"]]:
    """Representatives of equal rows, and which representative stands for each row."""
    rows = tokens if attention is None else torch.where(attention, tokens, -1)
    _, place, counts = torch.unique(rows, dim=0, return_inverse=True, return_counts=True)
    first = torch.full_like(counts, len(rows)).scatter_reduce(
        0, place, torch.arange(len(rows), device=rows.device), "amin", include_self=True
    )
    return first, place
