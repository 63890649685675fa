"""A denoiser around a denoiser that recomputes only the positions that matter to a step: Fast-dLLM's prefix and dual cache.

Shapes: ``b`` live rows, ``L`` positions, ``D`` width.

A row is computed whole at the first step of each of its blocks, and again after every ``refresh`` steps; that is exact, and its
keys and values are stored. In between, only some positions are computed, attending to the stored keys and values of the others:

* ``prefix``: the block and everything behind it.
* ``dual``: the block alone.

Tokens outside the block do not change while it is decoded, so the stored values are wrong only in that they have not seen the
tokens revealed since. With ``refresh=1`` nothing is reused. Positions that are not computed have their stored states: a scheduler
that prices the whole canvas sees the rest of it as it was at the last exact step.

Each row has its own clock, so a row does not depend on its batch. Without a focus (look-ahead, the likelihood of a given order)
the result is exact and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.guidance import DenoiserWrapper
from unmask.decoding.kv_store import CacheableDenoiser, KVStore
from unmask.decoding.options import Cache
from unmask.decoding.protocols import Denoiser, Focus, takes_focus


def with_cache(denoiser: Denoiser, cache: Cache = "none", refresh: int | None = None) -> Denoiser:
    """``denoiser`` with the named cache, exact again every ``refresh`` steps (None: only where a block begins)."""
    return denoiser if cache == "none" else CachedDenoiser(denoiser, cache, refresh)


class CachedDenoiser(DenoiserWrapper):
    """A denoiser for one decoding at a time, which begins with a focus of step 0."""

    def __init__(self, inner: Denoiser, cache: str, refresh: int | None = None) -> None:
        super().__init__(inner)
        if not isinstance(inner, CacheableDenoiser):
            name = type(getattr(inner, "model", inner)).__name__
            raise ValueError(
                f"cache {cache!r} needs a denoiser that stores keys and values, which {name} does not: "
                "use cache='none', or a model that loads into our own transformer (docs/backbones.md lists them)"
            )
        if takes_focus(inner):
            raise ValueError(
                f"cache {cache!r}: what stands before this denoiser's block changes when the block is complete; use cache='none'"
            )
        self.cacheable: CacheableDenoiser = inner
        self.cache, self.refresh = cache, refresh
        self.store: KVStore | None = None
        self.rows = torch.zeros(0, dtype=torch.long)
        self.numbers: tuple[int, ...] = ()
        self.age: list[int] = []

    @property
    def takes_focus(self) -> bool:
        return True

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None, focus: Focus | None = None
    ) -> Float[Tensor, "B L D"]:
        if focus is None:
            return self.inner_states(tokens, attention)
        with self.count_calls(tokens.shape[1]):
            return self._step(tokens, attention, focus)

    def _step(
        self, tokens: Int[Tensor, "b L"], attention: Bool[Tensor, "b L"] | None, focus: Focus
    ) -> Float[Tensor, "b L D"]:
        """Rows that are due are computed whole, the others only at their active positions."""
        numbers = tuple(focus.block.cpu().tolist()) if focus.numbers is None else focus.numbers
        due = self._due(focus, numbers)
        # Where nothing is reused, states are those without a cache to the bit: the last block is computed whole, too.
        at = None if self.refresh == 1 else focus.at
        if all(due):
            self.store = self.cacheable.new_store()
            states = self.cacheable.hidden(tokens, attention, self.store, at=at)
            self.rows = focus.rows
        elif any(due):
            states = self._mixed(tokens, attention, focus, due)
        else:
            active = self._active(focus.active, focus.span)
            states = self.cacheable.hidden(tokens, attention, self.store, active, at)
        self.age = [1 if is_due else age + 1 for is_due, age in zip(due, self.age or [0] * len(due), strict=True)]
        self.numbers = numbers
        return states

    def _due(self, focus: Focus, numbers: Sequence[int]) -> list[bool]:
        """Rows at the first step of a block, or ``refresh`` steps after their last exact one."""
        if focus.step == 0 or self.store is None:
            self.age = []
            return [True] * len(numbers)
        self._drop_finished(focus.rows)
        late = [self.refresh is not None and age >= self.refresh for age in self.age]
        return [new != old or is_late for new, old, is_late in zip(numbers, self.numbers, late, strict=True)]

    def _mixed(
        self, tokens: Int[Tensor, "b L"], attention: Bool[Tensor, "b L"] | None, focus: Focus, due: Sequence[bool]
    ) -> Float[Tensor, "b L D"]:
        assert self.store is not None
        whole, part = (
            torch.tensor([n for n, is_due in enumerate(due) if is_due == wanted], device=tokens.device)
            for wanted in (True, False)
        )
        real = (None, None) if attention is None else (attention[whole], attention[part])
        fresh = self.cacheable.new_store()
        exact = self.cacheable.hidden(tokens[whole], real[0], fresh)
        active = self._active(focus.active[part])
        partial = self.cacheable.hidden(tokens[part], real[1], self.store.take(part), active)
        self.store.put(whole, fresh)
        states = exact.new_empty(*tokens.shape, exact.shape[-1])
        states[whole], states[part] = exact, partial
        return states

    def _drop_finished(self, rows: Int[Tensor, "b"]) -> None:
        """Forget the rows that have left."""
        if rows is self.rows or (len(rows) == len(self.rows) and bool((rows == self.rows).all())):
            return
        same = rows[:, None] == self.rows
        if not bool(same.any(1).all()):
            raise ValueError("a cache got a row that it has not seen from its first step on: begin with step 0")
        at = same.int().argmax(1)
        assert self.store is not None
        self.store, self.rows = self.store.take(at), rows
        kept = at.cpu().tolist()
        self.numbers, self.age = tuple(self.numbers[n] for n in kept), [self.age[n] for n in kept]

    def _active(self, active: Bool[Tensor, "b L"], span: slice | None = None) -> Bool[Tensor, "b L"] | slice:
        """The positions to compute: the block, and with ``prefix`` everything behind it."""
        if span is not None:
            return span if self.cache == "dual" else slice(span.start, active.shape[1])
        if self.cache == "dual":
            return active
        return active.long().cumsum(1) > 0
