"""Heads: networks like a policy's that answer a question about each token of the frozen denoiser, learned without a verifier.

* ``doubt``: is this revealed token wrong? As a revision, it hides what is doubted again.
* ``pace``: is the likeliest token of this position already final? As a pace, it reveals what is.

``b`` live rows, ``L`` positions, ``N`` tokens that stand. Heads are policies whose ``purpose`` says which; their scores are logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.guidance import DenoiserWrapper, with_inner_states
from unmask.decoding.paces import take_best, take_first
from unmask.decoding.protocols import Denoiser, Pace, Revision, View
from unmask.decoding.standing import Standing
from unmask.schedulers.features import OF_SCHEDULER
from unmask.schedulers.loading import load_head
from unmask.schedulers.policy import OrderPolicy

PER_ROW = (
    *("tokens", "attention", "hidden", "eligible", "index", "place", "rows", "total"),
    *("states", "seeds", "reference", "quota"),
)
"""The attributes of a view that have a row per live row, or are None."""


def doubt(p: float = 0.7, keep: float = 0.25, blame: float = 0.5, after: float = 1.0, head: str = "") -> Revision:
    """In rows with a token that is wrong with probability > p, hide all tokens but the share ``keep`` that is doubted least.

    If such a row fails again, what was kept is to blame: the logits of those tokens rise by ``blame``, so that others are kept.
    Rows are looked at once a share ``after`` of the block is revealed. ``head`` is a folder; by default the shipped one.
    """
    return Bindable("doubt", head, lambda policy: Doubt(policy, p, keep, blame, after))


def learned(p: float = 0.0, head: str = "") -> Pace:
    """Reveal the positions whose likeliest token is final with probability > p; the best one in rows where none is.

    A head that walks goes down the scheduler's ranking and stops at the first that is not. 0 is the probability that was chosen
    for the head. ``head`` is a folder; by default the shipped one.
    """
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
    keep: float = 0.25
    blame: float = 0.5
    after: float = 1.0

    @property
    def prices_all(self) -> bool:
        return self.policy.prices_all

    def __call__(self, view: View, standing: Standing) -> Float[Tensor, "N"]:
        doubts = torch.full_like(standing.reveal_logp, -torch.inf)
        rows = self.ripe(view, standing)
        if not len(rows):
            return doubts
        if "blame" not in view.memory:
            shape = (int(view.rows.max()) + 1, view.tokens.shape[1])
            view.memory["blame"] = torch.zeros(shape, device=view.tokens.device)
        blame = view.memory["blame"]
        here, view, standing = take_rows(rows, view, standing)
        score = self.policy.score(observe_standing(self.policy, view, standing))[standing.at].float()
        wrong = score.sigmoid()
        # One token that is surely wrong has misled others, and which ones is less sure than that there are any.
        doubted = view.dense(wrong, 0.0, standing.at).amax(1, keepdim=True) > self.p
        share = (self.keep * torch.bincount(standing.at[0], minlength=len(rows))).long()
        trust = view.dense(-score - blame[view.rows][standing.at], at=standing.at)
        kept = take_first(share, trust) & doubted & (view.dense(wrong, 1.0, standing.at) <= self.p)
        blame[view.rows] += self.blame * kept
        return doubts.masked_scatter(here, wrong.masked_fill((kept | ~doubted)[standing.at], -torch.inf))

    def ripe(self, view: View, standing: Standing) -> Int[Tensor, "r"]:
        """The rows that are looked at."""
        stand = torch.bincount(standing.at[0], minlength=len(view.rows))
        return torch.nonzero((stand > 0) & (stand >= self.after * (stand + view.eligible.sum(1))))[:, 0]


@dataclass(frozen=True)
class LearnedPace:
    """A pace: what ``policy`` holds to be final with a probability above ``p``, or above its own where that is 0.

    A policy whose base is the scheduler begins with the keys: the order's scores, drawn ones at an order temperature.
    """

    policy: OrderPolicy
    p: float = 0.0

    @property
    def prices_all(self) -> bool:
        return self.policy.prices_all

    def __call__(self, view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        config = self.policy.config
        scores = torch.where(view.eligible, keys, 0.0) if config.base == OF_SCHEDULER else None
        odds = self.policy(with_inner_states(view, view.denoiser), base=scores)
        final = view.eligible & (odds.sigmoid() > (self.p or config.sure))
        if config.walks:
            ranking = keys.sort(dim=1, descending=True, stable=True).indices
            return take_first(final.gather(1, ranking).long().cumprod(1).sum(1).clamp(min=1), keys) & view.eligible
        return final | (take_best(view, keys) & ~final.any(1, keepdim=True))


def observe_standing(policy: OrderPolicy, view: View, standing: Standing) -> dict[str, Tensor]:
    """A policy's inputs with the tokens that stand among the priced positions: their likeliest token is the one that stands."""
    prices = view.prices.join(standing.prices)
    known = len(view.at[0])
    best, confidence = prices.best.clone(), prices.confidence.clone()
    best[known:], confidence[known:] = standing.token, standing.logp
    at = (torch.cat([view.at[0], standing.at[0]]), torch.cat([view.at[1], standing.at[1]]))
    altered = replace(
        with_inner_states(view, view.denoiser), at=at, prices=prices.alter(best=best, confidence=confidence)
    )
    seen = policy.observe(altered)
    if policy.network.reads_standing:
        seen["hidden"] = seen["confidence"].isfinite()
    return seen


def take_rows(rows: Int[Tensor, "r"], view: View, standing: Standing) -> tuple[Bool[Tensor, "N"], View, Standing]:
    """Which tokens stand in these rows, the rows, and their tokens."""
    place = torch.full((len(view.rows),), -1, device=rows.device).index_put(
        (rows,), torch.arange(len(rows), device=rows.device)
    )
    priced, kept = (place[row] >= 0 for row in (view.at[0], standing.at[0]))
    at, here = (
        (place[row[part]], position[part]) for (row, position), part in ((view.at, priced), (standing.at, kept))
    )
    per_row = {name: getattr(view, name) for name in PER_ROW}
    view = replace(
        view,
        **{name: None if value is None else value[rows] for name, value in per_row.items()},
        at=at,
        prices=view.prices.take(priced),
    )
    of_tokens = {name: getattr(standing, name)[kept] for name in ("token", "reveal_logp")}
    of_rows = {name: getattr(standing, name)[rows] for name in ("quota", "left")}
    return kept, view, Standing(at=here, prices=standing.prices.take(kept), **of_tokens, **of_rows)
