"""Sums that refer to each other out of order, with written working: a small stand-in for multi-step word problems.

A problem defines ``k`` quantities, a line each and named by their lines, and asks for one of them::

    a=b*2;b=c+1;c=5-3;?a        prompt: a needs b, b needs c, which both stand later
    3*2=6;2+1=3;5-3=2;6         working, a line for each line of the prompt and in its order, and the answer

Every line is one operation on two numbers from 1 to 9 whose result is such a number too. A line of the working repeats the
operation with numbers in place of names, so its left side waits for other lines; once they are known it is determined. At least
one line of every problem refers to a later one, so writing from left to right needs thinking ahead.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from unmask.tasks.written import Problem, Written

OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
LARGEST = 9
MOST_STEPS = 4
NAMES = "abcd"
"""Of the first line, the second, …"""

Line = tuple[str, str, str]
"""Left operand, operation, right operand: a digit or a name each."""


@dataclass(frozen=True)
class Arithmetic(Written):
    """Problems of ``least`` to ``most`` steps, all numbers of steps alike."""

    name: ClassVar[str] = "arithmetic"
    prompt_width: ClassVar[int] = 6 * MOST_STEPS + 2
    lengths: ClassVar[tuple[int, ...]] = (32, 40, 48)

    kind: Literal["arithmetic"] = "arithmetic"
    least: int = 2
    most: int = MOST_STEPS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.least <= self.most <= MOST_STEPS:
            raise ValueError(
                f"expected 2 <= least <= most <= {MOST_STEPS} steps, got least = {self.least}, most = {self.most}"
            )

    def problem(self, index: int) -> Problem:
        rng = random.Random(f"arithmetic {self.seed} {index}")
        lines, asked = _lines(rng, rng.randint(self.least, self.most))
        prompt = "".join(f"{name}={''.join(line)};" for name, line in lines.items()) + f"?{asked}"
        return Problem(prompt, answer(prompt), f"{len(lines)} steps", _form(lines, asked))

    @staticmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """Right: every line of the working and the answer. The share counts the answer as a line."""
        expected, got = (whole.split(";") for whole in (answer(problem.prompt), text))
        right = sum(theirs == ours for theirs, ours in zip(got, expected, strict=False))
        return got == expected, right / max(len(expected), len(got))


def _lines(rng: random.Random, steps: int) -> tuple[dict[str, Line], str]:
    """Name → line in the order of the prompt, and the name that is asked for: the one that nothing else needs."""
    names = NAMES[:steps]
    values: dict[str, int] = {}
    lines: dict[str, Line] = {}
    for nth, name in enumerate(names):
        while name not in values:
            digits = [str(rng.randint(1, LARGEST)) for _ in range(2)]
            # The quantity just defined as a rule, so that chains are deep.
            first = names[nth - 1 if rng.random() < 0.7 else rng.randrange(nth)] if nth else digits[0]
            second = rng.choice(names[:nth]) if nth and rng.random() < 0.3 else digits[1]
            left, right = (first, second) if rng.random() < 0.5 else (second, first)
            sign = rng.choice(list(OPERATIONS))
            value = OPERATIONS[sign](*(values[x] if x in values else int(x) for x in (left, right)))
            if left != right and 1 <= value <= LARGEST:
                values[name], lines[name] = value, (left, sign, right)
    while True:
        place = dict(zip(names, rng.sample(names, steps), strict=True))
        placed = {place[name]: (place.get(a, a), sign, place.get(b, b)) for name, (a, sign, b) in lines.items()}
        if _refers_ahead(placed):
            return {name: placed[name] for name in names}, place[names[-1]]


def _refers_ahead(lines: dict[str, Line]) -> bool:
    return any(x in NAMES and x > name for name, line in lines.items() for x in line)


def _form(lines: dict[str, Line], asked: str) -> str:
    """What renaming quantities, reordering lines and swapping terms or factors leave the same: every line written out in full."""

    def whole(name: str) -> str:
        left, sign, right = lines[name]
        sides = [whole(x) if x in lines else x for x in (left, right)]
        return f"({sign.join(sides if sign == '-' else sorted(sides))})"

    return f"{whole(asked)} of {' '.join(sorted(whole(name) for name in lines))}"


def answer(prompt: str) -> str:
    """The working and the answer that a prompt asks for."""
    *definitions, asked = prompt.split(";")
    lines = {text[0]: (text[2], text[3], text[4]) for text in definitions}
    values: dict[str, int] = {}

    def value(x: str) -> int:
        if x not in lines:
            return int(x)
        if x not in values:
            left, sign, right = lines[x]
            values[x] = OPERATIONS[sign](value(left), value(right))
        return values[x]

    working = "".join(f"{value(left)}{sign}{value(right)}={value(x)};" for x, (left, sign, right) in lines.items())
    return f"{working}{value(asked[1])}"
