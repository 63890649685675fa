"""The options of a ``Decoding`` as the fields of a form. A new option appears by itself, where its values are safe to choose.

Numbers, flags and choices are; so is text that names an entry point with its options (``pace``: group ``unmask.paces``). An option
that could name a file is not offered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

from unmask.decoding.options import Decoding
from unmask.runs.config import read
from unmask.runs.names import EntryPoints, did_you_mean

KEYS = ("type", "enum", "minimum", "maximum", "exclusiveMinimum")


@cache
def form_fields() -> tuple[dict[str, Any], ...]:
    """A dictionary per option: ``name``, ``help``, ``default``, ``optional``, and the keys of its JSON schema that matter."""
    hints = get_type_hints(Decoding, include_extras=True)
    return tuple(made for field in fields(Decoding) if (made := _form_field(field, hints[field.name])) is not None)


def _form_field(field: Any, hint: Any) -> dict[str, Any] | None:
    common = {"name": field.name, "help": _help().get(field.name, ""), "default": field.default}
    names = list(EntryPoints(f"unmask.{field.name}s"))
    if names:
        return {**common, "optional": field.default is None, "type": "spec", "enum": names}
    try:
        schema = TypeAdapter(hint).json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None
    members = schema.get("anyOf", [schema])
    typed = [member for member in members if member.get("type") != "null"]
    if len(typed) != 1 or (typed[0].get("type") == "string" and "enum" not in typed[0]):
        return None
    if typed[0].get("type") not in ("integer", "number", "boolean", "string"):
        return None
    return {**common, "optional": len(members) > 1, **{key: typed[0][key] for key in KEYS if key in typed[0]}}


@cache
def _help() -> dict[str, str]:
    """Option → its line in the docstring."""
    lines = re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", Decoding.__doc__ or "", re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in lines}


def read_decoding(given: Mapping[str, Any], place: str) -> Decoding:
    """A decoding from options that the form offers; a ValueError names the place and the nearest option."""
    offered = {field["name"]: field for field in form_fields()}
    for name, value in given.items():
        if name not in offered:
            raise ValueError(f"{place}: no option {name[:60]!r}{did_you_mean(name, offered)}")
        if offered[name]["type"] == "spec" and str(value).partition(":")[0].strip() not in offered[name]["enum"]:
            known = ", ".join(offered[name]["enum"])
            raise ValueError(f"{place}, {name}: expected one of {known}, got {str(value)[:60]!r}")
    decoding = read(Decoding, dict(given), place)
    decoding.rule  # noqa: B018  (a pace's own options are read here)
    return decoding
