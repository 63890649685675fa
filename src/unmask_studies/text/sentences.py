"""Sentences of a plain text as canvases of characters: the beginning is given, the rest, an end token and padding are hidden.

Token 0 is the mask, 1 any character that is none of the most frequent ones, 2 ends a sentence and pads it; the others are one
character each. The first nine tenths of the sentences are for training, the next twentieth for validation, the last for tests.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.protocols import Canvas
from unmask.tasks.kinds import shuffle_rows
from unmask.tasks.pads import Pads, lay_pads
from unmask_studies.text.passages import ALPHABET, MASK, OTHER, SPLITS

END = 2
SHORTEST = 8
"""Characters of a sentence behind what is given."""


@dataclass(frozen=True)
class Sentences:
    """Sentences of the text in ``file``: ``given`` characters, and a region of ``length`` for the rest, its end and ``pads``."""

    file: str
    given: int = 8
    length: int = 48
    pads: Pads = "end"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.given < 1 or self.length <= SHORTEST:
            raise ValueError(f"expected given >= 1 and length > {SHORTEST}, got {self.given} and {self.length}")

    @property
    def width(self) -> int:
        return self.given + self.length

    @cached_property
    def texts(self) -> list[str]:
        """Sentences that fit, in the order of the file."""
        try:
            text = Path(self.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"expected a text file in UTF-8 at {self.file}, got: {error}") from error
        found = (part.strip() for part in re.split(r"(?<=[.!?])\s+|\n", text))
        return [part for part in found if self.given + SHORTEST <= len(part) < self.width]

    @cached_property
    def tokens(self) -> Int[Tensor, "n L"]:
        """The sentences as tokens, padded with end tokens."""
        train = self.texts[: int(SPLITS["train"][1] * len(self.texts))]
        known = Counter("".join(train)).most_common(ALPHABET - 3)
        ids = {character: number for number, (character, _) in enumerate(known, END + 1)}
        rows = torch.full((len(self.texts), self.width), END)
        for row, text in zip(rows, self.texts, strict=True):
            row[: len(text)] = torch.tensor([ids.get(character, OTHER) for character in text])
        return rows

    def part(self, split: str) -> Int[Tensor, "n L"]:
        low, high = (int(share * len(self.texts)) for share in SPLITS[split])
        if high == low:
            raise ValueError(f"{self.file} has {len(self.texts)} sentences that fit, none of them for the {split} part")
        return self.tokens[low:high]

    def __call__(self, step: int, batch: int) -> Canvas:
        """Sentences of the training part, each once per epoch."""
        part = self.part("train")
        return self._canvas(part[shuffle_rows(self.seed, step, batch, len(part))])

    def held_out(self, split: str, count: int) -> Canvas:
        """``count`` sentences of another part, evenly spread over it."""
        part = self.part(split)
        if count > len(part):
            raise ValueError(f"the {split} part of {self.file} has {len(part)} sentences, not {count}: lower the count")
        return self._canvas(part[torch.arange(count) * (len(part) // count)])

    def _canvas(self, target: Int[Tensor, "B L"]) -> Canvas:
        place = torch.arange(self.width)
        region = (place >= self.given).expand_as(target)
        answer = region & (place <= characters_of(target)[:, None])  # the first end token belongs to it
        return lay_pads(Canvas(target.masked_fill(region, MASK), target, region), answer, self.pads)


def characters_of(target: Int[Tensor, "B L"]) -> Int[Tensor, "B"]:
    """How many characters come before the first end token."""
    return (target != END).sum(1)
