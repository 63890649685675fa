"""Attention of heads that are limited to a few positions, as to a row, a column or a box of a board: 9 of 81.

The positions that a head sees also see each other, and no others. So the gradient of what was gathered is gathered too: it is the
sum over the same few positions, where the general gradient of an index would add up one row after another.

``b`` states, ``L`` positions, ``N`` hidden ones of all states, ``H`` heads, ``n`` positions that a head sees, ``V`` tokens but the
mask, ``T`` entries for known tokens, ``M = T + N`` listed ones, ``d`` and ``w`` widths of vectors and of queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from unmask.decoding.kv_store import Place


def list_near(related: Bool[Tensor, "H L L"], n: int) -> Int[Tensor, "L H n"]:
    """The ``n`` positions that each head of each position sees."""
    return related.int().topk(n).indices.sort().values.transpose(0, 1).contiguous()


@dataclass(frozen=True)
class Near:
    """Where the hidden positions ``at`` look: at the positions ``near`` them, of which ``entry`` says what is listed for each."""

    near: Int[Tensor, "L H n"]
    entry: Int[Tensor, "b L"]
    at: Place
    known: int

    @cached_property
    def heads(self) -> Int[Tensor, "H"]:
        return torch.arange(self.near.shape[1], device=self.near.device)

    @cached_property
    def seen(self) -> Int[Tensor, "n N H"]:
        """Positions of the batch. The few that a head sees come first: softmax is fast along them."""
        row, position = self.at
        return self.near.permute(2, 0, 1).index_select(1, position) + (row * self.near.shape[0])[:, None]

    @cached_property
    def keys(self) -> Int[Tensor, "n N H"]:
        """Rows of the keys of all positions and heads."""
        return self.seen * len(self.heads) + self.heads

    @cached_property
    def listed(self) -> Int[Tensor, "n N H"]:
        """What is listed for each: a known token, or a hidden position."""
        return self.entry.flatten().index_select(0, self.seen.flatten()).view(self.seen.shape)

    @cached_property
    def back(self) -> tuple[Int[Tensor, "b L H n"], Int[Tensor, "b L H n"], Float[Tensor, "b L H n"]]:
        """Of every position and head, those that see it: which of the hidden ones, where in ``seen``, and 0 for known ones."""
        (length, heads, n), hidden = self.near.shape, self.seen.shape[1]
        own = (self.near == torch.arange(length, device=self.near.device)[:, None, None]).int().argmax(2)
        first = torch.arange(len(self.entry), device=self.near.device)[:, None, None, None] * length
        at = (self.near + first).flatten()
        which = self.entry.flatten().index_select(0, at).view(-1, length, heads, n) - self.known
        looks, which = (which >= 0).float(), which.clamp(min=0)
        return which, (own[..., None] * hidden + which) * heads + self.heads[:, None], looks


def look_near(
    place: Near,
    q: Float[Tensor, "N H w"],
    k: Float[Tensor, "b L H w"],
    listed: Float[Tensor, "M V d"],
    weight: Float[Tensor, "d Hd"],
    column: Int[Tensor, "N"] | None,
) -> Float[Tensor, "N *V d"]:
    """What all heads see together: their vectors weighed by their columns of the matrix."""
    q, k = q * q.shape[-1] ** -0.5, k.flatten(0, 2)
    learns = torch.is_grad_enabled()
    logits = _Dots.apply(q, k, place) if learns else _dots(q, k, place)
    shares = logits.softmax(0).to(listed.dtype)
    # Weighing before the sum over positions leaves one row per position, where weighing after it would need one per head.
    heads = len(place.heads)
    table = listed.flatten(0, 1) @ weight.unflatten(1, (heads, -1)).permute(1, 2, 0)  # H (M V) d
    table = table.view(heads, *listed.shape)
    if not learns:
        return _sum_listed(table, shares, place, column)
    seen = _sum_listed(table.detach(), shares, place, column)
    return _GradientOfTable.apply(seen, table, shares.detach(), place, column)


def _dots(q: Float[Tensor, "N H w"], k: Float[Tensor, "R w"], place: Near) -> Float[Tensor, "n N H"]:
    return (F.embedding(place.keys, k) * q).sum(-1)


class _Dots(torch.autograd.Function):
    """:func:`_dots`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, place: Near) -> Tensor:
        ctx.save_for_backward(q, k)
        ctx.place = place
        return _dots(q, k, place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "n N H"]) -> tuple[Tensor, Tensor, None]:
        (q, k), place = ctx.saved_tensors, ctx.place
        which, where, looks = place.back
        of_queries = _sum_rows(place.keys.permute(1, 2, 0).flatten(0, 1), k, gradient.permute(1, 2, 0).flatten(0, 1))
        weights = gradient.flatten().index_select(0, where.flatten()).view(where.shape) * looks
        rows = which * len(place.heads) + place.heads[:, None]
        of_keys = _sum_rows(rows.flatten(0, 2), q.flatten(0, 1), weights.flatten(0, 2))
        return of_queries.view(q.shape), of_keys, None


