"""Sums that refer to each other out of order, with written working: a small stand-in for multi-step word problems.

A problem is a line for each of its quantities, which are called a, b, c … after their lines, and asks for the first::

    b+?=4;c-3=?;d+?=5;4-1=?;       prompt: a is b plus something, and that is 4; b is c less 3; …
    2+2=4;5-3=2;3+2=5;4-1=3;4      working, line by line with all numbers filled in, and the answer

Every line takes one small number to another (:mod:`unmask.tasks.linked`). Its first number is the quantity that it names, the
second may be missing, and so may the result, as long as all follow from the rest. Some follow forwards and some backwards, none
from left to right alone: the first line always refers to a later one. Working has the places of the prompt, so copying is easy.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar, Literal

from unmask.tasks.linked import LARGEST, Link, form, least_told, linked, rounds, said, source_of
from unmask.tasks.written import Problem, Written

NAMES = "abcde"
"""Of the first line, the second, …"""
LEAST_LINES, MOST_LINES = 3, len(NAMES)


@dataclass(frozen=True)
class Arithmetic(Written):
    """Problems of ``least`` to ``most`` lines, all numbers of lines alike."""

    name: ClassVar[str] = "arithmetic"
    prompt_width: ClassVar[int] = 6 * MOST_LINES
    lengths: ClassVar[tuple[int, ...]] = (32, 40, 48)

    kind: Literal["arithmetic"] = "arithmetic"
    least: int = LEAST_LINES
    most: int = MOST_LINES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEAST_LINES <= self.least <= self.most <= MOST_LINES:
            raise ValueError(
                f"expected {LEAST_LINES} <= least <= most <= {MOST_LINES} lines, got least = {self.least}, most = {self.most}"
            )

    def problem(self, index: int) -> Problem:
        rng = random.Random(f"arithmetic {self.seed} {index}")
        names = NAMES[: rng.randint(self.least, self.most)]
        links: dict[str, Link] = {}
        for name in [*rng.sample(names[1:], len(names) - 1), names[0]]:  # what is asked for comes last
            source = source_of(rng, list(links)) if links else None
            links[name] = linked(rng, source, links[source].value if source else rng.randint(1, LARGEST))
        told = least_told(rng, links)
        prompt, working = "", ""
        for name in names:
            link = links[name]
            amount, value = said(name, link, told)
            prompt += f"{link.source or link.start}{link.sign}{amount}={value};"
            working += f"{link.start}{link.sign}{link.amount}={link.value};"
        return Problem(
            prompt, f"{working}{links[names[0]].value}", f"{rounds(links, told)} rounds", form(links, told, names[0])
        )

    @staticmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """Right: every line of the working and the answer. The share counts the answer as a line."""
        expected, got = (whole.split(";") for whole in (problem.answer, text))
        right = sum(theirs == ours for theirs, ours in zip(got, expected, strict=False))
        return got == expected, right / max(len(expected), len(got))
