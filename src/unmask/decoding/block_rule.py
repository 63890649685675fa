"""Blocks that a denoiser imposes on its decoding."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.decoding.protocols import Denoiser


@dataclass(frozen=True)
class BlockRule:
    """The blocks of a denoiser whose attention is limited to blocks: it was trained to be decoded in them, left to right.

    They count from the first token of a row, prompt included (``from_start``), or from the beginning of the region. ``seeded``:
    the first token of a block is revealed before the others.
    """

    size: int
    from_start: bool
    seeded: bool = False

    @classmethod
    def of(cls, denoiser: Denoiser) -> BlockRule | None:
        """The rule of a denoiser that has one, in the optional attribute ``block_rule``."""
        return getattr(denoiser, "block_rule", None)
