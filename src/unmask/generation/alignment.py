"""Rows of token ids of different lengths as one padded batch. ``B`` rows, ``L`` positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.decoding.protocols import Denoiser

Row = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""The ids before the region, in it and after it."""


class AlignedRows(NamedTuple):
    """``attention`` is False on padding; the ``region`` of every row begins in the column ``start``."""

    tokens: Int[Tensor, "B L"]
    attention: Bool[Tensor, "B L"]
    region: Bool[Tensor, "B L"]
    start: int


def align_rows(denoiser: Denoiser, rows: Sequence[Row]) -> AlignedRows:
    """Pad rows on both sides so that all regions begin in one column."""
    start = max(len(before) for before, _, _ in rows)
    width = start + max(len(region) + len(after) for _, region, after in rows)
    tokens = torch.full((len(rows), width), filler_id(denoiser))
    attention, region = (torch.zeros(len(rows), width, dtype=torch.bool) for _ in range(2))
    for number, parts in enumerate(rows):
        ids = [token for part in parts for token in part]
        first = start - len(parts[0])
        tokens[number, first : first + len(ids)] = torch.tensor(ids, dtype=torch.long)
        attention[number, first : first + len(ids)] = True
        region[number, start : start + len(parts[1])] = True
    vocabulary = getattr(getattr(denoiser, "config", None), "vocab_size", None)
    if vocabulary is not None and int(tokens.max()) >= vocabulary:
        raise ValueError(
            f"the tokenizer gives the id {int(tokens.max())}, but the denoiser's embedding has {vocabulary} rows: "
            "name the tokenizer that the denoiser was trained with"
        )
    return AlignedRows(tokens, attention, region, start)


def filler_id(denoiser: Denoiser) -> int:
    """The token of padded positions; it changes nothing, since attention excludes them."""
    return denoiser.pad_id if denoiser.pad_id is not None else (denoiser.end_ids or (0,))[0]
