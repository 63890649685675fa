"""A denoiser around a denoiser that computes again only where a decoding stands: Fast-dLLM's prefix and dual cache.

Shapes: ``b`` live rows, ``L`` positions, ``D`` width.

A row is computed whole at the first step of each of its blocks, and again after every ``refresh`` steps; that is exact, and its
keys and values are kept. In between, only some positions are computed, attending to the kept keys and values of the others:

* ``prefix``: the block and everything behind it.
* ``dual``: the block alone.

Tokens outside the block do not change while it is decoded, so what is kept is wrong only in that it has not seen the tokens
revealed since. With ``refresh=1`` nothing is reused. The states of positions that are not computed are the kept ones: a scheduler
that prices the whole canvas sees the rest of it as it was at the last exact step.

Each row has its own clock, so a row does not depend on its batch. Without a focus (somebody looks ahead, or prices a given path)
the answer is the exact one and nothing is kept.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.guidance import DenoiserWrapper
from unmask.decoding.kv_store import Keeping, Kept
from unmask.decoding.options import Cache
from unmask.decoding.protocols import Denoiser, Focus


def with_cache(denoiser: Denoiser, cache: Cache = "none", refresh: int | None = None) -> Denoiser:
    """``denoiser`` with the named cache, which is exact again every ``refresh`` steps (None: only where a block begins)."""
    return denoiser if cache == "none" else Cached(denoiser, cache, refresh)


class Cached(DenoiserWrapper):
    """A denoiser for one decoding at a time, which begins with a focus of step 0."""

    def __init__(self, inner: Denoiser, cache: str, refresh: int | None = None) -> None:
        super().__init__(inner)
        if not isinstance(inner, Keeping):
            name = type(getattr(inner, "model", inner)).__name__
            raise ValueError(
                f"cache {cache!r} needs a denoiser that keeps keys and values, which {name} does not: "
                "use cache='none', or a model that loads into our own transformer (LLaDA, iLLaDA, Dream, SMDM, ours)"
            )
        self.keeping: Keeping = inner
        self.cache, self.refresh = cache, refresh
        self._begin()

    @property
    def focused(self) -> bool:
        return True

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None, focus: Focus | None = None
    ) -> Float[Tensor, "B L D"]:
        if focus is None:
            return self.inner_states(tokens, attention)
        with self.count_calls(tokens.shape[1]):
            return self._some(tokens, attention, focus)

    def logits(self, hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
        return self.inner.logits(hidden)

    def states(self, hidden: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return self.inner.states(hidden) if isinstance(self.inner, DenoiserWrapper) else hidden

    def _begin(self) -> None:
        self.kept: Kept | None = None
        self.rows = self.block = self.age = torch.zeros(0, dtype=torch.long)

    def _some(
        self, tokens: Int[Tensor, "b L"], attention: Bool[Tensor, "b L"] | None, focus: Focus
    ) -> Float[Tensor, "b L D"]:
        """Rows that are due are computed whole, the others where they stand."""
        if focus.step == 0 or self.kept is None:
            due = torch.ones_like(focus.rows, dtype=torch.bool)
        else:
            self._follow(focus.rows)
            due = self.block != focus.block
            if self.refresh is not None:
                due = due | (self.age >= self.refresh)
        if bool(due.all()):
            self.kept = self.keeping.keep()
            states = self.keeping.hidden(tokens, attention, self.kept)
            self.rows, self.age = focus.rows, torch.ones_like(focus.rows)
        else:
            assert self.kept is not None
            if not bool(due.any()):
                states = self.keeping.hidden(tokens, attention, self.kept, self._computed(focus.active))
            else:
                whole, part = torch.nonzero(due)[:, 0], torch.nonzero(~due)[:, 0]
                real = (None, None) if attention is None else (attention[whole], attention[part])
                fresh = self.keeping.keep()
                exact = self.keeping.hidden(tokens[whole], real[0], fresh)
                active = self._computed(focus.active[part])
                some = self.keeping.hidden(tokens[part], real[1], self.kept.take(part), active)
                self.kept.put(whole, fresh)
                states = exact.new_empty(*tokens.shape, exact.shape[-1])
                states[whole], states[part] = exact, some
            self.age = torch.where(due, 1, self.age + 1)
        self.block = focus.block
        return states

    def _follow(self, rows: Int[Tensor, "b"]) -> None:
        """Forget the rows that have left."""
        if len(rows) == len(self.rows) and bool((rows == self.rows).all()):
            return
        same = rows[:, None] == self.rows
        if not bool(same.any(1).all()):
            raise ValueError("a cache was asked about a row that it has not seen from its first step on")
        at = same.int().argmax(1)
        assert self.kept is not None
        self.kept = self.kept.take(at)
        self.rows, self.block, self.age = rows, self.block[at], self.age[at]

    def _computed(self, active: Bool[Tensor, "b L"]) -> Bool[Tensor, "b L"]:
        if self.cache == "dual":
            return active
        return active.long().cumsum(1) > 0
