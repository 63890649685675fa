"""The keys, values and states that a transformer stores for its rows, so that some positions can be computed without the others.

Shapes: ``b`` rows, ``L`` positions, ``A`` computed positions of the row that has most, ``H`` key/value heads of width ``w``, ``D``
width. Keys are stored after their rotation, states before any shift.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Exchange = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From the keys and values that a block has just computed to those that its queries attend to."""
Place = tuple[Int[Tensor, "N"], Int[Tensor, "N"]]
"""Row and column of each of ``N`` entries."""


@dataclass(frozen=True)
class Packed:
    """Some positions of each row, next to each other: ``column[r, n]`` is the n-th. Rows with fewer are filled, not ``real``.

    ``queries_only``: they attend to keys and values of all positions that are computed with them, not to stored ones.
    """

    column: Int[Tensor, "b A"]
    real: Bool[Tensor, "b A"]
    queries_only: bool = False

    @classmethod
    def of(cls, chosen: Bool[Tensor, "b L"]) -> Packed:
        count = chosen.sum(1)
        most = int(count.max())
        column = chosen.int().sort(dim=1, descending=True, stable=True).indices[:, :most]
        return cls(column, torch.arange(most, device=chosen.device) < count[:, None])

    @classmethod
    def of_queries(cls, at: Place, shape: torch.Size) -> tuple[Packed, Place]:
        """The (row, position) pairs ``at``, sorted, as queries, and the place of each pair in the rows of queries.

        GPUs and compiled graphs get a place for every position: the host would wait for the count of the longest row.
        """
        row, position = at
        if row.device.type != "cpu" or torch.compiler.is_compiling():
            column = torch.arange(shape[1], device=row.device).expand(shape)
            return cls(column, torch.ones_like(column, dtype=torch.bool), queries_only=True), at
        count = torch.bincount(row, minlength=shape[0])
        place = row, torch.arange(len(row)) - (count.cumsum(0) - count)[row]
        column = torch.zeros(shape[0], max(1, int(count.max())), dtype=torch.long).index_put(place, position)
        return cls(column, torch.arange(column.shape[1]) < count[:, None], queries_only=True), place

    @cached_property
    def at(self) -> tuple[Int[Tensor, "N"], Int[Tensor, "N"], Int[Tensor, "N"]]:
        """Of the real ones the row, their number in it, and the position. Found once for all layers: the host waits for it."""
        row, nth = torch.nonzero(self.real, as_tuple=True)
        return row, nth, self.column[row, nth]

    def take(self, values: Shaped[Tensor, "b L"]) -> Shaped[Tensor, "b A"]:
        return values.gather(1, self.column)

    def write(self, stored: Shaped[Tensor, "b L ..."], new: Shaped[Tensor, "b A ..."]) -> None:
        """Put ``new`` in its places, in place."""
        row, nth, position = (x.to(new.device) for x in self.at)
        stored[row, position] = new[row, nth]

    def seen_by(self, related: Bool[Tensor, "H L L"]) -> Bool[Tensor, "b H A L"]:
        return related[:, self.column].transpose(0, 1)


@dataclass(frozen=True)
class Window:
    """The same columns of every row, next to each other: nothing is gathered, and the host waits for nothing."""

    span: slice

    def take(self, values: Shaped[Tensor, "b L"]) -> Shaped[Tensor, "b A"]:
        return values[:, self.span]

    def write(self, stored: Shaped[Tensor, "b L ..."], new: Shaped[Tensor, "b A ..."]) -> None:
        stored[:, self.span] = new

    def seen_by(self, related: Bool[Tensor, "H L L"]) -> Bool[Tensor, "1 H A L"]:
        return related[None, :, self.span]


class KVStore:
    """Keys and values of every block and the last states, of ``b`` rows. Empty until a transformer fills it."""

    def __init__(self) -> None:
        self.keys: list[Float[Tensor, "b L H w"]] = []
        self.values: list[Float[Tensor, "b L H w"]] = []
        self.states: Float[Tensor, "b L D"] | None = None

    def take(self, rows: Int[Tensor, "r"]) -> KVStore:
        """A copy of some rows."""
        part = KVStore()
        part.keys, part.values = ([x[rows.to(x.device)] for x in stored] for stored in (self.keys, self.values))
        part.states = None if self.states is None else self.states[rows]
        return part

    def put(self, rows: Int[Tensor, "r"], fresh: KVStore) -> None:
        """Replace some rows."""
        assert self.states is not None and fresh.states is not None
        for mine, theirs in zip([*self.keys, *self.values], [*fresh.keys, *fresh.values], strict=True):
            mine[rows.to(mine.device)] = theirs
        # The caller of an earlier step may still hold the states: they are never written to.
        self.states = self.states.index_put((rows,), fresh.states)

    def exchange(self, number: int, packed: Packed | Window | None) -> Exchange:
        """For block ``number``: store everything (no ``packed``), or put what is new among what is stored."""

        def append(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            self.keys.append(k)
            self.values.append(v)
            return k, v

        def replace(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            assert packed is not None
            # In place: these positions are computed anew before they are read again.
            packed.write(self.keys[number], k)
            packed.write(self.values[number], v)
            return self.keys[number], self.values[number]

        return append if packed is None else replace

    def merge_states(self, states: Float[Tensor, "b A D"], packed: Packed | Window | None) -> Float[Tensor, "b L D"]:
        """The rows' states: the new ones, and the stored ones of positions that were not computed."""
        if packed is None:
            self.states = states
            return states
        assert self.states is not None
        merged = self.states.clone()
        packed.write(merged, states)
        return merged


@runtime_checkable
class CacheableDenoiser(Protocol):
    """A denoiser whose ``hidden`` can fill a :class:`KVStore`, and with ``active`` compute only those positions from it.

    ``active`` is a slice where all rows have the same positions. No states but those ``at`` some positions are looked at.
    """

    def new_store(self) -> KVStore: ...
    def hidden(
        self,
        tokens: Int[Tensor, "B L"],
        attention: Bool[Tensor, "B L"] | None = None,
        store: KVStore | None = None,
        active: Bool[Tensor, "B L"] | slice | None = None,
        at: Place | None = None,
    ) -> Float[Tensor, "B L D"]: ...
