"""A Python function from traced examples of what it does, scored by running it: a small stand-in for program synthesis.

::

    3,5>06>11;0,2>00>02;4,1>08>09;2,2>04>06;  prompt: f(3, 5) is 6 in between and 11 in the end, …
    def f(a,b):c=a*2;return c+b               answer: one of several programs that do the same

The grammar is ``c=X∘Y;return c∘Z`` with X a or b, Y and Z a, b or a constant, ∘ one of + − *. A program is right if it agrees with
the hidden one on the examples and on inputs that no example shows; which program it is does not matter, nor what it has in between.
The split goes by the function: no function of the test split is ever trained on, whatever its examples and its spelling.
"""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

from unmask.sandbox import Limits, run_python
from unmask.tasks.written import Problem, Written

HEAD = "def f(a,b):"
LARGEST = 9
"""Inputs go from 0 to this, constants from 1."""
SIGNS = "+-*"
MOST_EXAMPLES = 4
SHOWN = range(100)
"""The numbers that examples may show."""
GRID = tuple((a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1))
"""All inputs. A grammar of second degree is told apart by far fewer."""
OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
LONGEST = 64
"""Characters of a program that is run at all."""
LIMITS = Limits(seconds=2.0, memory=2**28)


@dataclass(frozen=True)
class Code(Written):
    """Functions with constants up to ``constants``, each shown by ``examples`` inputs and outputs."""

    name: ClassVar[str] = "code"
    prompt_width: ClassVar[int] = 10 * MOST_EXAMPLES
    lengths: ClassVar[tuple[int, ...]] = (16, 24, 32)

    kind: Literal["code"] = "code"
    examples: int = MOST_EXAMPLES
    constants: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.examples <= MOST_EXAMPLES:
            raise ValueError(f"examples must be from 1 to {MOST_EXAMPLES}, got {self.examples}")
        if not 1 <= self.constants <= LARGEST:
            raise ValueError(f"constants must be from 1 to {LARGEST}, got {self.constants}")

    def problem(self, index: int) -> Problem:
        rng = random.Random(f"code {self.seed} {index}")
        operands = ["a", "b", *map(str, range(1, self.constants + 1))]
        while True:
            first = f"{rng.choice('ab')}{rng.choice(SIGNS)}{rng.choice(operands)}"
            program = f"{HEAD}c={first};return c{rng.choice(SIGNS)}{rng.choice(operands)}"
            between, values = outputs(f"{HEAD}return {first}", GRID), outputs(program, GRID)
            assert between is not None and values is not None
            small = [
                i
                for i, pair in enumerate(zip(between, values, strict=True))
                if min(pair) in SHOWN and max(pair) in SHOWN
            ]
            told = len(set(between)) > 1 and len(set(values)) > 1  # a step that depends on nothing says nothing
            if told and len(small) >= self.examples:
                break
        shown = rng.sample(small, self.examples)
        prompt = "".join(f"{GRID[i][0]},{GRID[i][1]}>{between[i]:02}>{values[i]:02};" for i in shown)
        return Problem(prompt, program, _stratum(values), " ".join(map(str, values)))

    @staticmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """Right: the function of the problem, on every input. The share is that of the inputs on which they agree.

        A program beyond the interpreter's means (``a/1``, ``a**2``) is run in the sandbox, and right or wrong as a whole.
        """
        expected, got = outputs(problem.answer, GRID), outputs(text, GRID)
        assert expected is not None, f"expected an answer of the grammar, got {problem.answer!r}"
        if got is None:
            right = is_function(text) and runs_right(text, GRID, expected)
            return right, float(right)
        agreed = sum(ours == theirs for ours, theirs in zip(got, expected, strict=True))
        return agreed == len(GRID), agreed / len(GRID)


def _stratum(values: Sequence[int]) -> str:
    """The degree of the function, by its second differences along the grid: what a, b and constants are multiplied with."""
    at = dict(zip(GRID, values, strict=True))
    bends = (
        at[2, 0] - 2 * at[1, 0] + at[0, 0],
        at[0, 2] - 2 * at[0, 1] + at[0, 0],
        at[1, 1] - at[1, 0] - at[0, 1] + at[0, 0],
    )
    cubic = at[2, 1] - 2 * at[1, 1] + at[0, 1] - bends[0] or at[1, 2] - 2 * at[1, 1] + at[1, 0] - bends[1]
    thirds = at[3, 0] - 3 * at[2, 0] + 3 * at[1, 0] - at[0, 0] or at[0, 3] - 3 * at[0, 2] + 3 * at[0, 1] - at[0, 0]
    return "cubic" if cubic or thirds else "quadratic" if any(bends) else "linear"


def is_function(program: str) -> bool:
    """Whether a text is one definition of f in Python, whatever it does."""
    if not program.startswith(HEAD) or len(program) > LONGEST:
        return False
    try:
        return [type(node) for node in ast.parse(program).body] == [ast.FunctionDef]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


@lru_cache(maxsize=8192)
def runs_right(program: str, inputs: tuple[tuple[int, int], ...], expected: tuple[int, ...]) -> bool:
    """Run a program that nobody trusts; right if it gives what is expected for every input, within the limits."""
    tests = f"for (a, b), value in zip({inputs!r}, {expected!r}): assert f(a, b) == value"
    return run_python(program, tests, LIMITS).passed


@lru_cache(maxsize=8192)
def outputs(program: str, inputs: tuple[tuple[int, int], ...]) -> tuple[int, ...] | None:
    """f(a, b) for every input; None where there is more in the program than whole numbers, names, + − *, assignments and a return.

    The program is interpreted here, not executed: thousands of answers are graded in the time of one process.
    """
    if not is_function(program):
        return None
    function = ast.parse(program).body[0]
    assert isinstance(function, ast.FunctionDef)
    try:
        return tuple(_returned(function.body, {"a": a, "b": b}) for a, b in inputs)
    except (ValueError, NameError, RecursionError):
        return None


def _returned(body: Sequence[ast.stmt], names: dict[str, int]) -> int:
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                names[name] = _value(value, names)
            case ast.Return(value=ast.expr() as value):
                return _value(value, names)
            case _:
                raise ValueError(f"expected an assignment or a return, got {ast.unparse(statement)!r}")
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
