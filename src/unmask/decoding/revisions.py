"""Which revealed tokens to take back: rules that doubt the tokens that stand, one row never touching another.

For a token ``x_j`` that stands, ``x̂_j`` is the likeliest one now, ``p̂_j`` its probability, ``p(x_j)`` that of ``x_j``. A rule
returns a doubt for each, the higher the sooner, −inf where the token stays. With a step budget, the pace makes up for what is
hidden again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.decoding.draws import REVISION_NOISE
from unmask.decoding.paces import take_first
from unmask.decoding.protocols import Revision, View
from unmask.decoding.standing import Standing
from unmask.runs.names import EntryPoints, build

REVISIONS = EntryPoints("unmask.revisions")
"""Name → a function of its options that returns the rule."""


@dataclass(frozen=True)
class DeclaredRevision:
    """A rule and what it declares: ``replaces`` puts the likeliest token in the place of a doubted one, instead of a mask."""

    doubt: Callable[[View, Standing], Float[Tensor, "N"]]
    replaces: bool = False
    prices_all: bool = False

    def __call__(self, view: View, standing: Standing) -> Float[Tensor, "N"]:
        return self.doubt(view, standing)


def t2t(p: float = 0.9) -> Revision:
    """Replace x_j by x̂_j ≠ x_j where p̂_j > p (LLaDA2.1's editing)."""
    return DeclaredRevision(_disagreement(p), replaces=True)


def t2m(p: float = 0.9) -> Revision:
    """Hide x_j again where x̂_j ≠ x_j and p̂_j > p ("remask, don't replace")."""
    return _disagreement(p)


def remdm_conf(eta: float = 1.0) -> Revision:
    """ReMDM-conf: hide x_j with probability η·σ_max·softmax(−ψ)_j, where ψ_j is what p(x_j) was when it was revealed.

    With α_t the revealed share and α_s that after this step, σ_max = min(1, (1 − α_s)/α_t).
    """

    def sigma(view: View, standing: Standing, most: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        weight = view.dense(-standing.reveal_logp.exp(), at=standing.at).softmax(1)
        return eta * most * weight[standing.at]

    return _drawn(sigma)


def remdm_cap(eta: float = 0.02) -> Revision:
    """ReMDM-cap: hide every token with probability min(η, σ_max)."""
    return _drawn(lambda view, standing, most: most.clamp(max=eta))


def remdm_rescale(eta: float = 0.02) -> Revision:
    """ReMDM-rescale: hide every token with probability η·σ_max."""
    return _drawn(lambda view, standing, most: eta * most)


def p2(eta: float = 1.0) -> Revision:
    """P2: of n tokens that stand and the hidden positions, the n + quota best stay or come; tokens that are not among them go.

    Hidden positions are ranked by log p̂, tokens by η·log p(x_j): the larger η, the more is taken back.
    """

    def doubt(view: View, standing: Standing) -> Float[Tensor, "N"]:
        own = view.dense(eta * standing.logp, at=standing.at)
        worth = torch.maximum(own, view.confidence.masked_fill(~view.eligible, -torch.inf))
        count = torch.bincount(standing.at[0], minlength=len(view.rows)) + standing.quota
        stays = take_first(count, worth)[standing.at]
        return (-standing.logp).masked_fill(stays, -torch.inf)

    return doubt


def load_revision(spec: str) -> Revision:
    """A rule that takes tokens back, by name, with options after colons: ``t2m:p=0.8``."""
    return build(spec, REVISIONS, "revision")


def _disagreement(p: float) -> Callable[[View, Standing], Float[Tensor, "N"]]:
    """p̂_j where another token than the one that stands has more than ``p``."""

    def doubt(view: View, standing: Standing) -> Float[Tensor, "N"]:
        likeliest = standing.prices.confidence
        sure = (standing.prices.best != standing.token) & (likeliest.exp() > p)
        return likeliest.masked_fill(~sure, -torch.inf)

    return doubt


def _drawn(sigma: Callable[[View, Standing, Float[Tensor, "N"]], Float[Tensor, "N"]]) -> Revision:
    """Hide each token with the probability that ``sigma`` gives it, from σ_max of its row."""

    def doubt(view: View, standing: Standing) -> Float[Tensor, "N"]:
        stand = torch.bincount(standing.at[0], minlength=len(view.rows))
        hidden = view.eligible.sum(1)
        most = ((hidden - standing.quota).clamp(min=0) / stand.clamp(min=1)).clamp(max=1)
        probability = sigma(view, standing, most[standing.at[0]])
        drawn = view.uniform(REVISION_NOISE)[standing.at] < probability
        return probability.log().masked_fill(~drawn, -torch.inf)

    return doubt
