"""The forwards of a decoding, and lossless drafts: the next canvases of a row, guessed and forwarded together with the present one.

If the scores of a step stayed, the next steps would reveal its next best positions: those canvases are the draft. The loop itself
verifies it: a later step whose canvas was drafted finds its states here, any other canvas is forwarded. States depend on the canvas
alone, so tokens, order and log-probabilities are those of the plain loop for every scheduler, pace and revision; only the number of
forwards one after another differs (after FreeDave, arXiv 2510.00294).

``B`` rows of the batch, ``b`` live ones, ``L`` positions, ``K`` canvases of a draft, ``D`` width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.kv_store import Place
from unmask.decoding.protocols import Denoiser, takes_focus
from unmask.decoding.recording import Step
from unmask.decoding.rows import LiveRows

CHANCES = 21
"""Of how many chances that the expected position comes next there is a plan for drafts: 0, 1/20, …, 1."""
PRIOR = (6, 10)
"""What every row begins with: what was expected came in 6 of 10 steps."""
Forward = Callable[[Tensor, Tensor | None], Tensor]
"""From canvases and their attention to states."""


class Forwards:
    """The states of the live rows. ``rounds`` counts the forwards one after another."""

    def __init__(self, denoiser: Denoiser, live: LiveRows, draft: int = 1, share: bool = False) -> None:
        self.denoiser, self.share, self.rounds = denoiser, share, 0
        self.drafts = Drafts(live, draft) if draft > 1 else None

    def states(self, live: LiveRows, at: Place | None = None) -> Float[Tensor, "b L D"]:
        """The states of the live rows' canvases; where ``at`` is given, no others than those are looked at."""
        if self.drafts is not None:
            return self.drafts.states(live, self._forward)
        if takes_focus(self.denoiser):
            # Its states may depend on a row's history: equal canvases are not shared.
            self.rounds += 1
            return self.denoiser.hidden(live.tokens, live.attention, focus=live.focus(at))
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
    """Canvases that each row may reach, and their states: ``limit`` of them with the one that it is in.

    ``tokens[r, 0]`` is the canvas that row ``r`` was in at its last forward, the others follow it; ``place`` is where the states of
    each are in ``found``, −1 where there are none. In ``came`` of ``steps`` steps a row revealed what was expected: the more often,
    the longer the chains of drafts; the less often, the more of them swap a position for one that comes later.
    """

    def __init__(self, live: LiveRows, limit: int) -> None:
        result, rows = live.result, len(live.result)
        self.revises = live.revises
        self.plans = torch.tensor(_plans(limit - 1), device=result.device)
        self.tokens = result.new_zeros(rows, limit, result.shape[1])
        self.place = result.new_full((rows, limit), -1)
        self.found: Float[Tensor, "n L D"] | None = None
        self.came, self.steps = (result.new_full((rows,), n) for n in PRIOR)
        # Of each row's last step: the canvas after it, the tokens drawn, where the others rank, how many it revealed and left.
        self.base, self.chosen, self.rank = (torch.zeros_like(result) for _ in range(3))
        self.left, self.hidden, self.count = result.new_zeros(rows), result.new_zeros(rows), result.new_ones(rows)

    def states(self, live: LiveRows, forward: Forward) -> Float[Tensor, "b L D"]:
        """Drafted states; if any row needs a forward, the drafts of all rows go with it."""
        rows = live.rows
        same = (self.tokens[rows] == live.tokens[:, None]).all(2) & (self.place[rows] >= 0)
        hit, slot = same.any(1), same.int().argmax(1)
        if not bool(hit.all()):
            self._forward(live, hit, self.place[rows, slot], forward)
            slot = torch.zeros_like(slot)
        assert self.found is not None
        return self.found[self.place[rows, slot]]

    def expect(self, step: Step) -> None:
        """Keep what the next canvases follow from: if the scores stayed, the next best positions would be revealed."""
        rows, kept = step.view.rows, step.keys.masked_fill(~step.view.eligible | step.revealed, -torch.inf)
        revealed = step.revealed.sum(1)
        self.came[rows] += ((self.rank[rows] < self.count[rows, None]) | ~step.revealed).all(1).long()
        self.steps[rows] += 1
        self.base[rows], self.chosen[rows] = step.tokens, step.chosen
        self.rank[rows] = kept.sort(dim=1, descending=True, stable=True).indices.argsort(1)
        self.count[rows], self.left[rows] = revealed.clamp(min=1), (kept > -torch.inf).sum(1)
        # A canvas that hides nothing is looked at only by a revision.
        self.hidden[rows] = step.view.remaining - revealed + self.revises

    def _canvases(self, rows: Int[Tensor, "b"]) -> tuple[Int[Tensor, "b K L"], Bool[Tensor, "b K"]]:
        """The drafts of these rows, as many positions at a time as their last step revealed; and which of them can come."""
        plan = self.plans[(CHANCES - 1) * self.came[rows] // self.steps[rows]]
        chunk = (self.rank[rows] // self.count[rows, None]).clamp(max=plan.shape[2] - 1)
        filled = plan.gather(2, chunk[:, None].expand(-1, plan.shape[1], -1))
        filled &= (self.rank[rows] < self.left[rows, None])[:, None]
        last = (plan * torch.arange(1, plan.shape[2] + 1, device=plan.device)).amax(2) - 1
        can_come = (last >= 0) & (last * self.count[rows, None] < self.left[rows, None])
        can_come &= filled.sum(2) < self.hidden[rows, None]
        return torch.where(filled, self.chosen[rows, None], self.base[rows, None]), can_come

    def _forward(self, live: LiveRows, hit: Bool[Tensor, "b"], known: Int[Tensor, "b"], forward: Forward) -> None:
        """Forward the canvases that are not known, and with them the drafts of every live row."""
        rows, missed = live.rows, torch.nonzero(~hit)[:, 0]
        canvases, can_come = self._canvases(rows)
        row, nth = torch.nonzero(can_come, as_tuple=True)
        owner = torch.cat([missed, row])
        states = forward(
            torch.cat([live.tokens[missed], canvases[row, nth]]),
            None if live.attention is None else live.attention[owner],
        )
        kept = states[:0] if self.found is None else self.found[known[hit]]
        self.found = torch.cat([states, kept])
        number = torch.arange(len(self.found), device=rows.device)
        self.place[rows] = -1
        self.place[rows[owner], torch.cat([torch.zeros_like(missed), nth + 1])] = number[: len(states)]
        self.place[rows[hit], 0] = number[len(states) :]
        self.tokens[rows, 0], self.tokens[rows[row], nth + 1] = live.tokens, canvases[row, nth]


@lru_cache
def _plans(drafts: int) -> list[list[list[bool]]]:
    """For each chance that the expected position comes next, which of the next ranks each draft fills."""
    return [_plan(n / (CHANCES - 1), drafts) for n in range(CHANCES)]


def _plan(chance: float, drafts: int) -> list[list[bool]]:
    """The sets of ranks that a row is likeliest to pass through.

    Of what is left, the first comes next with probability ``chance``; if it does not, so does the second, and so on.
    """
    likely: dict[tuple[int, ...], float] = {}
    sets: list[tuple[int, ...]] = []
    last, reached = (), 1.0
    while len(sets) < drafts:
        for nth, rank in enumerate(rank for rank in range(drafts) if rank not in last):
            after = tuple(sorted((*last, rank)))
            if after not in sets:
                likely[after] = likely.get(after, 0.0) + reached * chance * (1 - chance) ** nth
        last = max(likely, key=likely.__getitem__)
        reached = likely.pop(last)
        sets.append(last)
    return [[rank in ranks for rank in range(drafts + 1)] for ranks in sets]


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
