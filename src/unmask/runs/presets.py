"""Presets: TOML files read into frozen dataclasses, with every key and type checked.

A preset lies at assets/presets/<kind>/<name>.toml and is named for the result it reproduces; its first line, a
comment, describes it. A field that the file leaves out keeps its default, or the value of the preset that the file
`extends`; a table changes only the fields it names. Fields may be bool, int, float, str, Path, Literal, Enum, list,
tuple, dict, dataclasses, unions, Any.
"""

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from unmask.assets import PRESETS
from unmask.runs.preset_tables import read_preset_rows

PRESET_FILES = PRESETS
T = TypeVar("T")


@dataclass(frozen=True)
class Preset:
    """One file, whose first comment line is the `description`; or a row of a table file, with its `values`."""

    kind: str
    name: str
    description: str
    path: Path
    values: dict[str, Any] | None = None


def list_presets(kind: str | None = None) -> tuple[Preset, ...]:
    """The presets of one kind, or of every kind, by name."""
    found = []
    for path in PRESET_FILES.glob(f"{kind or '*'}/*.toml"):
        rows = [Preset(path.parent.name, name, about, path, table) for name, about, table in read_preset_rows(path, _over)]
        found += rows or [Preset(path.parent.name, path.stem, _description(path), path)]
    return tuple(sorted(found, key=lambda preset: (preset.kind, preset.name)))


def load_preset(name_or_path: str | Path, cls: type[T], kind: str | None = None) -> T:
    """The dataclass `cls` as a preset sets it.

    `name_or_path` is a preset's name, "kind/name", or the path of a TOML file (a `Path`, or text that ends in
    .toml). `kind` narrows the names down to that kind.
    """
    if not dataclasses.is_dataclass(cls):
        raise ValueError(f"expected a dataclass to read a preset into, got {cls!r}")
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml"):
        preset, label = _of_file(Path(name_or_path)), str(name_or_path)
    else:
        preset, label = _find(name_or_path, kind), name_or_path
    if kind is None and preset.path.parent.parent == PRESET_FILES:
        kind = preset.path.parent.name  # what a preset extends is of its own kind
    table = _read(preset, label, kind)
    try:
        return cast(T, fill(cls, table, None, ""))
    except ValueError as error:
        raise ValueError(f"preset {label}: {error}") from None


def _of_file(path: Path) -> Preset:
    return Preset("", path.stem, "", path)


def _read(preset: Preset, label: str, kind: str | None, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The preset's tables, over those of the preset that it ``extends``, if it does."""
    if preset.values is not None:
        return preset.values
    path = preset.path
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"expected a preset file at {path}, but there is none; check the path") from None
    except IsADirectoryError:
        raise ValueError(f"expected a preset file at {path}, got a folder; name a .toml file in it") from None
    except OSError as error:
        raise ValueError(f"cannot read the preset file {path}: {error.strerror or error}") from None
    except RecursionError:
        raise ValueError(f"preset {label}: expected TOML, got brackets nested beyond reason") from None
    except ValueError as error:  # malformed TOML, or not text at all
        raise ValueError(f"preset {label}: expected TOML, got: {error}") from None
    name = table.pop("extends", None)
    if name is None:
        return table
    if not isinstance(name, str):
        raise ValueError(f"preset {label}: extends: expected the name of a preset, got {name!r}")
    extended = _of_file(path.parent / name) if name.endswith(".toml") else _find(name, kind)
    if extended.path in (*below, path):
        raise ValueError(f"preset {label}: extends {name!r}, which extends it in turn; end the circle")
    return _over(_read(extended, name, kind, (*below, path)), table)


