"""How many positions per step: rules that turn keys ``[b, L]`` into a set to reveal, one row never touching another.

``keys`` rank a row's eligible positions as the scheduler (and its temperature) wants them, −inf elsewhere; ``quota`` is the
step budget's number. Walking down the keys, ``p̂_(n)`` and ``H_(n)`` belong to the n-th position. Every rule reveals at least one
position of a row that has any.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.draws import BERNOULLI_NOISE
from unmask.decoding.pricing import reads_prices
from unmask.decoding.protocols import Pace, View
from unmask.runs.names import EntryPoints, build


@reads_prices
def top(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
    """The best ``quota`` of each row: the fixed top-b of L–B–T decoding, one position when there is no step budget."""
    most = view.most if quota is view.quota and view.most else int(quota.max())
    if most == 1:
        best, position = find_best(view, keys)
        revealed = take_best(view, keys)
        ranked, ranking = best[:, None], position[:, None]
    else:
        ranked, ranking = keys.sort(dim=1, descending=True, stable=True)
        view.memory["best"] = (keys, (ranked[:, 0], ranking[:, 0]))
        revealed = _first_of(ranking, quota) & view.eligible
    view.memory["ranking"] = (revealed, ranking, ranked)  # the record needs them again
    return revealed


def threshold(p: float = 0.9) -> Pace:
    """{p̂ > p}; the best one in rows where none passes."""

    @reads_prices
    def rule(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        sure = view.confidence.exp() > p
        return _or_best(
            view, keys, view.eligible & sure if view.whole else sure
        )  # only what is priced has a confidence

    return rule


def factor(f: float = 1.0) -> Pace:
    """Accept the n-th while p̂_(n) ≥ 1 − f/(n+1) (Fast-dLLM)."""

    @reads_prices
    def rule(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        order = _ranking(keys)
        n = torch.arange(1, keys.shape[1] + 1, device=keys.device)
        accepted = (view.confidence.exp().gather(1, order) >= 1 - f / (n + 1)).long().cumprod(1)
        return take_first(accepted.sum(1).clamp(min=1), keys) & view.eligible

    return rule


def entropy_bound(gamma: float = 0.1) -> Pace:
    """The largest k with Σ_{n≤k} H_(n) − max_{n≤k} H_(n) ≤ γ: a bound on the mutual information of the set's tokens."""

    def rule(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        entropy = view.entropy.masked_fill(~view.eligible, torch.inf).gather(1, _ranking(keys))
        joint = entropy.cumsum(1) - entropy.cummax(1).values
        # inf − inf is NaN past the last eligible position, and NaN ≤ γ is False: the walk ends there.
        accepted = (joint <= gamma).long().cumprod(1)
        return take_first(accepted.sum(1).clamp(min=1), keys) & view.eligible

    return rule


def kl_stable(p: float = 0.9, epsilon: float = 0.01, steps: int = 2) -> Pace:
    """KLASS: p̂ > p and KL(p_t‖p_{t−1}) < ε over the last ``steps`` steps; top-b in rows where none passes."""

    def rule(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        history = view.memory.setdefault("kl_stable", {})
        logp, position = view.prices.logp, (view.rows[view.at[0]], view.at[1])
        if "logp" not in history:
            shape = (int(view.rows.max()) + 1, view.tokens.shape[1])
            history["logp"] = logp.new_zeros(*shape, logp.shape[1])
            history["calm"] = torch.zeros(shape, dtype=torch.long, device=logp.device)
            history["seen"] = torch.zeros(shape, dtype=torch.bool, device=logp.device)
        before = history["logp"][position]
        ratio = (logp - before).masked_fill(logp == -torch.inf, 0.0)
        calm = ((logp.exp() * ratio).sum(1) < epsilon) & history["seen"][position]
        run = torch.where(calm, history["calm"][position] + 1, 0)
        history["logp"][position], history["calm"][position], history["seen"][position] = logp, run, True
        stable = view.dense((run >= steps).float(), 0.0) > 0
        sure = view.eligible & stable & (view.confidence.exp() > p)
        return sure | (top(view, keys, quota) & ~sure.any(1, keepdim=True))

    return rule


def less(p: float = 0.9, epsilon: float = 0.01, steps: int = 2, likeliest: int = 10) -> Pace:
    """LESS: p̂ ≥ p, the same x̂ for ``steps`` steps, and JS(p_t, p_{t−1}) ≤ ε over the ``likeliest`` tokens; else the best one."""

    def rule(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        history = view.memory.setdefault("less", {})
        logp, best, position = view.prices.logp, view.prices.best, (view.rows[view.at[0]], view.at[1])
        if "logp" not in history:
            shape = (int(view.rows.max()) + 1, view.tokens.shape[1])
            history["logp"] = logp.new_full((*shape, logp.shape[1]), -torch.inf)
            history["best"], history["same"] = (
                torch.full(shape, fill, device=logp.device, dtype=torch.long) for fill in (-1, 0)
            )
        same = torch.where(history["best"][position] == best, history["same"][position] + 1, 0)
        calm = _jensen_shannon(logp, history["logp"][position], likeliest) <= epsilon
        history["logp"][position], history["best"][position], history["same"][position] = logp, best, same
        stays = view.dense(((same >= steps) & calm).float(), 0.0) > 0
        sure = view.eligible & stays & (view.confidence.exp() >= p)
        return _or_best(view, keys, sure)

    return rule


def dilated(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
    """The coarsest power-of-two stride inside the block that still has hidden positions: far neighbours first, together."""
    place = view.place.clamp(min=0)
    # The largest power of two that divides a place; place 0 goes with the coarsest stride of the row's blocks.
    stride = place & -place
    stride = torch.where(place == 0, stride.amax(1, keepdim=True), stride).masked_fill(~view.eligible, -1)
    coarsest = stride.amax(1, keepdim=True)
    return view.eligible & (stride == coarsest)


def bernoulli(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
    """Reveal each position with probability σ(key); the best one in rows where none is drawn (Jazbec et al.).

    Keys are read as logits: use a policy that was trained for it.
    """
    drawn = view.eligible & (view.uniform(BERNOULLI_NOISE) < keys.sigmoid())
    return _or_best(view, keys, drawn)


PACES = EntryPoints("unmask.paces")
"""Name → the rule, or a function of its options."""


def load_pace(spec: str) -> Pace:
    """A rule for how many per step, by name, with options after colons: ``threshold:p=0.8``."""
    return build(spec, PACES, "pace")


def _jensen_shannon(logp: Float[Tensor, "N V"], before: Float[Tensor, "N V"], likeliest: int) -> Float[Tensor, "N"]:
    """Of two distributions on the tokens that are likeliest in the first; NaN, which is at most nothing, without a second one."""
    among = logp.topk(min(likeliest, logp.shape[1]), dim=1).indices
    p, q = (x.gather(1, among).softmax(1) for x in (logp, before))
    middle = (p + q) / 2
    return (torch.xlogy(p, p / middle) + torch.xlogy(q, q / middle)).sum(1) / 2


def _ranking(keys: Float[Tensor, "b L"]) -> Int[Tensor, "b L"]:
    """Positions from the best key to the worst, ties by index."""
    return keys.sort(dim=1, descending=True, stable=True).indices


def take_first(count: Int[Tensor, "b"], keys: Float[Tensor, "b L"]) -> Bool[Tensor, "b L"]:
    """The ``count`` best positions of each row."""
    return _first_of(_ranking(keys), count)


def _first_of(ranking: Int[Tensor, "b L"], count: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
    first = columns(ranking.shape[1], ranking.device) < count[:, None]
    return torch.empty_like(first).scatter_(1, ranking, first)


def take_best(view: View, keys: Float[Tensor, "b L"]) -> Bool[Tensor, "b L"]:
    """The best eligible position of each row."""
    return (columns(keys.shape[1], keys.device) == find_best(view, keys)[1][:, None]) & view.eligible


def _or_best(view: View, keys: Float[Tensor, "b L"], some: Bool[Tensor, "b L"]) -> Bool[Tensor, "b L"]:
    """``some``, in rows that have none the best position."""
    return torch.where(some.any(1, keepdim=True), some, take_best(view, keys))


def find_best(view: View, keys: Float[Tensor, "b L"]) -> tuple[Float[Tensor, "b"], Int[Tensor, "b"]]:
    """The largest key of each row, NaN if one is, and the first position that has it. Found once for the step's keys."""
    known = view.memory.get("best")
    if known is None or known[0] is not keys:
        known = view.memory["best"] = (keys, keys.max(1))
    return known[1]


@lru_cache(maxsize=64)
def columns(count: int, device: torch.device) -> Int[Tensor, "L"]:
    """0, 1, …, made once."""
    return torch.arange(count, device=device)
