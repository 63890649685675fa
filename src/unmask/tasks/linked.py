"""Small numbers that are each another one plus or minus something, of which only so much is told that the rest follows.

A link says how a number comes from its source: by which sign and amount. Of every link the amount, of every number the value may be
told or left out; what is left out follows step by step, since of source, amount and value any two give the third. Numbers go from 1
to ``LARGEST`` only: one step is then easy even for a small model, and what is hard is the way through many of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Set
from dataclasses import dataclass

LARGEST = 5

Told = Set[tuple[str, str]]
"""(name, "amount") and (name, "value"), for what a problem tells."""


@dataclass(frozen=True)
class Link:
    """``value`` is ``start`` plus or minus something; ``start`` is the value of ``source``, or is told where there is none."""

    source: str | None
    start: int
    value: int

    @property
    def sign(self) -> str:
        return "+" if self.value > self.start else "-"

    @property
    def amount(self) -> int:
        return abs(self.value - self.start)


def linked(rng: random.Random, source: str | None, start: int) -> Link:
    """A link to another number than ``start``."""
    return Link(source, start, rng.choice([value for value in range(1, LARGEST + 1) if value != start]))


def source_of(rng: random.Random, names: list[str]) -> str:
    """One of the numbers so far, as a rule the latest, so that ways are long."""
    return names[-1] if rng.random() < 0.6 else rng.choice(names)


def least_told(rng: random.Random, links: Mapping[str, Link]) -> Told:
    """Leave out whatever the rest still determines, in a random order: nothing that stays could go."""
    told = {(name, what) for name in links for what in ("amount", "value")}
    for item in rng.sample(sorted(told), len(told)):
        if rounds(links, told - {item}) is not None:
            told.remove(item)
    return told


def rounds(links: Mapping[str, Link], told: Told) -> int | None:
    """How often one must go over all links, each time concluding what one link by itself gives, to know everything; None: never."""
    amounts, values = ({name for name, what in told if what == kind} for kind in ("amount", "value"))
    count = 0
    while len(amounts) + len(values) < 2 * len(links):
        more: set[str] = set()
        found: set[str] = set()
        for name, link in links.items():
            begun = link.source not in links or link.source in values
            if begun and name in values:
                more.add(name)
            if begun and name in amounts:
                found.add(name)
            if name in amounts and name in values and link.source is not None and link.source in links:
                found.add(link.source)
        if more <= amounts and found <= values:
            return None
        amounts |= more
        values |= found
        count += 1
    return count


def said(name: str, link: Link, told: Told) -> tuple[str, str]:
    """Amount and value as a problem has them: ``?`` for what it leaves out."""
    amount = str(link.amount) if (name, "amount") in told else "?"
    value = str(link.value) if (name, "value") in told else "?"
    return amount, value


def form(links: Mapping[str, Link], told: Told, asked: str = "") -> str:
    """The same for problems that differ in names and in the order of their lines alone."""

    def whole(name: str) -> str:
        amount, value = said(name, links[name], told)
        after = sorted(whole(other) for other in links if links[other].source == name)
        return f"{links[name].sign}{amount}={value}{'!' * (name == asked)}({','.join(after)})"

    roots = [name for name, link in links.items() if link.source not in links]
    return " ".join(sorted(f"{links[name].start}{whole(name)}" for name in roots))
