"""Rotary positions: the angles of half-split rotations, of a whole head or of its first channels, plain or stretched by YaRN.

Shapes: ``B`` canvases, ``L`` positions, ``H`` heads, ``w`` rotated channels of a head, ``half`` of which are pairs.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.runs.config import Count, NonNegative, Positive, config


@config
class Yarn:
    """YaRN's stretch of rotary positions (arXiv 2309.00071), with Llama-4's growth of queries beyond ``original_length``.

    Frequencies that turn more than ``beta_fast`` times within ``original_length`` stay, those that turn less than ``beta_slow``
    times are divided by ``factor``, those between are mixed. Sines and cosines are multiplied by ``attention_factor``; the query
    at place n by 1 + ``query_growth`` · log(1 + ⌊n / original_length⌋).
    """

    factor: Positive
    original_length: Count
    beta_fast: Positive = 32.0
    beta_slow: Positive = 1.0
    attention_factor: Positive = 1.0
    query_growth: NonNegative = 0.0

    def stretch(self, frequency: Float[Tensor, "half"], theta: float) -> Float[Tensor, "half"]:
        """The frequencies 1/θ^e, stretched."""
        pairs = len(frequency)

        def pair_of(turns: float) -> float:
            """The pair that turns this often, as a fraction."""
            return pairs * math.log(self.original_length / (turns * 2 * math.pi)) / math.log(theta)

        low = max(math.floor(pair_of(self.beta_fast)), 0)
        high = min(math.ceil(pair_of(self.beta_slow)), 2 * pairs - 1)
        number = torch.arange(pairs, dtype=torch.float32, device=frequency.device)
        kept = 1 - ((number - low) / (high - low or 0.001)).clamp(0, 1)
        # 1/(factor·θ^e), not (1/θ^e)/factor: they differ in the last bit.
        return 1.0 / (self.factor * (1.0 / frequency)) * (1 - kept) + frequency * kept

    def query_scale(self, places: Int[Tensor, "B L"]) -> Float[Tensor, "B L 1 1"]:
        return (1 + self.query_growth * torch.log(1 + torch.floor(places / self.original_length)))[..., None, None]


def rotary(
    places: Int[Tensor, "B L"], width: int, theta: float, dtype: torch.dtype, yarn: Yarn | None = None
) -> tuple[Float[Tensor, "B L 1 w"], Float[Tensor, "B L 1 w"]]:
    """Half-split rotary angles (pair ``(i, i + w/2)``), computed in float32 whatever the weights are.

    1/θ^e and not θ^−e: they differ in the last bit, which a thousand positions on is the fourth decimal of an angle, and the
    published models were trained with the former.
    """
    factor = 1.0 if yarn is None else yarn.attention_factor
    angle = places[..., None].float() * _frequencies(width, theta, yarn, places.device)
    angle = torch.cat([angle, angle], dim=-1)[:, :, None, :]
    return (angle.cos() * factor).to(dtype), (angle.sin() * factor).to(dtype)


@lru_cache(maxsize=256)
def _frequencies(width: int, theta: float, yarn: Yarn | None, device: torch.device) -> Float[Tensor, "half"]:
    """Made once for a device: every forward needs them."""
    exponent = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    frequency = 1.0 / theta**exponent
    return frequency if yarn is None else yarn.stretch(frequency, theta)


def turn(
    x: Float[Tensor, "B L H D"], cos: Float[Tensor, "B L 1 w"], sin: Float[Tensor, "B L 1 w"], dtype: torch.dtype
) -> Float[Tensor, "B L H D"]:
    """The first ``w`` channels of each head, turned; the rest as it is."""
    width = cos.shape[-1]
    head = x[..., :width]
    turned = (head * cos + half_turn(head) * sin).to(dtype)
    return turned if width == x.shape[-1] else torch.cat([turned, x[..., width:]], dim=-1)


def half_turn(x: Float[Tensor, "B L H w"]) -> Float[Tensor, "B L H w"]:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([-right, left], dim=-1)
