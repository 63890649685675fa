"""Read Python that others wrote: its syntax tree, and arithmetic evaluated from one, without running code."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def parse_untrusted(text: str, mode: str = "exec") -> Any:
    """``ast.parse`` without Python's warnings, which are about a text that is not ours and would fill the terminal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, mode=mode)


def evaluate_expression(
    node: ast.expr, operators: Mapping[type, Callable[..., T]], number: Callable[[int], T], names: Mapping[str, T]
) -> T:
    """The value of whole numbers, ``names`` and the unary and binary ``operators`` (by their class in :mod:`ast`).

    ``number`` converts a literal. Anything else in the expression is a ValueError.
    """

    def value(node: Any) -> T:
        match node:
            case ast.Constant(value=int() as literal) if not isinstance(literal, bool):
                return number(literal)
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.UnaryOp(op=op, operand=operand) if type(op) in operators:
                return operators[type(op)](value(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in operators:
                return operators[type(op)](value(left), value(right))
        raise ValueError(f"expected whole numbers, known names and operators, got {type(node).__name__}")

    return value(node)
