"""Evaluate arithmetic from a syntax tree, without running code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


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
