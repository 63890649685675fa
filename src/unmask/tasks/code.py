"""Reconstruct a Python function from one execution trace, whose numbers are given relative to each other; scored by running it.

::

    a=2;b=d+2;c=a+3;d=c-3;e=b-1;     prompt: in the run f(2) d was 3 less than c, c was 3 more than a …

    def f(a):                        answer: the function, every line from the variable before it
     b=a+2#四
     c=b+1#⑤
     d=c-3#2
     e=d+1#Ⅲ
     return b,c,d,e

The prompt relates the numbers to each other in any order (:mod:`~unmask.tasks.linked_numbers`); a line of code computes its
variable from the previous one, so both must be known to write it. A comment holds the value of its line in that run, in any of four
notations: not graded, but the only place to write down a number that other lines need. A program is right if it agrees with the
hidden one on every input from 0 to 9.
"""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal

from unmask.tasks.expressions import evaluate_expression, parse_untrusted
from unmask.tasks.linked_numbers import LARGEST, Link, choose_source, count_steps, draw_link, write_number
from unmask.tasks.sandbox.sandbox import Limits, run_python
from unmask.tasks.text_problems import Problem, TextProblemKind

INPUT, NAMES = "a", "bcde"
"""The parameter; the variable of the first line, the second, …"""
HEAD, TAIL = "def f(a):", "\n return b,c,d,e"
INPUTS = tuple(range(10))
"""Programs are compared on these."""
OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
LONGEST = 96
"""Characters of a program; a longer one is wrong without being run."""
LIMITS = Limits(seconds=2.0, memory=2**28)

Values = tuple[int, ...]


@dataclass(frozen=True)
class Code(TextProblemKind):
    """Functions of four lines."""

    prompt_width: ClassVar[int] = 4 + 6 * len(NAMES)
    lengths: ClassVar[tuple[int, ...]] = (40, 48, 56)

    kind: Literal["code"] = "code"

    def problem(self, index: int) -> Problem:
        rng = random.Random(f"code {self.seed} {index}")
        values: dict[str, int] = {}
        links: dict[str, Link] = {}
        while not values or any(values[name] == values[after] for name, after in pairwise(INPUT + NAMES)):
            values = {INPUT: rng.randint(1, LARGEST)}
            for name in rng.sample(NAMES, len(NAMES)):
                source = choose_source(rng, list(values))
                links[name] = draw_link(rng, source, values[source])
                values[name] = links[name].value
        prompt, program = f"{INPUT}={values[INPUT]};", HEAD
        for before, name in pairwise(INPUT + NAMES):
            given = links[name]
            line = Link(before, values[before], values[name])
            prompt += f"{name}={given.source}{given.sign}{given.amount};"
            program += f"\n {name}={before}{line.sign}{line.amount}#{write_number(rng, line.value)}"
        return Problem(prompt, program + TAIL, f"{count_steps(links)} steps", prompt)

    @staticmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """Right: the same outputs for every input. The share counts the returned numbers that are equal.

        A program that :func:`interpret` does not cover (``a/1``, ``a**2``) runs in the sandbox, and is right or wrong as a whole.
        """
        expected, got = interpret(problem.answer), interpret(text)
        assert expected is not None, f"expected an answer of the grammar, got {problem.answer!r}"
        if got is None:
            right = is_function(text) and passes_in_sandbox(text, expected)
            return right, float(right)
        if got == expected:
            return True, 1.0
        columns = [zip(ours, theirs, strict=False) for ours, theirs in zip(got, expected, strict=True)]
        width = max(len(row) for row in (*got, *expected))
        return False, sum(ours == theirs for column in columns for ours, theirs in column) / (width * len(INPUTS))


def is_function(program: str) -> bool:
    """Whether a text is exactly one Python definition of f."""
    if not program.startswith(HEAD) or len(program) > LONGEST:
        return False
    try:
        return [type(node) for node in parse_untrusted(program).body] == [ast.FunctionDef]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


@lru_cache(maxsize=8192)
def passes_in_sandbox(program: str, expected: tuple[Values, ...]) -> bool:
    """Run an untrusted program: whether it returns the expected values for every input, within the limits."""
    tests = f"for a, values in zip({INPUTS!r}, {expected!r}): assert f(a) == values"
    return run_python(program, tests, LIMITS).passed


@lru_cache(maxsize=8192)
def interpret(program: str) -> tuple[Values, ...] | None:
    """f(a) for every input; None for programs with more than whole numbers, names, + − *, assignments and a return.

    Interpreted, not executed: thousands of answers are graded in the time of one sandbox process.
    """
    if not is_function(program):
        return None
    function = parse_untrusted(program).body[0]
    assert isinstance(function, ast.FunctionDef)
    try:
        return tuple(_run_body(function.body, {INPUT: a}) for a in INPUTS)
    except (ValueError, RecursionError):
        return None


def _run_body(body: Sequence[ast.stmt], names: dict[str, int]) -> Values:
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                names[name] = _evaluate(value, names)
            case ast.Return(value=ast.Tuple(elts=parts)):
                return tuple(_evaluate(part, names) for part in parts)
            case _:
                raise ValueError(
                    f"expected an assignment or the return of several numbers, got {ast.unparse(statement)!r}"
                )
    raise ValueError("the function returns nothing")


def _evaluate(node: ast.expr, names: dict[str, int]) -> int:
    return evaluate_expression(node, OPERATORS, int, names)
