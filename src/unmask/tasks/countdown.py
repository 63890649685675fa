"""Countdown: three numbers and a target; combine the numbers, each exactly once, with + − * / into the target.

::

    015,044,079?050              prompt
    044-015=029,079-029=050      answer: two equations, the second of which uses the result of the first

Numbers are written with at least three digits, so that nearly every digit has a fixed column.

An answer is right if its equations are correct, use each given number and the result of every equation but the last exactly once,
and the last one gives the target. Any solution counts. One expression such as ``79-(44-15)`` is graded too. Generated answers use
whole numbers from 1 on.

Published files are JSON lines of two formats, which are detected: ``{"input": "30,100,93", "output": "23"}`` (d1: the output is the
target) and ``{"input": "15,44,79,50", "output": "44-15=29,79-29=50"}`` (PC-Sampler: the last number of the input is the target).

Every problem of these two files, whatever its notation, belongs to the test split of the generated ones: none is trained on or
validated with. ``countdown_published.json`` has the digest of each ``form``, the sorted numbers and the target.
"""

from __future__ import annotations

import ast
import itertools
import json
import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal

from unmask.runs.jsonable import read_json_lines
from unmask.tasks.expressions import evaluate_expression, parse_untrusted
from unmask.tasks.text_problems import Problem, TextProblemKind, TextProblemTask, digest

NUMBERS = 3
LARGEST = 100
"""Of the numbers and the target; intermediate results may be larger."""
DIGITS = 3
"""The least number of digits of a number."""
OPERATIONS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
OPERATORS = dict(zip((ast.Add, ast.Sub, ast.Mult, ast.Div), OPERATIONS.values(), strict=True))
EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
LEADING_ZEROS = re.compile(r"(?<!\d)0+(?=\d)")
LONGEST = 64
"""Characters of an expression; a longer one is wrong."""


@dataclass(frozen=True)
class Countdown(TextProblemKind):
    """Problems that have a solution, with numbers and a target from 1 to 100."""

    prompt_width: ClassVar[int] = 15
    lengths: ClassVar[tuple[int, ...]] = (28,)

    kind: Literal["countdown"] = "countdown"

    def problem(self, index: int) -> Problem:
        rng = random.Random(f"countdown {self.seed} {index}")
        while True:
            numbers = [rng.randint(1, LARGEST) for _ in range(NUMBERS)]
            left, value, equations = list(numbers), 0, []
            while len(left) > 1:
                pair = [left.pop(rng.randrange(len(left))) for _ in range(2)]
                steps = list(_steps(*pair))
                sign, first, second, value = rng.choice(steps)
                equations.append(f"{first}{sign}{second}={value}")
                left.append(value)
            if value <= LARGEST:
                return _problem(numbers, value, ",".join(equations))

    @classmethod
    def read(cls, file: Path, limit: int) -> TextProblemTask:
        return read_problems(file, limit)

    def split_for(self, problem: Problem) -> str:
        """The split of a problem; published ones are in the test split."""
        return "test" if digest(problem.form).hex() in load_published_digests() else super().split_for(problem)

    @staticmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """The share counts the equations before the first wrong one."""
        numbers, target = _parse_prompt(problem.prompt)
        if "=" not in text:
            right = _expression(text, numbers) == target
            return right, float(right)
        given, value, done = Counter(numbers), None, 0
        equations = text.split(",")
        for equation in equations:
            value = _apply_equation(equation, given)
            if value is None:
                break
            done += 1
        right = value == target and given == Counter([target]) and done == len(equations)
        return right, 1.0 if right else min(done, NUMBERS - 2) / (NUMBERS - 1)


@cache
def load_published_digests() -> frozenset[str]:
    """The digests of the problems in d1's and PC-Sampler's files."""
    return frozenset(json.loads((files("unmask.tasks") / "countdown_published.json").read_text()))


def read_problems(path: str | Path, limit: int | None = None) -> TextProblemTask:
    """The problems of a published file, its first ``limit`` rows if given. A row without a solution is a ValueError."""
    path = Path(path)
    problems = [_check_problem(row, place) for place, row in itertools.islice(read_json_lines(path), limit)]
    if not problems:
        raise ValueError(f"expected at least one problem in {path}, found none")
    return TextProblemTask(Countdown(count=len(problems), split="test"), tuple(problems), path.name)


