"""Every answer that some order reaches when the denoiser always writes its likeliest token.

With greedy tokens an order without noise ends in one answer, so the best order that does not know the truth ends in the reachable
answer that is most probably right. The answers are the leaves of a graph: a state is a canvas, its successors reveal one hidden
position each, with the token that is likeliest in that state. States that several orders share are forwarded once. ``n`` hidden
positions, ``K`` answers, ``T`` states of a level, ``L`` positions of the canvas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.decoding.loop import score_positions
from unmask.decoding.protocols import Denoiser, Scheduler, needs_truth
from unmask.schedulers.heuristics import left_to_right
from unmask.theory.states import Start

MOST_STATES = 2**15


@dataclass(frozen=True, eq=False)
class Reachable:
    """``answers`` are whole canvases. ``likelihood``: the largest log p(x | σ) of the orders that end in an answer; ``share``: the
    chance that an order drawn uniformly does. ``chosen`` has the answer of each scheduler; ``denoiser_calls`` counts states."""

    answers: Int[Tensor, "K L"]
    likelihood: Float[Tensor, "K"]
    share: Float[Tensor, "K"]
    chosen: dict[str, int]
    denoiser_calls: int

    @property
    def likeliest(self) -> int:
        """The answer of the order that the denoiser itself finds best, of all orders."""
        return int(self.likelihood.argmax())


@torch.no_grad()
def reach(
    denoiser: Denoiser, tokens: Int[Tensor, "L"], schedulers: Mapping[str, Scheduler], *, rows_at_once: int = 64
) -> Reachable:
    """All answers to the canvas ``tokens``, level by level. The schedulers follow their own way through the same states."""
    if oracles := [name for name, scheduler in schedulers.items() if needs_truth(scheduler)]:
        raise ValueError(f"{', '.join(oracles)}: an oracle reads the hidden tokens; expected schedulers that do not")
    start = Start.of(denoiser, tokens)
    canvases, calls = tokens[None], denoiser.forwarded
    likelihood, share = (torch.full((1,), value, dtype=torch.float64) for value in (0.0, 1.0))
    at = dict.fromkeys(schedulers, 0)
    total = 0
    for _ in start.positions:
        total += len(canvases)
        if total > MOST_STATES:
            raise ValueError(
                f"some order reaches more than {MOST_STATES} states: hide fewer than {len(start.positions)}"
            )
        best, logp, scores = _look(start, canvases, schedulers, rows_at_once)
        state, nth = torch.nonzero(logp > -torch.inf, as_tuple=True)
        after = canvases[state].scatter(1, start.positions[nth][:, None], best[state, nth][:, None])
        canvases, place = torch.unique(after, dim=0, return_inverse=True)
        number = torch.full_like(best, -1).index_put((state, nth), place)
        at = {name: int(number[at[name], scores[name][at[name]].argmax()]) for name in schedulers}
        hidden = (logp > -torch.inf).sum(1)[state]
        share = share.new_zeros(len(canvases)).index_add(0, place, share[state] / hidden)
        paid = likelihood[state] + logp[state, nth]
        likelihood = paid.new_full((len(canvases),), -torch.inf).scatter_reduce(0, place, paid, "amax")
    return Reachable(canvases, likelihood, share, at, denoiser.forwarded - calls)


def _look(
    start: Start, canvases: Int[Tensor, "T L"], schedulers: Mapping[str, Scheduler], rows_at_once: int
) -> tuple[Int[Tensor, "T n"], Float[Tensor, "T n"], dict[str, Float[Tensor, "T n"]]]:
    """The likeliest token of each position, its log-probability (−inf where it is revealed), and the schedulers' scores."""
    shape = (len(canvases), len(start.positions))
    best, logp = torch.zeros(shape, dtype=torch.long), torch.full(shape, -torch.inf, dtype=torch.float64)
    scores = {name: torch.full(shape, -torch.inf, dtype=torch.float64) for name in schedulers}
    for index, view in start.views(canvases, left_to_right, rows_at_once=rows_at_once):
        best[index] = view.best[:, start.positions]
        logp[index] = view.confidence[:, start.positions].double()
        for name, scheduler in schedulers.items():
            found = score_positions(scheduler, view).double().masked_fill(~view.eligible, -torch.inf)
            scores[name][index] = found[:, start.positions]
    return best, logp, scores
