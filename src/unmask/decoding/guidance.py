"""Denoisers around denoisers: classifier-free guidance, and rules for end tokens and padding.

Shapes: ``B`` canvases, ``L`` positions, ``D`` the width of the denoiser's states, ``E`` that of the states around them, ``N``
positions that get logits, ``V`` vocabulary; ``b`` live rows.

A distribution depends on the canvas alone, never on earlier calls: rows may leave, be repeated or be tried ahead of time, and
every scheduler, pace and temperature sees the same numbers. What the logits of a position need besides its state is stored in
further channels of the state.

* ``GuidedDenoiser``: logits = u + (scale + 1)·(c − u), where c sees the prompt and u has masks in its place (LLaDA).
  Two forwards.
* ``EndingDenoiser``: padding is never revealed; end tokens are damped, or forbidden before a least length, or altogether.
* ``postpone_ends``: end tokens wait until nothing else is left to reveal.
* ``discount_ends``: positions are ranked as if there were no end tokens, and end tokens after all others (LLaDA).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.block_rule import BlockRule
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import device_ids, price
from unmask.decoding.protocols import (
    DeclaredScheduler,
    Denoiser,
    Focus,
    Scheduler,
    View,
    count_positions,
    needs_truth,
    prices_all,
    reads_states,
    takes_focus,
)
from unmask.decoding.sampling import draw_tokens

NEVER = -1e4
"""A log-factor that stands for probability 0 and that every floating-point type can hold."""


class DenoiserWrapper:
    """A denoiser around another one, which it repeats; subclasses change one thing. It counts the inner one's calls through it."""

    def __init__(self, inner: Denoiser) -> None:
        self.inner = inner
        self.forwarded = 0
        self.computed = 0

    @property
    def mask_id(self) -> int:
        return self.inner.mask_id

    @property
    def pad_id(self) -> int | None:
        return self.inner.pad_id

    @property
    def end_ids(self) -> tuple[int, ...]:
        return self.inner.end_ids

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        return self.inner.forbidden_ids

    @property
    def config(self) -> Any:
        return getattr(self.inner, "config", None)

    @property
    def device(self) -> torch.device:
        return getattr(self.inner, "device", torch.device("cpu"))

    @property
    def block_rule(self) -> BlockRule | None:
        return BlockRule.of(self.inner)

    @property
    def takes_focus(self) -> bool:
        """Whether the inner denoiser takes a focus."""
        return takes_focus(self.inner)

    def inner_states(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None, focus: Focus | None = None
    ) -> Float[Tensor, "B L E"]:
        """The inner denoiser's states; every canvas that it forwards is counted here too."""
        with self.count_calls(tokens.shape[1]):
            inner = self.inner
            return (
                inner.hidden(tokens, attention, focus=focus) if takes_focus(inner) else inner.hidden(tokens, attention)
            )

    @contextmanager
    def count_calls(self, length: int) -> Iterator[None]:
        """Add the calls of the inner denoiser inside this context to this one's counts."""
        forwarded, positions = self.inner.forwarded, count_positions(self.inner, length)
        yield
        self.forwarded += self.inner.forwarded - forwarded
        self.computed += count_positions(self.inner, length) - positions

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None, focus: Focus | None = None
    ) -> Float[Tensor, "B L E"]:
        return self.inner_states(tokens, attention, focus)

    def logits(self, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "N V"]:
        return self.inner.logits(hidden)

    def states(self, hidden: Float[Tensor, "B L E"]) -> Float[Tensor, "B L D"]:
        """The states of the innermost denoiser on the canvas as it is."""
        return self.inner.states(hidden) if isinstance(self.inner, DenoiserWrapper) else hidden


