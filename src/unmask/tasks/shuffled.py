"""Which examples a step shows: each once per epoch, in an order of its own. ``B`` rows of a step."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def shuffled_rows(seed: int, step: int, batch: int, count: int) -> Int[Tensor, "B"]:
    """The rows of a step out of ``count``: a function of the seed and the step, whatever was drawn before."""
    place = step * batch + torch.arange(batch)
    rows = torch.empty_like(place)
    for epoch in torch.unique(place // count).tolist():
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        inside = place // count == epoch
        rows[inside] = order[place[inside] % count]
    return rows
