"""A Python function from one run of it, whose numbers are told relative to each other, scored by running it.

::

    a=2;b=d+2;c=a+3;d=c-3;e=b-1;     prompt: in the run f(2) d was 3 less than c, c was 3 more than a …

    def f(a):                        answer: the function, every line from the variable before it
     b=a+2#四
     c=b+1#⑤
     d=c-3#2
     e=d+1#Ⅲ
     return b,c,d,e

The prompt relates the numbers to each other in any order (:mod:`unmask.tasks.linked_numbers`); a line of code takes its variable from the
one before, so both of them must be known to write it. The comments say what the line gave in that run, in any of four notations.
They are notes: not graded, but the only place to put down a number that other lines need. A program is right if it does what the
hidden one does for every input from 0 to 9.
"""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, Literal

from unmask.tasks.linked_numbers import LARGEST, Link, choose_source, count_steps, draw_link, write_number
from unmask.tasks.sandbox.sandbox import Limits, run_python
from unmask.tasks.text_problems import Problem, TextProblemKind

INPUT, NAMES = "a", "bcde"
"""The parameter; the variable of the first line, the second, …"""
HEAD, TAIL = "def f(a):", "\n return b,c,d,e"
INPUTS = tuple(range(10))
"""What programs are compared on."""
OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
LONGEST = 96
"""Characters of a program that is run at all."""
LIMITS = Limits(seconds=2.0, memory=2**28)

Values = tuple[int, ...]


@dataclass(frozen=True)
class Code(TextProblemKind):
    """Functions of four lines."""

    name: ClassVar[str] = "code"
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
            asked = links[name]
            line = Link(before, values[before], values[name])
            prompt += f"{name}={asked.source}{asked.sign}{asked.amount};"
            program += f"\n {name}={before}{line.sign}{line.amount}#{write_number(rng, line.value)}"
        return Problem(prompt, program + TAIL, f"{count_steps(links)} steps", prompt)

    @staticmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """Right: the function of the problem, for every input. The share is that of the returned numbers that are the same.

        A program beyond the interpreter's means (``a/1``, ``a**2``) is run in the sandbox, and right or wrong as a whole.
        """
        expected, got = outputs(problem.answer), outputs(text)
        assert expected is not None, f"expected an answer of the grammar, got {problem.answer!r}"
        if got is None:
            right = is_function(text) and runs_right(text, expected)
            return right, float(right)
        if got == expected:
            return True, 1.0
        pairs = [zip(ours, theirs, strict=False) for ours, theirs in zip(got, expected, strict=True)]
        width = max(len(row) for row in (*got, *expected))
        return False, sum(ours == theirs for pair in pairs for ours, theirs in pair) / (width * len(INPUTS))


def is_function(program: str) -> bool:
    """Whether a text is one definition of f in Python, whatever it does."""
    if not program.startswith(HEAD) or len(program) > LONGEST:
        return False
    try:
        return [type(node) for node in ast.parse(program).body] == [ast.FunctionDef]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


@lru_cache(maxsize=8192)
def runs_right(program: str, expected: tuple[Values, ...]) -> bool:
    """Run a program that nobody trusts; right if it gives what is expected for every input, within the limits."""
    tests = f"for a, values in zip({INPUTS!r}, {expected!r}): assert f(a) == values"
    return run_python(program, tests, LIMITS).passed


@lru_cache(maxsize=8192)
def outputs(program: str) -> tuple[Values, ...] | None:
    """f(a) for every input; None where there is more in the program than whole numbers, names, + − *, assignments and a return.

    The program is interpreted here, not executed: thousands of answers are graded in the time of one process.
    """
    if not is_function(program):
        return None
    function = ast.parse(program).body[0]
    assert isinstance(function, ast.FunctionDef)
    try:
        return tuple(_returned(function.body, {INPUT: a}) for a in INPUTS)
    except (ValueError, NameError, RecursionError):
        return None


def _returned(body: Sequence[ast.stmt], names: dict[str, int]) -> Values:
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                names[name] = _value(value, names)
            case ast.Return(value=ast.Tuple(elts=parts)):
                return tuple(_value(part, names) for part in parts)
            case _:
                raise ValueError(
                    f"expected an assignment or the return of several numbers, got {ast.unparse(statement)!r}"
                )
    raise ValueError("the function returns nothing")


def _value(node: ast.expr, names: dict[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            if name not in names:
                raise NameError(name)
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left, names), _value(right, names))
    raise ValueError(f"expected whole numbers, names and + - *, got {ast.unparse(node)!r}")
