"""The studies by name: one TOML file in ``presets/study`` each, beside the class that it configures.

# The first line describes the study.
study = "unmask_studies.sudoku.tau:Tau"   the class, a GridStudy
minutes = 6                               on one core
after = "lengths"                         a study whose runs this one uses, if any
needs_data = true                         it cannot run without --data
published = ["rao_5000.csv"]              public files that --data may name
...                                       fields of the class, and after them
[quick]                                   what --quick changes: the same keys
"""

from __future__ import annotations

import importlib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from unmask.runs.names import did_you_mean
from unmask.runs.presets import load_preset, overlay
from unmask_studies.presets import FOLDER
from unmask_studies.study import GridStudy

ABOUT = ("study", "minutes", "after", "needs_data", "published")
"""Keys about a study that configure nothing."""


@dataclass(frozen=True)
class Entry:
    """A study's file, and its minutes on one core, in full and quick."""

    name: str
    description: str
    study: str
    minutes: int
    quick_minutes: int
    path: Path

    def load_class(self) -> type[GridStudy]:
        module, _, name = self.study.partition(":")
        return getattr(importlib.import_module(module), name)


@cache
def list_studies() -> dict[str, Entry]:
    """Every study by name, from its file."""
    return {path.stem: _entry(path) for path in sorted((FOLDER / "study").glob("*.toml"))}


def load_study(name: str, quick: bool = False, preset: str | Path | None = None) -> Any:
    """The study as its own preset or another TOML file sets it; ``quick`` applies the file's ``[quick]``."""
    studies = list_studies()
    if name not in studies:
        raise ValueError(f"no study {name!r}: expected {', '.join(studies)}{did_you_mean(name, studies)}")
    path = studies[name].path if preset is None else Path(preset)

    def choose(table: dict[str, Any]) -> dict[str, Any]:
        if quick and "quick" not in table:
            raise ValueError(f"{path} has no table [quick]: add one, or leave out --quick")
        small = table.pop("quick", {})
        scaled = overlay(table, small) if quick else table
        return {key: value for key, value in scaled.items() if key not in ABOUT}

    return load_preset(path, studies[name].load_class(), "study", choose)


def _entry(path: Path) -> Entry:
    text = path.read_text(encoding="utf-8")
    table = tomllib.loads(text)
    description = text.partition("\n")[0].lstrip("# ")
    return Entry(path.stem, description, table["study"], table["minutes"], table["quick"]["minutes"], path)
