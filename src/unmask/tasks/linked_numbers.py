"""Small numbers, each another one plus or minus an amount, and the notations to write them in.

A link is the sign and the amount by which a number follows from its source. Numbers go from 1 to ``LARGEST`` only: one step is easy
even for a small model, and the difficulty is the chain of many steps.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from unmask.tasks.vocabulary import NUMERALS

LARGEST = len(NUMERALS[0])
_DIGITS = {ord(numeral): digit for row in NUMERALS for numeral, digit in zip(row, NUMERALS[0], strict=True)}


@dataclass(frozen=True)
class Link:
    """``value`` is ``start`` plus or minus an amount; ``start`` is the value of ``source``, or given where there is no source."""

    source: str | None
    start: int
    value: int

    @property
    def sign(self) -> str:
        return "+" if self.value > self.start else "-"

    @property
    def amount(self) -> int:
        return abs(self.value - self.start)


def draw_link(rng: random.Random, source: str | None, start: int) -> Link:
    """A link to another number than ``start``."""
    return Link(source, start, rng.choice([value for value in range(1, LARGEST + 1) if value != start]))


def choose_source(rng: random.Random, names: list[str]) -> str:
    """One of the numbers so far, mostly the latest, so that chains are long."""
    return names[-1] if rng.random() < 0.8 else rng.choice(names)


def count_steps(links: Mapping[str, Link]) -> int:
    """The length of the longest chain of links."""
    return max(_depth(links, name) for name in links)


def canonical_form(links: Mapping[str, Link]) -> str:
    """Equal for problems that differ only in names and in the order of their lines."""
    roots = [name for name, link in links.items() if link.source not in links]
    return " ".join(sorted(f"{links[name].start}{_whole(links, name)}" for name in roots))


def _depth(links: Mapping[str, Link], name: str | None) -> int:
    return 0 if name is None or name not in links else 1 + _depth(links, links[name].source)


def _whole(links: Mapping[str, Link], name: str) -> str:
    """A link and all links that follow from it."""
    after = sorted(_whole(links, other) for other in links if links[other].source == name)
    return f"{links[name].sign}{links[name].amount}({','.join(after)})"


def write_number(rng: random.Random, number: int) -> str:
    """A number in one of its notations, at random."""
    return rng.choice(NUMERALS)[number - 1]


def use_digits(text: str) -> str:
    """The text with all numbers in digits."""
    return text.translate(_DIGITS)
