"""The heuristics: pure functions from a View to scores ``[b, L]``, the higher the sooner.

For a candidate ``i`` with distribution ``p_i``: ``p̂`` its largest probability, ``p2`` the second, ``H_i`` its entropy, ``x̂_i`` the
likeliest token, ``j`` its index in the generation region. Scores are in float32 log space where that keeps precision; the loop
breaks ties by the lowest index. A function that takes options returns the scheduler.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.decoding.draws import TIE_NOISE
from unmask.decoding.pricing import device_ids, price, reads_prices
from unmask.decoding.protocols import Scheduler, View, scheduler


@reads_prices
def random(view: View) -> Float[Tensor, "b L"]:
    """U(0, 1): every remaining position is equally likely."""
    return view.uniform(TIE_NOISE)


@reads_prices
def left_to_right(view: View) -> Float[Tensor, "b L"]:
    """−j."""
    return -view.index.float()


@reads_prices
def right_to_left(view: View) -> Float[Tensor, "b L"]:
    """+j."""
    return view.index.float()


@reads_prices
def confidence(view: View) -> Float[Tensor, "b L"]:
    """log p̂."""
    return view.confidence


@reads_prices
def margin(view: View) -> Float[Tensor, "b L"]:
    """p̂ − p2."""
    return view.margin


@reads_prices
def entropy(view: View) -> Float[Tensor, "b L"]:
    """−H_i: the least entropy first."""
    return -view.entropy


@reads_prices
def uncertainty(view: View) -> Float[Tensor, "b L"]:
    """+H_i: the most entropy first. What is hard is priced before it is narrowed down, what is easy last."""
    return view.entropy


def gumbel_confidence(c: float = 0.5) -> Scheduler:
    """log p̂ + c·(remaining/total)·Gumbel: confidence, noisy at first and sharp at the end."""

    def score(view: View) -> Float[Tensor, "b L"]:
        share = view.remaining / view.total.clamp(min=1)
        return view.confidence + c * share[:, None] * view.gumbel(TIE_NOISE)

    return score


def softmax_confidence(tau: float = 0.05) -> Scheduler:
    """i ∝ exp(p̂/τ), drawn by the Gumbel trick."""
    if tau <= 0:
        raise ValueError(f"softmax_confidence: tau must be positive, got {tau}; the greedy limit is confidence itself")

    def score(view: View) -> Float[Tensor, "b L"]:
        return view.confidence.exp() / tau + view.gumbel(TIE_NOISE)

    return score


def top_k_random(k: int = 5) -> Scheduler:
    """Uniform over the k most confident; the others after them, by confidence."""

    def score(view: View) -> Float[Tensor, "b L"]:
        chosen = torch.zeros_like(view.eligible).scatter(1, _most_confident(view, k), True)
        return torch.where(chosen, view.uniform(TIE_NOISE), view.confidence - 1)

    return score


def pc_sampler(decay: float = 0.25, cap: float = 10.0, frequency: Float[Tensor, "V"] | None = None) -> Scheduler:
    """PC-Sampler: e^{−λj}·min(α, −p̂·log f(x̂)), in log space. ``frequency`` f is the corpus's, uniform by default."""

    def score(view: View) -> Float[Tensor, "b L"]:
        vocabulary = view.prices.logp.shape[1]
        rarity = (
            torch.full((vocabulary,), math.log(vocabulary), device=view.tokens.device)
            if frequency is None
            else -frequency.to(view.tokens.device).float().clamp(min=1e-12).log()
        )
        content = (view.prices.confidence.exp() * rarity[view.prices.best]).clamp(min=1e-30, max=cap)
        return view.dense(content.log()) - decay * view.index

    return score


def end_damped(floor: float = 0.4) -> Scheduler:
    """p̂·(g + (1−g)·t/T) where x̂ is an end token: end tokens wait until the answer is there."""

    def score(view: View) -> Float[Tensor, "b L"]:
        progress = 1 - view.remaining / view.total.clamp(min=1)
        damp = torch.log(floor + (1 - floor) * progress)[:, None]
        ends = device_ids(view.denoiser.end_ids, view.tokens.device)
        return view.confidence + torch.where(torch.isin(view.best, ends), damp, torch.zeros_like(damp))

    return score


def look_ahead(among: int = 5) -> Scheduler:
    """One step of information gain: fill x̂_i, then −mean H of what remains, minus H_i.

    Only the ``among`` most confident candidates are tried (each costs a denoiser call); the others come after them.
    """

    def score(view: View) -> Float[Tensor, "b L"]:
        top = _most_confident(view, among)
        row, rank = torch.nonzero(view.eligible.gather(1, top), as_tuple=True)
        position = top[row, rank]
        tokens = view.tokens[row].scatter(1, position[:, None], view.best[row, position][:, None])
        hidden = view.hidden[row].scatter(1, position[:, None], False)
        rest = _mean_entropy(view, tokens, hidden, None if view.attention is None else view.attention[row])
        gain = -rest - view.entropy[row, position]
        after = view.confidence - 1e3  # any gain is above −2·log V
        return after.index_put((row, position), gain)

    return score


def _most_confident(view: View, k: int) -> Int[Tensor, "b k"]:
    """The k most confident eligible positions, ties by index (``topk`` breaks them as it likes)."""
    among = view.confidence.masked_fill(~view.eligible, -torch.inf)
    return among.sort(dim=1, descending=True, stable=True).indices[:, :k]


def _mean_entropy(
    view: View, tokens: Tensor, hidden: Tensor, attention: Tensor | None, rows_at_once: int = 256
) -> Float[Tensor, "N"]:
    parts = []
    for start in range(0, len(tokens), rows_at_once):
        part = slice(start, start + rows_at_once)
        states = view.denoiser.hidden(tokens[part], None if attention is None else attention[part])
        at = torch.nonzero(hidden[part], as_tuple=True)
        entropy = price(view.denoiser.logits(states[at]), view.denoiser.forbidden_ids).entropy
        total = torch.zeros(len(states), device=tokens.device).index_add(0, at[0], entropy)
        parts.append(total / hidden[part].sum(1).clamp(min=1))
    return torch.cat(parts)


@scheduler(needs_truth=True)
def gt_logp(view: View) -> Float[Tensor, "b L"]:
    """Oracle: log p(x*_i)."""
    assert view.reference_logp is not None
    return view.reference_logp


@scheduler(needs_truth=True)
def gt_margin(view: View) -> Float[Tensor, "b L"]:
    """Oracle: p(x*_i) − the largest other probability (Where-to-Unmask)."""
    assert view.reference is not None
    truth = view.reference[view.at][:, None]
    p = view.prices.logp.exp()
    other = p.scatter(1, truth, -1.0).amax(1)
    return view.dense(p.gather(1, truth)[:, 0] - other)
