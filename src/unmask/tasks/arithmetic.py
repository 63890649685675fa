"""Sums that refer to each other out of order, with written working: a small model of multi-step word problems.

A problem has a line for each of its quantities a, b, c … and asks for all of them::

    b+2;c-3;d+2;4-1;                   prompt: a is b plus 2; b is c less 3; …
    二+2=④;5-Ⅲ=2;三+②=Ⅴ;4-一=3;4253    working, line by line with all numbers filled in, and the answers

Every line maps one small number to another (:mod:`~unmask.tasks.linked_numbers`). Working may write a number in any of four
notations, as prose has many words for one thing; the answers are digits. A confidence order therefore prefers the answers to the
working that they follow from.

In ``arithmetic`` lines refer to each other in any order, and the first one always to a later one: left to right has to guess. In
``ordered`` they refer to earlier ones only, and left to right never has to guess.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from unmask.tasks.linked_numbers import (
    LARGEST,
    Link,
    canonical_form,
    choose_source,
    count_steps,
    draw_link,
    use_digits,
    write_number,
)
from unmask.tasks.text_problems import Problem, TextProblemKind

NAMES = "abcde"
"""Of the first line, the second line, …"""
LEAST_LINES, MOST_LINES = 3, len(NAMES)


@dataclass(frozen=True)
class Sums(TextProblemKind):
    """Problems of ``least`` to ``most`` lines, uniformly. Held-out splits have more long ones, since short ones soon repeat.

    Attributes:
        least: The fewest lines of a problem.
        most: The most lines of a problem.
    """

    prompt_width: ClassVar[int] = 4 * MOST_LINES
    lengths: ClassVar[tuple[int, ...]] = (40, 48, 56)
    options: ClassVar[Mapping[str, str]] = {
        **TextProblemKind.options,
        "least": "The fewest lines of a problem.",
        "most": "The most lines.",
    }

    least: int = LEAST_LINES
    most: int = MOST_LINES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEAST_LINES <= self.least <= self.most <= MOST_LINES:
            raise ValueError(
                f"expected {LEAST_LINES} <= least <= most <= {MOST_LINES} lines, got least = {self.least}, most = {self.most}"
            )

    @staticmethod
    @abstractmethod
    def dependency_order(rng: random.Random, names: str) -> list[str]:
        """The names of the lines in an order in which each refers to earlier ones only."""

    def problem(self, index: int) -> Problem:
        rng = random.Random(f"{self.kind} {self.seed} {index}")
        names = NAMES[: rng.randint(self.least, self.most)]
        links: dict[str, Link] = {}
        for name in self.dependency_order(rng, names):
            source = choose_source(rng, list(links)) if links else None
            links[name] = draw_link(rng, source, links[source].value if source else rng.randint(1, LARGEST))
        prompt, working, answers = "", "", ""
        for name in names:
            link = links[name]
            start, amount, value = (write_number(rng, number) for number in (link.start, link.amount, link.value))
            prompt += f"{link.source or link.start}{link.sign}{link.amount};"
            working += f"{start}{link.sign}{amount}={value};"
            answers += str(link.value)
        return Problem(prompt, working + answers, f"{count_steps(links)} steps", canonical_form(links))

    @staticmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """Right: every line of the working, in any notation, and the answers. The share counts the answers as one line."""
        expected, got = (_normalize_lines(whole) for whole in (problem.answer, text))
        right = sum(theirs == ours for theirs, ours in zip(got, expected, strict=False))
        return got == expected, right / max(len(expected), len(got))


@dataclass(frozen=True)
class Arithmetic(Sums):
    """Lines refer to each other in any order, and the first to a later one."""

    kind: Literal["arithmetic"] = "arithmetic"

    @staticmethod
    def dependency_order(rng: random.Random, names: str) -> list[str]:
        return [*rng.sample(names[1:], len(names) - 1), names[0]]


@dataclass(frozen=True)
class Ordered(Sums):
    """Lines refer to earlier ones only."""

    kind: Literal["ordered"] = "ordered"

    @staticmethod
    def dependency_order(rng: random.Random, names: str) -> list[str]:
        return list(names)


def _normalize_lines(text: str) -> list[str]:
    """The lines of an answer in digits, and its final answers unchanged."""
    *working, answers = text.split(";")
    return [*map(use_digits, working), answers]
