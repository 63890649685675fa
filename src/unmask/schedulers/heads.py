"""Heads: networks like a policy's that answer a question about each token of the frozen denoiser, learned without a verifier.

* ``doubt``: is this revealed token wrong? As a revision, it hides what is doubted again.
* ``pace``: is the likeliest token of this position already final? As a pace, it reveals what is.

``b`` live rows, ``L`` positions, ``N`` tokens that stand. Heads are policies whose ``purpose`` says which; their scores are logits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.guidance import DenoiserWrapper
from unmask.decoding.paces import take_best
from unmask.decoding.protocols import Denoiser, Pace, Revision, View
from unmask.decoding.standing import Standing
from unmask.schedulers.loading import load_head
from unmask.schedulers.policy import OrderPolicy


def doubt(p: float = 0.7, also: float = 0.07, after: float = 1.0, head: str = "") -> Revision:
    """Hide the tokens that are wrong with probability > p, and in their rows those with probability > also·p.

    Rows are looked at once a share ``after`` of the block is revealed. When a canvas comes back, only those above 2·also·p are
    taken along, then 4·also·p, and in the end it stays. ``head`` is a folder; by default the shipped one.
    """
    return Bindable("doubt", head, lambda policy: Doubt(policy, p, also, after))


def learned(p: float = 0.9, head: str = "") -> Pace:
    """Reveal the positions whose likeliest token is final with probability > p; the best one in rows where none is."""
    return Bindable("pace", head, lambda policy: LearnedPace(policy, p))


@dataclass
class Bindable:
    """A rule whose head is found by the denoiser that it is used with."""

    purpose: str
    head: str
    make: Callable[[OrderPolicy], Any]
    bound: dict[int, Any] = field(default_factory=dict)

    def bind(self, denoiser: Denoiser) -> Any:
        """The rule for this denoiser."""
        while isinstance(denoiser, DenoiserWrapper):
            denoiser = denoiser.inner
        if id(denoiser) not in self.bound:
            self.bound[id(denoiser)] = self.make(load_head(self.purpose, self.head, denoiser))
        return self.bound[id(denoiser)]

    def __call__(self, view: View, *rest: Any) -> Any:
        return self.bind(view.denoiser)(view, *rest)


@dataclass(frozen=True)
class Doubt:
    """A revision by what ``policy`` holds to be wrong; see :func:`doubt`."""

    policy: OrderPolicy
    p: float = 0.7
    also: float = 0.07
    after: float = 1.0

    @property
    def prices_all(self) -> bool:
        return self.policy.prices_all

    def __call__(self, view: View, standing: Standing) -> Float[Tensor, "N"]:
        row = standing.at[0]
        stand = torch.bincount(row, minlength=len(view.rows))
        ripe = stand >= self.after * (stand + view.eligible.sum(1))
        if not bool((ripe & (stand > 0)).any()):
            return torch.full_like(standing.reveal_logp, -torch.inf)
        wrong = self.policy.score(observe_standing(self.policy, view, standing))[standing.at].float().sigmoid()
        # One token that is surely wrong has misled others, which are less so.
        most = torch.zeros_like(stand, dtype=wrong.dtype).scatter_reduce(0, row, wrong, "amax")
        least = self._least(view, ripe & (most > self.p))
        return wrong.masked_fill(wrong <= least[row], -torch.inf)

    def _least(self, view: View, doubted: Bool[Tensor, "b"]) -> Float[Tensor, "b"]:
        """The least doubt that is taken along. It doubles whenever a canvas comes back, so that something else is tried."""
        known, least = view.memory.setdefault("doubt", Counter()), torch.full(doubted.shape, torch.inf)
        for row in torch.nonzero(doubted)[:, 0].tolist():
            canvas = (int(view.rows[row]), *view.tokens[row].tolist())
            bound = self.also * self.p * 2 ** known[canvas]
            least[row] = bound if bound <= self.p else torch.inf
            known[canvas] += 1
        return least.to(doubted.device)


@dataclass(frozen=True)
class LearnedPace:
    """A pace: what ``policy`` holds to be final with a probability above ``p``."""

    policy: OrderPolicy
    p: float = 0.9

    @property
    def prices_all(self) -> bool:
        return self.policy.prices_all

    def __call__(self, view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        final = view.eligible & (self.policy(inner_view(view)).sigmoid() > self.p)
        return final | (take_best(view, keys) & ~final.any(1, keepdim=True))


def observe_standing(policy: OrderPolicy, view: View, standing: Standing) -> dict[str, Tensor]:
    """A policy's inputs with the tokens that stand among the priced positions: their likeliest token is the one that stands."""
    prices = view.prices.join(standing.prices)
    known = len(view.at[0])
    best, confidence = prices.best.clone(), prices.confidence.clone()
    best[known:], confidence[known:] = standing.token, standing.logp
    at = (torch.cat([view.at[0], standing.at[0]]), torch.cat([view.at[1], standing.at[1]]))
    seen = policy.observe(replace(inner_view(view), at=at, prices=prices.alter(best=best, confidence=confidence)))
    if policy.config.kind == "grid":  # which reads the distributions of what is called hidden
        seen["hidden"] = seen["confidence"].isfinite()
    return seen


def inner_view(view: View) -> View:
    """With the states of the innermost denoiser, on which heads are trained."""
    denoiser = view.denoiser
    return replace(view, states=denoiser.states(view.states)) if isinstance(denoiser, DenoiserWrapper) else view
