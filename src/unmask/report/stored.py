"""JSON from outside, parsed and validated by pydantic. What does not fit is a ValueError of one line: place, expected, got."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

T = TypeVar("T")
STRICT = ConfigDict(extra="forbid")
EXPECTED = {
    "dataclass_type": "a JSON object",
    "dict_type": "a JSON object",
    "list_type": "a list",
    "tuple_type": "a list",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "text",
    "string_pattern_mismatch": "a whole number as the key",
    "too_short": "at least one item",
}
"""Types of pydantic's errors in the words of JSON."""


def parse(content: bytes) -> Any:
    """JSON as the standard has it: no NaN, no nesting beyond what the stack holds."""

    def refuse(word: str) -> float:
        raise ValueError(f"expected JSON, got the word {word}")

    try:
        return json.loads(content, parse_constant=refuse)
    except RecursionError:
        raise ValueError("expected JSON, got brackets nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("expected JSON in UTF-8, got other bytes") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON: {error}") from None


def validate(cls: type[T], value: Any, place: str = "") -> T:
    """``value``, as :func:`parse` gives it, as an instance of the dataclass ``cls``. Nothing is converted: "1" is not a number."""
    try:
        # From JSON and not from Python: only there strict validation accepts an object for a dataclass.
        return _adapter(cls).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        prefix = f"{place}, " if place else ""
        raise ValueError(prefix + _reason(error)) from None


def _reason(error: ValidationError) -> str:
    """The first mistake in a line."""
    first = error.errors(include_url=False)[0]
    place = ", ".join(str(part)[:40] for part in first["loc"])
    if first["type"] == "missing":
        return f"{place} is missing"
    if first["type"] == "unexpected_keyword_argument":
        return f"{place} is not a known field"
    if first["type"] == "json_invalid":  # the value was parsed before: only text can be wrong now
        return "expected text that UTF-8 can encode, got half of a surrogate pair"
    expected = EXPECTED.get(first["type"], first["msg"].removeprefix("Input should be "))
    expected = f"a number {expected}" if expected.startswith(("greater", "less")) else expected
    return f"{place}: expected {expected}, got {shorten(first['input'])}".removeprefix(": ")


def shorten(value: Any) -> str:
    """A value in a message: an error must not be as long as the file."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


@cache
def _adapter(cls: type) -> TypeAdapter:
    return TypeAdapter(cls)
