"""Passages of a plain text as canvases of characters: the beginning is given, the rest is hidden.

Token 0 is the mask, 1 any character that is none of the ``ALPHABET`` − 2 most frequent ones, the others are one character each.
The first nine tenths of the text are for training, the next twentieth for validation, the last for tests. Open text has no
right answer: the measure is the likelihood of the passage along the order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.draws import counter_uniform
from unmask.decoding.protocols import Canvas

MASK, OTHER = 0, 1
ALPHABET = 96
SPLITS = {"train": (0.0, 0.9), "validation": (0.9, 0.95), "test": (0.95, 1.0)}


@dataclass(frozen=True)
class Passages:
    """Passages of ``given`` and ``length`` hidden characters of the text in ``file``."""

    file: str
    given: int = 16
    length: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        if self.given < 0 or self.length < 1:
            raise ValueError(f"expected given >= 0 and length >= 1, got {self.given} and {self.length}")

    @property
    def width(self) -> int:
        return self.given + self.length

    @cached_property
    def characters(self) -> str:
        """The whole file."""
        try:
            return Path(self.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"expected a text file in UTF-8 at {self.file}, got: {error}") from error

    @cached_property
    def known(self) -> str:
        """The characters that have a token of their own, the most frequent first; the first one is token 2."""
        training = self.characters[: int(SPLITS["train"][1] * len(self.characters))]
        return "".join(character for character, _ in Counter(training).most_common(ALPHABET - 2))

    @cached_property
    def text(self) -> Int[Tensor, "n"]:
        """The whole file as tokens."""
        ids = {character: number for number, character in enumerate(self.known, OTHER + 1)}
        return torch.tensor([ids.get(character, OTHER) for character in self.characters])

    def spell(self, token: int) -> str:
        """The character of a token: an underscore for the mask, a lozenge for any rare character."""
        known = token - OTHER - 1
        return self.known[known] if 0 <= known < len(self.known) else "_" if token == MASK else "◊"

    def part(self, split: str) -> Int[Tensor, "n"]:
        low, high = (int(share * len(self.text)) for share in SPLITS[split])
        if high - low < self.width:
            raise ValueError(
                f"{self.file} is too short: its {split} part has {high - low} characters, a passage has {self.width}"
            )
        return self.text[low:high]

    def __call__(self, step: int, batch: int) -> Canvas:
        """Passages of the training part that begin anywhere: a function of the seed and the step."""
        part = self.part("train")
        start = (counter_uniform(self.seed, step, torch.arange(batch)) * (len(part) - self.width + 1)).long()
        return self._canvas(part[start[:, None] + torch.arange(self.width)])

    def held_out(self, split: str, count: int) -> Canvas:
        """``count`` passages of another part that do not overlap, evenly spread over it."""
        part = self.part(split)
        most = len(part) // self.width
        if count > most:
            raise ValueError(f"the {split} part of {self.file} has {most} passages, not {count}: lower the count")
        start = torch.arange(count) * (len(part) // count)
        return self._canvas(part[start[:, None] + torch.arange(self.width)])

    def _canvas(self, target: Int[Tensor, "B L"]) -> Canvas:
        region = (torch.arange(self.width) >= self.given).expand_as(target)
        return Canvas(target.masked_fill(region, MASK), target, region)
