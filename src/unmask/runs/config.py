"""Configuration from outside (TOML, JSON, the command line) as frozen dataclasses that pydantic validates.

:func:`config` makes a frozen dataclass that checks the types and bounds of its fields whenever it is constructed; :func:`read`
makes any dataclass from a table of TOML or JSON. Both refuse with one line: the place, what was expected, what was given, and the
nearest known key. Nothing is coerced but what JSON has no word for: a list to a tuple, text to a ``Path``, 1 to 1.0.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

import pydantic
import pydantic.dataclasses

from unmask.runs.jsonable import to_jsonable
from unmask.runs.names import did_you_mean

T = TypeVar("T")
_QUOTE = "'"
STRICT = pydantic.ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)

Count = Annotated[int, pydantic.Field(ge=1, lt=2**31)]
CountOrZero = Annotated[int, pydantic.Field(ge=0, lt=2**31)]
NonNegative = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, pydantic.Field(ge=0, le=1)]
BelowOne = Annotated[float, pydantic.Field(ge=0, lt=1)]
Natural = Annotated[int, pydantic.Field(ge=0)]
Seed = Annotated[int, pydantic.Field(ge=0, lt=2**31)]


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def config(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen dataclass whose fields are validated: ``Count``, ``Literal``, ``Annotated[int, Field(ge=0)]``."""
    made = pydantic.dataclasses.dataclass(frozen=True, config=STRICT)(cls)
    construct: Callable[..., None] = made.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        try:
            construct(self, *args, **options)
        except pydantic.ValidationError as error:
            raise ValueError(explain(error, made)) from None

    made.__init__ = __init__
    return made  # pyright: ignore[reportReturnType]


def read(cls: type[T], table: Any, place: str = "") -> T:
    """An instance of the dataclass ``cls``. Within a nested table only the keys that it names differ from the field's default."""
    prefix = f"{place}: " if place else ""
    if not isinstance(table, dict):
        raise ValueError(f"{prefix}expected a table ({cls.__name__}), got {_quote(table)}")
    try:
        return _adapter(cls).validate_json(json.dumps([_complete(cls, table)], default=str))[0]
    except pydantic.ValidationError as error:
        raise ValueError(prefix + explain(error, cls)) from None


def explain(error: pydantic.ValidationError, cls: type) -> str:
    """The first mistake in a line. Unknown keys come first: a misspelled key is also a missing one."""
    found: list[Any] = list(error.errors(include_url=False))
    first = min(found, key=lambda one: one["type"] != "unexpected_keyword_argument")
    place, owner, key = _locate(cls, first["loc"])
    table = f"in [{place.rpartition('.')[0]}]" if "." in place else "at the top"
    if first["type"] == "unexpected_keyword_argument":
        known = [field.name for field in dataclasses.fields(owner)]
        return f"unknown key {key!r} {table}{did_you_mean(str(key), known)}; known keys: {', '.join(known)}"
    if first["type"] == "missing" and isinstance(key, str):
        return f"{table}: missing {key}, which has no default; add it"
    if first["type"] == "value_error":  # a dataclass's own check of fields that must fit each other
        return (f"in [{place}]: " if place else "") + str(first["ctx"]["error"])
    if first["type"] == "union_tag_invalid":
        tag, tags = first["ctx"]["tag"], first["ctx"]["expected_tags"]
        return f"{place}.kind: expected one of {tags}, got {_quote(tag)}{did_you_mean(tag, tags.split(_QUOTE)[1::2])}"
    # Of a union each member has its own error at the same place.
    same = [one for one in found if _locate(cls, one["loc"])[0] == place]
    expected = " or ".join(dict.fromkeys(_expected(one["msg"]) for one in same))
    near = did_you_mean(first["input"], expected.split(_QUOTE)[1::2]) if isinstance(first["input"], str) else ""
    return f"{place}: expected {expected}, got {_quote(first['input'])}{near}"


def _expected(message: str) -> str:
    """Pydantic's words after "expected"."""
    text = message.removeprefix("Input should be ")
    return (
        f"a number {text}" if text.startswith(("greater", "less")) else text.replace("Field required", "another item")
    )


def _quote(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:79] + '…'}"


@functools.cache
def _adapter(cls: type) -> pydantic.TypeAdapter:
    return pydantic.TypeAdapter(list[cls], config=STRICT)  # pyright: ignore[reportInvalidTypeForm]  # in a list, since a dataclass would not take the strictness


def _complete(cls: type, table: Mapping[str, Any], default: Any = None) -> dict[str, Any]:
    """``table`` over the values of ``default``, and each nested table over the default of its field."""
    done = dict(table) if default is None else to_jsonable(default) | dict(table)
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        value = table.get(field.name)
        if isinstance(value, dict):
            inner = _default(field) if default is None else getattr(default, field.name)
            member = _table_type(hints[field.name], value.get("kind", getattr(inner, "kind", None)))
            if member is not None:
                done[field.name] = _complete(member, value, inner if type(inner) is member else None)
    return done


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _members(hint: Any) -> Sequence[Any]:
    """The types of a union; a type alone is its only member."""
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _table_type(hint: Any, kind: Any = None) -> Any:
    """The dataclass of ``Config`` or ``Config | None``; of several in a union, the one of this kind."""
    tables = [member for member in _members(hint) if dataclasses.is_dataclass(member)]
    return next((table for table in tables if len(tables) == 1 or getattr(table, "kind", None) == kind), None)


def _locate(cls: type, loc: Sequence[str | int]) -> tuple[str, Any, str | int]:
    """``policy.sizes[1]`` for pydantic's location; the dataclass that owns the last part, and that part."""
    place, owner, key, hint = "", cls, "", cls
    for part in loc[1:] if loc[:1] == (0,) else loc:
        if _names_member(hint, part):
            hint = _table_type(hint, part) or hint
            continue
        table = _table_type(hint)
        owner = table or owner
        hint = get_type_hints(table).get(str(part), Any) if table else Any
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
        key = part
    return place.lstrip("."), owner, key


def _names_member(hint: Any, part: str | int) -> bool:
    """Is ``part`` the member of a union that pydantic tried (a ``kind`` or a type), and so no part of the place?"""
    members = _members(hint)
    tables = [member for member in members if dataclasses.is_dataclass(member)]
    keyed = len(tables) == 1 or any(get_origin(member) is dict for member in members)
    return len(members) > 1 and isinstance(part, str) and not keyed
