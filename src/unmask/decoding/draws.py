"""Randomness as a hash of counters, not a stream: a row's draws never depend on the other rows or on padding.

A draw is a function of (seed of the row, step, purpose, index in the region). The purposes keep the draws of one step apart.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor

ORDER_NOISE = 1
"""Draws the position, at an order temperature above 0."""
TIE_NOISE = 2
"""A heuristic's own draws."""
TOKEN_NOISE = 3
"""Draws the token, at a token temperature above 0."""
BERNOULLI_NOISE = 4
"""Draws of the pace ``bernoulli``."""
REVISION_NOISE = 5
"""Draws what a revision takes back."""


def row_seeds(seed: int, rows: Iterable[int]) -> Int[Tensor, "B"]:
    """A seed for each row of a data set, whatever batch it is decoded in."""
    return torch.tensor([seed * 2**32 + row for row in rows], dtype=torch.long)


def counter_uniform(*counters: int | Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Uniform numbers in (0, 1) as a hash of integers: splitmix64's finaliser after each counter, the same on every device."""
    state = torch.zeros((), dtype=torch.int64)
    for counter in counters:
        state = _mix(state + counter + _GOLDEN)  # a single number may stay on the CPU: a copy would make the host wait
    # The largest of the 2²⁴ numbers would round to 1, whose Gumbel is infinite and which lies past every token's share.
    return (((state >> 40) & 0xFFFFFF).float().add(0.5) / 2**24).clamp(max=1 - 2**-24)


_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MIX = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


def _mix(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    x = (x ^ _shift(x, 30)) * _MIX[0]
    x = (x ^ _shift(x, 27)) * _MIX[1]
    return x ^ _shift(x, 31)


def _shift(x: Int[Tensor, "..."], by: int) -> Int[Tensor, "..."]:
    """A logical shift to the right: torch's is arithmetic."""
    return (x >> by) & ((1 << (64 - by)) - 1)
