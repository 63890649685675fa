"""Tables of studies, and a study's folder in a report: its tables, and its figures as images, which run no scripts."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from unmask.report.stored import parse, validate

FORMAT = "unmask study 1"


@dataclass(frozen=True)
class Cell:
    """A table's cell; ``strong`` only where a paired interval excludes 0."""

    text: str
    strong: bool = False


TableRow = Mapping[str, Cell | str]
"""Column → cell; plain text is a cell that is not strong."""


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[Cell | str]]
    note: str = ""

    @classmethod
    def of(cls, title: str, rows: Sequence[TableRow], note: str = "") -> Table:
        """The columns are those of the first row; every row must have the same."""
        columns = list(rows[0]) if rows else []
        if wrong := [row for row in rows if list(row) != columns]:
            raise ValueError(f"table {title!r}: expected the columns {columns} in every row, got {list(wrong[0])}")
        return cls(title, columns, [list(row.values()) for row in rows], note)


@dataclass(frozen=True)
class StudyResult:
    """The fields of ``study.json`` that a report shows. ``figures`` are names of SVG files beside it, then ``data:`` addresses."""

    format: Literal["unmask study 1"]
    study: str
    command: str
    tables: list[Table]
    figures: list[str]


def is_study(folder: Path) -> bool:
    return (folder / "study.json").is_file()


def read_study(folder: Path) -> StudyResult:
    """The result of ``unmask study`` in its folder."""
    try:
        value = parse((folder / "study.json").read_bytes())
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            raise ValueError(f"expected the result of a study ({FORMAT})")
        result = validate(StudyResult, value)
        for table in result.tables:
            if any(len(row) != len(table.columns) for row in table.rows):
                raise ValueError(f"expected {len(table.columns)} cells in each row of {table.title!r}")
        return replace(result, figures=[_image(folder, name) for name in result.figures])
    except ValueError as error:
        raise ValueError(f"{folder / 'study.json'}: {error}") from None


def _image(folder: Path, name: str) -> str:
    if Path(name).name != name or not name.endswith(".svg"):
        raise ValueError(f"expected the name of an SVG file beside it, got {name!r}")
    if not (folder / name).is_file():
        raise ValueError(f"its figure {name} is missing: run the study again with --resume")
    return "data:image/svg+xml;base64," + base64.b64encode((folder / name).read_bytes()).decode()
