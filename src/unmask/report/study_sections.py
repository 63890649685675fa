"""A study's folder in a report: its tables as they were concluded, and its figures as images, which run no scripts."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.report.traces.reading import parse

FORMAT = "unmask study 1"


@dataclass(frozen=True)
class StudiedTable:
    """``rows`` hold pairs: a cell's text, and whether it is strong."""

    title: str
    columns: list[str]
    rows: list[list[tuple[str, bool]]]
    note: str


@dataclass(frozen=True)
class Studied:
    """``figures`` are ``data:`` addresses of SVG images."""

    name: str
    command: str
    tables: list[StudiedTable]
    figures: list[str]


def is_study(folder: Path) -> bool:
    return (folder / "study.json").is_file()


def read_study(folder: Path) -> Studied:
    """What ``unmask study`` left in its folder."""
    try:
        value = parse((folder / "study.json").read_bytes())
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError(f"expected the conclusion of a study ({FORMAT})")
        tables = [_table(table) for table in _list(value, "tables")]
        figures = [_image(folder, name) for name in _list(value, "figures")]
        return Studied(_text(value, "study"), _text(value, "command"), tables, figures)
    except ValueError as error:
        raise ValueError(f"{folder / 'study.json'}: {error}") from None


def _table(value: Any) -> StudiedTable:
    columns = [_string(column) for column in _list(value, "columns")]
    rows = []
    for row in _list(value, "rows"):
        if not isinstance(row, list) or len(row) != len(columns):
            raise ValueError(f"expected {len(columns)} cells in each row")
        rows.append([_cell(cell) for cell in row])
    return StudiedTable(_text(value, "title"), columns, rows, _text(value, "note"))


def _cell(value: Any) -> tuple[str, bool]:
    return (_text(value, "text"), value.get("strong") is True) if isinstance(value, dict) else (_string(value), False)


def _image(folder: Path, name: Any) -> str:
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".svg"):
        raise ValueError(f"expected the name of an SVG file beside it, got {name!r}")
    if not (folder / name).is_file():
        raise ValueError(f"its figure {name} is missing: run the study again with --resume")
    return "data:image/svg+xml;base64," + base64.b64encode((folder / name).read_bytes()).decode()


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get(key), list):
        raise ValueError(f"{key}: expected a list")
    return value[key]


def _text(value: Any, key: str) -> str:
    return _string(value.get(key) if isinstance(value, dict) else None)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {type(value).__name__}")
    return value