class GuidedDenoiser(DenoiserWrapper):
    """Classifier-free guidance. The prompt is the columns before ``start``; its effect on the logits is scaled by ``scale`` + 1."""

    def __init__(self, inner: Denoiser, scale: float, start: int) -> None:
        super().__init__(inner)
        if not 0 <= scale < torch.inf:
            raise ValueError(f"the scale of the guidance must be a number of at least 0, got {scale}")
        self.scale, self.start = scale, start

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None, focus: Focus | None = None
    ) -> Float[Tensor, "B L E"]:
        """The states with the prompt, and beside them those with masks in its place. Padding stays padding in both."""
        prompt = torch.arange(tokens.shape[1], device=tokens.device) < self.start
        both = torch.cat([tokens, tokens.masked_fill(prompt, self.mask_id)])
        masked = None if attention is None else torch.cat([attention, attention])
        states = self.inner_states(both, masked, None if focus is None else focus.double())
        return torch.cat(states.chunk(2), dim=-1)

    def logits(self, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "N V"]:
        with_prompt, without = (self.inner.logits(half).float() for half in hidden.chunk(2, dim=-1))
        return without + (self.scale + 1) * (with_prompt - without)

    def states(self, hidden: Float[Tensor, "B L E"]) -> Float[Tensor, "B L D"]:
        return super().states(hidden.chunk(2, dim=-1)[0])