def _check_problem(row: Any, where: str) -> Problem:
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("input", "output")):
        raise ValueError(f'{where}: expected {{"input": "…", "output": "…"}} with two texts')
    numbers, output = row["input"].split(","), row["output"].replace(" ", "")
    equations = "=" in output
    numbers += [] if equations else [output]
    if len(numbers) != NUMBERS + 1 or not all(text.strip().isdecimal() for text in numbers):
        raise ValueError(f"{where}: expected {NUMBERS} whole numbers and a target, got {row['input']!r}, {output!r}")
    *given, target = (int(text) for text in numbers)
    if max(*given, target) > LARGEST or min(*given, target) < 1:
        raise ValueError(f"{where}: expected numbers up to {LARGEST}, from 1 on, got {row['input']!r}, {output!r}")
    answer = output if equations else solve(given, target)
    if answer is None:
        raise ValueError(f"{where}: {target} cannot be made of {row['input']} in whole numbers")
    problem = _problem(given, target, answer)
    if not Countdown.grade(problem, answer)[0]:
        raise ValueError(f"{where}: {output!r} does not make {target} of {given}")
    return problem


def solve(numbers: Sequence[int], target: int) -> str | None:
    """The first solution in whole numbers from 1 on, as equations; None if there is none."""
    if len(numbers) == 1:
        return "" if numbers[0] == target else None
    for i in range(len(numbers)):
        for j in range(i):
            rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
            for sign, first, second, value in _steps(numbers[j], numbers[i]):
                if (later := solve([*rest, value], target)) is not None:
                    return ",".join(filter(None, (f"{first}{sign}{second}={value}", later)))
    return None


def _steps(x: int, y: int) -> Iterator[tuple[str, int, int, int]]:
    """The ways to combine two numbers: sign, first, second and a result of at least 1."""
    high, low = max(x, y), min(x, y)
    yield "+", x, y, x + y
    yield "*", x, y, x * y
    if high > low:
        yield "-", high, low, high - low
    if high % low == 0:
        yield "/", high, low, high // low


def _problem(numbers: Sequence[int], target: int, answer: str) -> Problem:
    signs = "".join(sorted(set(re.findall(r"[-+*/]", answer))))
    stratum = "plus and minus" if set(signs) <= set("+-") else "times or divided"
    prompt = f"{','.join(map(str, numbers))}?{target}"
    return Problem(_pad_numbers(prompt), _pad_numbers(answer), stratum, f"{sorted(numbers)} {target}")


def _pad_numbers(text: str) -> str:
    """Pad short numbers with leading zeros."""
    return re.sub(r"\d+", lambda match: match[0].zfill(DIGITS), text)


def _parse_prompt(prompt: str) -> tuple[list[int], int]:
    numbers, target = prompt.split("?")
    return [int(text) for text in numbers.split(",")], int(target)


def _apply_equation(equation: str, given: Counter[int]) -> int | None:
    """The value of a correct equation between given numbers, which it replaces in ``given``; None if it is wrong."""
    match = EQUATION.fullmatch(equation)
    if match is None:
        return None
    first, second, value = (int(match[group]) for group in (1, 3, 4))
    used = Counter([first, second])
    if not used <= given or (match[2] == "/" and second == 0):
        return None
    if OPERATIONS[match[2]](Fraction(first), Fraction(second)) != value:
        return None
    given.subtract(used)
    given.update([value])
    for number in [number for number, count in given.items() if not count]:
        del given[number]
    return value


def _expression(text: str, numbers: Sequence[int]) -> Fraction | None:
    """The value of an expression that uses each number exactly once; None if it does not."""
    used: list[int] = []

    def use(number: int) -> Fraction:
        used.append(number)
        return Fraction(number)

    if len(text) > LONGEST:
        return None
    try:
        tree = parse_untrusted(LEADING_ZEROS.sub("", text), mode="eval").body
        result = evaluate_expression(tree, OPERATORS, use, {})
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return result if sorted(used) == sorted(numbers) else None