def _sum_listed(
    table: Float[Tensor, "H M V d"], shares: Float[Tensor, "n N H"], place: Near, column: Int[Tensor, "N"] | None
) -> Float[Tensor, "N *V d"]:
    heads, entries, tokens, _ = table.shape
    rows = (place.listed + place.heads * entries).transpose(0, 1).flatten(1)
    shares = shares.transpose(0, 1).flatten(1)
    if column is not None:
        return _sum_rows(rows * tokens + column[:, None], table.flatten(0, 2), shares)
    return _sum_rows(rows, table.view(heads * entries, -1), shares).unflatten(1, table.shape[2:])


class _GradientOfTable(torch.autograd.Function):
    """What was summed, as it is; its gradient also goes to the table that it was taken from."""

    @staticmethod
    def forward(ctx: Any, seen: Tensor, table: Tensor, shares: Tensor, place: Near, column: Tensor | None) -> Tensor:
        ctx.shares, ctx.place, ctx.column, ctx.shape = shares, place, column, table.shape
        return seen.view_as(seen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "N *V d"]) -> tuple[Tensor | None, ...]:
        place, column, shares = ctx.place, ctx.column, ctx.shares
        heads, _, tokens, width = ctx.shape
        full = gradient
        if column is not None:
            full = gradient.new_zeros(len(gradient), tokens, width)
            full.scatter_(1, column[:, None, None].expand(-1, 1, width), gradient[:, None])
        full = full.flatten(1)
        of_known = _share_of_known(place, shares).T @ full
        flat = place.at[0] * place.near.shape[0] + place.at[1]
        which, where, looks = (x.flatten(0, 1).index_select(0, flat).flatten(0, 1) for x in place.back)
        weights = shares.flatten().index_select(0, where.flatten()).view(where.shape) * looks
        of_hidden = _sum_rows(which, full, weights).view(-1, heads, tokens * width).transpose(0, 1)
        of_table = torch.cat([of_known.view(heads, place.known, -1), of_hidden], dim=1)
        return gradient, of_table.view(ctx.shape), None, None, None


def _share_of_known(place: Near, shares: Float[Tensor, "n N H"]) -> Float[Tensor, "N HT"]:
    """What each head gives to each known token."""
    of_hidden = len(place.heads) * place.known
    column = torch.where(place.listed < place.known, place.listed + place.heads * place.known, of_hidden)
    found = shares.new_zeros(shares.shape[1], of_hidden + 1)
    return found.scatter_add_(1, column.transpose(0, 1).flatten(1), shares.transpose(0, 1).flatten(1))[:, :-1]


def _sum_rows(
    rows: Int[Tensor, "N r"], table: Float[Tensor, "R C"], weights: Float[Tensor, "N r"]
) -> Float[Tensor, "N C"]:
    return F.embedding_bag(rows, table, per_sample_weights=weights, mode="sum")