class EndingDenoiser(DenoiserWrapper):
    """Which end tokens may be revealed where, and how readily. Padding that is no end token is never revealed.

    ``floor`` g: the probability of each end token is multiplied by g + (1 − g)·t/T, where t/T is the share of the ``length``
    positions from ``start`` on that is revealed, and the distribution normalised again. ``least``: no end token in the first
    ``least`` of them. ``forbidden``: these end tokens never.
    """

    def __init__(
        self,
        inner: Denoiser,
        start: int = 0,
        length: int = 0,
        *,
        floor: float | None = None,
        least: int = 0,
        forbidden: tuple[int, ...] = (),
    ) -> None:
        super().__init__(inner)
        if floor is not None and not 0 <= floor <= 1:
            raise ValueError(f"the floor of damped end tokens must be in [0, 1], got {floor}")
        if floor is not None and length < 1:
            raise ValueError("damped end tokens need the length of the region, at least 1")
        if not 0 <= least <= length:
            raise ValueError(f"min_length must be in 0 .. {length}, the length, got {least}")
        self.start, self.length, self.floor, self.least, self.never = start, length, floor, least, forbidden

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Those of the denoiser, its padding unless that ends texts too, and the end tokens that are forbidden."""
        more = set(self.never)
        if self.pad_id is not None and self.pad_id not in set(self.end_ids) - more:
            more.add(self.pad_id)
        return (*self.inner.forbidden_ids, *sorted(more - set(self.inner.forbidden_ids)))

    @property
    def changes(self) -> bool:
        """Whether any position has a factor of its own."""
        return bool(self.end_ids) and (self.floor is not None or self.least > 0)

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None, focus: Focus | None = None
    ) -> Float[Tensor, "B L E"]:
        states = self.inner_states(tokens, attention, focus)
        if not self.changes:
            return states
        factor = self._log_factor(tokens).clamp(min=NEVER)
        # Two numbers, a coarse one and its rounding error: bfloat16 has 8 bits, too few for a probability.
        coarse = factor.to(states.dtype)
        return torch.cat([states, coarse[..., None], (factor - coarse.float()).to(states.dtype)[..., None]], dim=-1)

    def logits(self, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "N V"]:
        if not self.changes:
            return self.inner.logits(hidden)
        logits = self.inner.logits(hidden[:, :-2]).float()
        factor = hidden[:, -2:].float().sum(1, keepdim=True)
        factor = factor.masked_fill(factor <= NEVER / 2, -torch.inf)
        ends = device_ids(self.end_ids, logits.device)
        return logits.index_add(1, ends, factor.expand(-1, len(ends)))

    def states(self, hidden: Float[Tensor, "B L E"]) -> Float[Tensor, "B L D"]:
        return super().states(hidden[..., :-2] if self.changes else hidden)

    def _log_factor(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        """By how much the logits of end tokens change at each position."""
        region = slice(self.start, self.start + self.length)
        factor = torch.zeros(tokens.shape, device=tokens.device)
        if self.floor is not None:
            revealed = (tokens[:, region] != self.mask_id).float().mean(1, keepdim=True)
            factor = factor + torch.log(self.floor + (1 - self.floor) * revealed)
        factor[:, self.start : self.start + self.least] = NEVER
        return factor


def postpone_ends(decoding: Decoding) -> Decoding:
    """``decoding``, in which a position whose token would be an end token waits until nothing else of its block is left.

    The drawn token counts, at any temperature, not the likeliest. Once only end tokens are left the leftmost
    is revealed, which as a rule ends the row. The step budget holds: a step whose quota exceeds the other
    positions reveals end tokens too, from the right, where they cut nothing off.
    """

    def pace(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        ends = device_ids(view.denoiser.end_ids, view.tokens.device)
        ending = view.eligible & torch.isin(draw_tokens(view, decoding), ends)
        others = view.eligible & ~ending
        left = others.sum(1)
        only_ends = (left == 0)[:, None]
        allowed = torch.where(only_ends, view.eligible, others)
        revealed = decoding.rule(replace(view, eligible=allowed), keys.masked_fill(~allowed, -torch.inf), quota)
        missing = torch.where((others & ~revealed).any(1), 0, quota - left)
        from_left, from_right = ending.long().cumsum(1), ending.long().flip(1).cumsum(1).flip(1)
        leftmost, rightmost = (ending & (n <= m[:, None]) for n, m in ((from_left, quota), (from_right, missing)))
        return torch.where(only_ends, leftmost, revealed | rightmost)

    return replace(decoding, pace=pace)


def discount_ends(scheduler: Scheduler, decoding: Decoding) -> tuple[Scheduler, Decoding]:
    """LLaDA's ``confidence_eos_eot_inf``: the scheduler and the pace read prices that are normalised without the end tokens, and a
    position whose token would be one has the least confidence there is. Tokens are drawn from the whole distribution."""

    def discount(view: View) -> View:
        ends = view.denoiser.end_ids
        other = price(view.prices.logp, ends)
        own = device_ids(ends, view.tokens.device)
        ending = torch.isin(draw_tokens(view, decoding)[view.at], own)
        worst = {"confidence": -torch.inf, "margin": -torch.inf, "entropy": torch.inf}
        seen = {name: getattr(other, name).masked_fill(ending, value) for name, value in worst.items()}
        return replace(view, prices=view.prices.alter(**seen))

    def score(view: View) -> Float[Tensor, "b L"]:
        return scheduler(discount(view))

    def pace(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        return decoding.rule(discount(view), keys, quota)

    return wrap_scheduler(scheduler, score), decoding if decoding.pace == "top" else replace(decoding, pace=pace)


def wrap_scheduler(inner: Scheduler, score: Callable[[View], Float[Tensor, "b L"]]) -> DeclaredScheduler:
    """``score``, which calls ``inner``, with the needs that ``inner`` declares."""
    return DeclaredScheduler(score, needs_truth(inner), prices_all(inner), reads_states(inner))


def score_inner_states(scheduler: Scheduler, denoiser: DenoiserWrapper) -> Scheduler:
    """``scheduler`` on the states of the innermost denoiser: a policy that reads states was trained on those."""

    return wrap_scheduler(scheduler, lambda view: scheduler(with_inner_states(view, denoiser)))


def with_inner_states(view: View, denoiser: Denoiser) -> View:
    """The view with the states of the innermost denoiser. One that has them stays, with all that it has computed already."""
    states = denoiser.states(view.states) if isinstance(denoiser, DenoiserWrapper) else view.states
    return view if states is view.states else replace(view, states=states)
