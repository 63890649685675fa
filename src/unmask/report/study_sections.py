"""A study's folder in a report: its tables, and its figures as images, which run no scripts."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from unmask.report.stored import parse, validate

FORMAT = "unmask study 1"


@dataclass(frozen=True)
class StudyCell:
    text: str
    strong: bool = False


@dataclass(frozen=True)
class StudyTable:
    """Each of the ``rows`` has a cell per column; text alone is a cell that is not strong."""

    title: str
    columns: list[str]
    rows: list[list[StudyCell | str]]
    note: str


@dataclass(frozen=True)
class StudyResult:
    """The fields of ``study.json`` that a report shows. ``figures`` are names of SVG files beside it, then ``data:`` addresses."""

    format: Literal["unmask study 1"]
    study: str
    command: str
    tables: list[StudyTable]
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
