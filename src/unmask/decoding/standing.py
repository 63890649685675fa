"""What a revision sees, the tokens that stand, and what it leaves behind, the record of those taken back.

``b`` live rows, ``N`` tokens that stand, ``R`` tokens that were taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float, Int
from torch import Tensor

from unmask.decoding.pricing import Prices


@dataclass(frozen=True)
class Standing:
    """The tokens that a revision may take back: revealed by this decoding, in the current block, in a row with budget ``left``.

    ``at`` are their (row, position) pairs, ``token`` what stands there, ``prices`` what the denoiser says there now, and
    ``reveal_logp`` what it gave to the token when that was revealed. ``quota`` is the step's number of reveals.
    """

    at: tuple[Int[Tensor, "N"], Int[Tensor, "N"]]
    token: Int[Tensor, "N"]
    prices: Prices
    reveal_logp: Float[Tensor, "N"]
    quota: Int[Tensor, "b"]
    left: Int[Tensor, "b"]

    @cached_property
    def logp(self) -> Float[Tensor, "N"]:
        """log p of the token that stands, now."""
        return self.prices.logp.gather(1, self.token[:, None])[:, 0]


@dataclass(frozen=True)
class Revisions:
    """Every token that was taken back: its ``row``, ``step`` and ``position``, what stood there, and what came ``after`` it.

    ``after`` is the mask where the position was hidden again.
    """

    row: Int[Tensor, "R"]
    step: Int[Tensor, "R"]
    position: Int[Tensor, "R"]
    before: Int[Tensor, "R"]
    after: Int[Tensor, "R"]

    def __len__(self) -> int:
        return len(self.row)
