"""Presets: TOML files read into frozen dataclasses, with every key, type and bound checked (see :mod:`unmask.runs.config`).

A preset lies at assets/presets/<kind>/<name>.toml, or in such a folder of another package, and is named for the result it
reproduces; its first line, a comment, describes it. A field that the file does not name keeps its default, or the value of the
preset that the file `extends`; a table changes only the fields it names.
"""

import dataclasses
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from unmask.assets import PRESETS
from unmask.runs.bounded import read_bounded_text
from unmask.runs.config import read
from unmask.runs.jsonable import flatten
from unmask.runs.names import EntryPoints, did_you_mean
from unmask.runs.preset_tables import read_preset_rows

PRESET_FILES = PRESETS
PRESET_FOLDERS = EntryPoints("unmask.presets")
"""Folders of further presets, a subfolder for each kind, which other packages bring."""
T = TypeVar("T")
C = TypeVar("C", bound=Any)


@dataclass(frozen=True)
class Preset:
    """One file, whose first comment line is the `description`; or a row of a table file, with its `values`."""

    kind: str
    name: str
    description: str
    path: Path
    values: dict[str, Any] | None = None

    @property
    def is_own(self) -> bool:
        """Is it one of this library's, not another package's?"""
        return self.path.parent.parent == PRESET_FILES


def list_presets(kind: str | None = None) -> tuple[Preset, ...]:
    """The presets of one kind, or of every kind, by name."""
    found = []
    for folder in (PRESET_FILES, *PRESET_FOLDERS.values()):
        for path in folder.glob(f"{kind or '*'}/*.toml"):
            name = path.parent.name
            rows = [Preset(name, row, about, path, table) for row, about, table in read_preset_rows(path, overlay)]
            found += rows or [Preset(name, path.stem, _description(path), path)]
    return tuple(sorted(found, key=lambda preset: (preset.kind, preset.name)))


def load_preset(
    name_or_path: str | Path,
    cls: type[T],
    kind: str | None = None,
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> T:
    """The dataclass `cls` as a preset sets it; `change` edits the file's tables before they are checked.

    `name_or_path` is a preset's name, "kind/name", or the path of a TOML file (a `Path`, or text that ends in
    .toml). `kind` narrows the names down to that kind.
    """
    if not dataclasses.is_dataclass(cls):
        raise ValueError(f"expected a dataclass to read a preset into, got {cls!r}")
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml"):
        preset, label = _of_file(Path(name_or_path)), str(name_or_path)
    else:
        preset, label = _find(name_or_path, kind), name_or_path
    if kind is None and preset.path.parent.parent in (PRESET_FILES, *PRESET_FOLDERS.values()):
        kind = preset.path.parent.name  # what a preset extends is of its own kind
    table = _read_tables(preset, label, kind)
    return read(cls, table if change is None else change(table), f"preset {label}")


def change_training(config: C, seed: int | None = None, **training: Any) -> C:
    """A run's configuration with another seed for its data and its training, and other options of its training, where given."""
    changes = {name: value for name, value in training.items() if value is not None}
    if seed is not None:
        changes["seed"] = seed
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, seed=seed))
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **changes))


def _of_file(path: Path) -> Preset:
    return Preset("", path.stem, "", path)


def _read_tables(preset: Preset, label: str, kind: str | None, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The preset's tables, over those of the preset that it ``extends``, if it does."""
    if preset.values is not None:
        return preset.values
    path = preset.path
    try:
        table = tomllib.loads(read_bounded_text(path))
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
    _require_printable(table, label)
    name = table.pop("extends", None)
    if name is None:
        return table
    if not isinstance(name, str):
        raise ValueError(f"preset {label}: extends: expected the name of a preset, got {name!r}")
    extended = _of_file(path.parent / name) if name.endswith(".toml") else _find(name, kind)
    if extended.path in (*below, path):
        raise ValueError(f"preset {label}: extends {name!r}, which extends it in turn; end the circle")
    return overlay(_read_tables(extended, name, kind, (*below, path)), table)


def overlay(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``table`` with ``changes``, which within a table change only the keys they name."""
    merged = dict(table)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = overlay(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
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
    near = did_you_mean(name, [*names, *(preset.name for preset in known)])
    of_kind = f"{kind} preset" if kind else "preset"
    raise ValueError(f"unknown {of_kind} {name!r}{near}; available: {', '.join(names) or 'none'}")


def _description(path: Path) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        first = file.readline().strip()
    return first.lstrip("# ") if first.startswith("#") else ""


def _require_printable(table: dict[str, Any], label: str) -> None:
    """Values are shown, in help and in errors: they must not steer a terminal."""
    try:
        flat = flatten(table)
    except RecursionError:
        raise ValueError(f"preset {label}: expected TOML, got keys nested beyond reason") from None
    for key, value in flat.items():
        texts = [key, *(value if isinstance(value, list) else [value])]
        if not all("".join(text.split()).isprintable() for text in texts if isinstance(text, str)):
            raise ValueError(f"preset {label}: {key!a} has control characters, in its name or its value")