def _over(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``table`` with ``changes``, which within a table change only the keys they name."""
    merged = dict(table)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = _over(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def _find(name: str, kind: str | None) -> Preset:
    known = list_presets(kind)
    found = [preset for preset in known if name in (preset.name, f"{preset.kind}/{preset.name}")]
    if len(found) == 1:
        return found[0]
    if found:
        choices = ", ".join(f"{preset.kind}/{preset.name}" for preset in found)
        raise ValueError(f"preset {name!r} exists in several kinds; say which: {choices}")
    names = [preset.name if kind else f"{preset.kind}/{preset.name}" for preset in known]
    near = _nearest(name, [*names, *(preset.name for preset in known)])
    of_kind = f"{kind} preset" if kind else "preset"
    raise ValueError(f"unknown {of_kind} {name!r}{near}; available: {', '.join(names) or 'none'}")


def _description(path: Path) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        first = file.readline().strip()
    return first.lstrip("# ") if first.startswith("#") else ""


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def fill(cls: type, table: dict[str, Any], default: Any = None, place: str = "") -> Any:
    """An instance of `cls`: `default` (or the class's own defaults) with the entries of `table` set, types checked."""
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    where = f"in [{place}]" if place else "at the top"
    for key in table:
        if key not in fields:
            near = _nearest(key, fields)
            raise ValueError(f"unknown key {key!r} {where}{near}; known keys: {', '.join(fields)}")
    hints = get_type_hints(cls)
    values = {}
    for key, value in table.items():
        inner = getattr(default, key) if default is not None else _default(fields[key])
        values[key] = _convert(hints[key], value, inner, f"{place}.{key}".lstrip("."))
    try:
        if default is not None:
            return dataclasses.replace(default, **values)
        missing = [name for name, field in fields.items() if name not in values and _required(field)]
        if missing:
            raise ValueError(f"missing {', '.join(missing)}, which has no default; add it")
        return cls(**values)
    except ValueError as error:  # also the dataclass's own checks
        raise ValueError(f"{where}: {error}") from None


def _required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _convert(hint: Any, value: Any, default: Any, place: str) -> Any:
    """`value`, as TOML gives it, as the type `hint` asks for. `default` is the field's, for nested tables."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, default, place)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
        raise _wrong(_choices(arguments), value, place, near=arguments)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return fill(hint, value, default if type(default) is hint else None, place)
    if isinstance(hint, type) and issubclass(hint, Enum):
        choices = [member.value for member in hint]
        if value in choices:
            return hint(value)
        raise _wrong(_choices(choices), value, place, near=choices)
    if origin in (list, tuple, dict, Sequence):
        return _convert_many(hint, value, place)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and type(value) is int:
        return float(value)
    if hint is tuple and isinstance(value, list):
        return tuple(value)
    # By exact type, since True is an int to isinstance but not to whoever wrote the preset.
    if isinstance(hint, type) and type(value) is hint:
        return value
    raise _wrong(_name(hint), value, place)


def _convert_union(hints: tuple[Any, ...], value: Any, default: Any, place: str) -> Any:
    tables = [hint for hint in hints if dataclasses.is_dataclass(hint)]
    if isinstance(value, dict) and tables:
        table, value = _choose(tables, value, default, place) if len(tables) > 1 else (tables[0], value)
        return _convert(table, value, default, place)  # so that its own error, about a key, is the one shown
    exact = [hint for hint in hints if type(value) is hint]  # int | float must not turn 1 into 1.0
    for hint in (*exact, *hints):
        try:
            return _convert(hint, value, default, place)
        except ValueError:
            continue
    raise _wrong(" or ".join(_name(hint) for hint in hints), value, place)


def _choose(tables: list[Any], value: dict[str, Any], default: Any, place: str) -> tuple[Any, dict[str, Any]]:
    """Of several dataclasses the one whose `kind` the table names; without that the default's own, or the first.

    A dataclass without a field `kind` goes by the name before "Data": SudokuData is "sudoku".
    """
    kinds = {getattr(table, "kind", table.__name__.removesuffix("Data").lower()): table for table in tables}
    if "kind" not in value:
        return (type(default) if type(default) in tables else tables[0]), value
    if not isinstance(value["kind"], str) or value["kind"] not in kinds:
        raise _wrong(_choices(kinds), value["kind"], f"{place}.kind", near=kinds)
    table = kinds[value["kind"]]
    named = "kind" in {field.name for field in dataclasses.fields(table)}
    return table, value if named else {key: item for key, item in value.items() if key != "kind"}


def _convert_many(hint: Any, value: Any, place: str) -> Any:
    """Lists, tuples and dicts, item by item."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is dict and isinstance(value, dict):
        return {key: _convert(arguments[1], item, None, f"{place}.{key}") for key, item in value.items()}
    if origin is dict or not isinstance(value, list):
        raise _wrong(_name(hint), value, place)
    if origin in (list, Sequence) or arguments[-1:] == (...,):
        arguments = (arguments[0],) * len(value)
    if len(arguments) != len(value):
        raise _wrong(f"{len(arguments)} items ({_name(hint)})", value, place)
    items = [
        _convert(inner, item, None, f"{place}[{i}]")
        for i, (inner, item) in enumerate(zip(arguments, value, strict=True))
    ]
    return tuple(items) if origin in (tuple, Sequence) else items


def _wrong(expected: str, value: Any, place: str, near: Iterable[Any] = ()) -> ValueError:
    hint = _nearest(value, [choice for choice in near if isinstance(choice, str)]) if isinstance(value, str) else ""
    return ValueError(f"{place}: expected {expected}, got {type(value).__name__} {value!r}{hint}")


def _choices(values: Iterable[Any]) -> str:
    return f"one of {', '.join(repr(value) for value in values)}"


def _name(hint: Any) -> str:
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return f"a table ({hint.__name__})"
    return hint.__name__ if isinstance(hint, type) and get_origin(hint) is None else str(hint).replace("typing.", "")
