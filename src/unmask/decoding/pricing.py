"""One fused pass over logits: everything that schedulers, rewards and the loop need of a distribution.

``N`` priced positions, ``V`` vocabulary. All in float32, whatever the denoiser computes in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from unmask.decoding.lazy import lazy

RuledOut = tuple[Bool[Tensor, "V"], Float[Tensor, "V"]]
"""Which tokens are forbidden, and what fills their logits."""
NAMES = ("logp", "best", "confidence", "margin", "entropy")
"""The attributes of :class:`Prices` that describe a distribution."""


class Prices:
    """The distributions of ``N`` positions after one forward.

    ``best`` and ``confidence`` are always there; ``logp``, ``margin`` and ``entropy`` are computed from the ``odds`` when they are
    read for the first time: an order by confidence needs none of them, and each is a pass over the logits.

    ``confidence`` is log p̂ = −log1p(Σ_{a≠â} p(a)/p̂), which keeps its precision where a softmax saturates at 1: confident
    positions still differ, and ties are real ties.
    """

    def __init__(self, best: Int[Tensor, "N"], confidence: Float[Tensor, "N"], odds: Odds | None) -> None:
        self.best, self.confidence, self._odds = best, confidence, odds

    @classmethod
    def complete(cls, known: Mapping[str, Tensor]) -> Prices:
        """Prices of which nothing is left to compute: a tensor for each of ``NAMES``."""
        prices = cls(known["best"], known["confidence"], odds=None)
        vars(prices).update(known)
        return prices

    @lazy
    def logp(self) -> Float[Tensor, "N V"]:
        return self.odds.log_probabilities(self.confidence)

    @lazy
    def p_best(self) -> Float[Tensor, "N"]:
        return self.confidence.exp()

    @lazy
    def margin(self) -> Float[Tensor, "N"]:
        return self.p_best * (1 - self.odds.rest().amax(1))

    @lazy
    def entropy(self) -> Float[Tensor, "N"]:
        return self.odds.entropy(self.logp, self.p_best)

    @property
    def vocabulary(self) -> int:
        return (self.logp if self._odds is None else self._odds.logits).shape[1]

    @property
    def altered(self) -> bool:
        """Whether they may differ from what the logits say."""
        return self._odds is None

    @property
    def odds(self) -> Odds:
        assert self._odds is not None, "prices without logits are complete"
        return self._odds

    @property
    def largest(self) -> Float[Tensor, "N"] | None:
        """The largest logit of each position, finite if all is well; None where the prices were checked when they were made."""
        return None if self._odds is None else self._odds.top

    def check(self) -> Prices:
        """Raise where a logit is NaN or infinite; the host waits for the device."""
        if self._odds is not None and not bool(torch.isfinite(self._odds.top).all()):
            raise ValueError(
                "the denoiser returned logits that are NaN or infinite: expected finite numbers; "
                "check its weights and dtype (float16 overflows where bfloat16 does not)"
            )
        return self

    def alter(self, **known: Tensor) -> Prices:
        """The same prices but for those that are ``known``."""
        return self.complete({name: known[name] if name in known else getattr(self, name) for name in NAMES})

    def take(self, kept: Tensor) -> Prices:
        """Some of the positions, by indices or a boolean tensor."""
        return self.complete({name: getattr(self, name)[kept] for name in NAMES})

    def join(self, *others: Prices) -> Prices:
        """These positions, and after them those of ``others``."""
        return self.complete({name: torch.cat([getattr(prices, name) for prices in (self, *others)]) for name in NAMES})


class Odds:
    """Logits, the largest of each position, and ``others``: p(a)/p̂ of every token but the likeliest, 0 in its place."""

    def __init__(
        self,
        logits: Float[Tensor, "N V"],
        top: Float[Tensor, "N"],
        best: Int[Tensor, "N"],
        others: Float[Tensor, "N V"],
    ) -> None:
        self.logits, self.top, self.best, self.others = logits, top, best, others
        self._whole = False

    def rest(self) -> Float[Tensor, "N V"]:
        """``others`` as they are at first: the entropy leaves a 1 in the place of the likeliest token."""
        if self._whole:
            self._whole = False
            self.others.scatter_(1, self.best[:, None], 0.0)
        return self.others

    def log_probabilities(self, confidence: Float[Tensor, "N"]) -> Float[Tensor, "N V"]:
        # In place where a tensor is ours: at a vocabulary of 10⁵, new memory costs as much as the arithmetic.
        return (self.logits - self.top[:, None]).add_(confidence[:, None])

    def entropy(self, logp: Float[Tensor, "N V"], p_best: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        """−Σ p log p, with 0·log 0 = 0 where a token is forbidden: its logarithm is made finite."""
        terms = logp.clamp(min=torch.finfo(logp.dtype).min)
        self._whole = True
        total = terms.mul_(self.others.scatter_(1, self.best[:, None], 1.0)).sum(1)
        return (-total * p_best).clamp(min=0)


AT_ONCE = 2**25
"""Logits priced at once: the intermediate tensors are as large as they are, several times over."""
BYTES_PER_LOGIT = 8
"""A logit and its log-probability, both in float32."""


def price(
    logits: Float[Tensor, "N V"], forbidden: Sequence[int] = (), *, check: bool = True, compiled: bool = False
) -> Prices:
    """Distributions over the tokens that may be revealed: ``forbidden`` ids have probability 0.

    Without ``check`` broken logits are not looked for, and the host does not wait: see :meth:`Prices.check`. ``compiled`` runs
    few kernels, whose last bits may differ.
    """
    ruled = rule_out(tuple(forbidden), logits.shape[1], logits.device) if forbidden else None
    positions = max(1, AT_ONCE // max(1, logits.shape[1]))
    if len(logits) <= positions:
        prices = price_at_once(logits, ruled, compiled)
        return prices.check() if check else prices
    logp = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    rest: list[dict[str, Tensor]] = []
    for start in range(0, len(logits), positions):
        part = price_at_once(logits[start : start + positions], ruled, compiled).check()
        logp[start : start + positions] = part.logp
        rest.append({name: getattr(part, name) for name in NAMES if name != "logp"})
    return Prices.complete({"logp": logp, **{name: torch.cat([part[name] for part in rest]) for name in rest[0]}})


def price_at_once(logits: Float[Tensor, "N V"], ruled: RuledOut | None, compiled: bool = False) -> Prices:
    logits, top, best, others, confidence = (compile_once(find_odds) if compiled else find_odds)(logits, ruled)
    return Prices(best, confidence, odds=Odds(logits, top, best, others))


def find_odds(logits: Float[Tensor, "N V"], ruled: RuledOut | None) -> tuple[Tensor, ...]:
    """The logits, the largest, its token, the :class:`Odds` of the others, and the confidence."""
    # One kernel: the fill is float32, so bfloat16 becomes float32 as it is filled.
    logits = logits.float() if ruled is None else torch.where(ruled[0], ruled[1], logits).float()
    top, best = logits.max(1)
    # The likeliest token leaves in place: a copy would be one more pass over the vocabulary.
    others = (logits - top[:, None]).exp_().scatter_(1, best[:, None], 0.0)
    return logits, top, best, others, others.sum(1).log1p_().neg_()


@cache
def compile_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as a graph of few kernels, for every number of positions."""
    return torch.compile(function, dynamic=True)


@lru_cache(maxsize=256, typed=True)
def constant(value: int | float, device: torch.device) -> Shaped[Tensor, ""]:
    """A number for ``torch.where``, made once: it fills a tensor for one that is none, and copies one of the CPU to the device."""
    return torch.tensor(value, device=device)


@lru_cache(maxsize=256)
def device_ids(ids: tuple[int, ...], device: torch.device) -> Int[Tensor, "F"]:
    """Ids on a device, copied there once: a copy makes the host wait."""
    return torch.tensor(ids, dtype=torch.long, device=device)


@lru_cache(maxsize=256)
def rule_out(ids: tuple[int, ...], size: int, device: torch.device) -> RuledOut:
    """Which tokens are forbidden, and the −inf that stands for whatever their logits are. Made once."""
    forbidden = torch.zeros(size, dtype=torch.bool, device=device).index_fill_(0, device_ids(ids, device), True)
    return forbidden, torch.full((size,), -torch.inf, device=device)


def reads_prices(rule: Any) -> Any:
    """Declare that a rule never reads ``view.states``: a cache then computes those of priced positions alone."""
    rule.reads_states = False
    return rule
