"""Tables of studies in the documentation: recorded as JSON in the repository, and written into pages between marks.

    python -m unmask_studies.recorded docs               writes the recorded tables into the pages
    python -m unmask_studies.recorded docs runs/study    first records those of the named studies whose folders are there
    python -m unmask_studies.recorded docs --check       changes nothing; fails if a page differs from what is recorded

A page holds a table as::

    <!-- results: lengths -->

    arithmetic: solved %, on 300 problems of the test split, seed 0

    | scheduler | … |

    <!-- end -->

The mark names a file of ``docs/tables``, the title says which of its tables. After another run a table is found by its title with
other numbers in it, such as another n. Tables of commands that leave no study folder (``unmask evaluate``, ``unmask bench``) are
files of the same form under a name that is no study's; ``command`` then holds a line for each command.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unmask.report.stored import parse, validate
from unmask.report.study_sections import FORMAT, Cell, Table, is_study, read_study
from unmask.runs.atomic import atomic_write
from unmask_studies.tables import render_table

MARK = re.compile(r"<!-- results: (?P<study>[\w-]+) -->\n(?P<inside>.*?)<!-- end -->", re.DOTALL)
PLACE = re.compile(r" --out \S+| --resume\b")
"""Options of a study's command that change nothing in its tables."""
NUMBER = re.compile(r"\b\d[\d,.]*\b")


@dataclass(frozen=True)
class Recorded:
    """The tables of one study, the command that made them, and the version of the package that ran it, if that is known."""

    format: Literal["unmask study 1"]
    study: str
    command: str
    version: str | None
    tables: list[Table]

    def find(self, title: str) -> Table:
        """The table of that title; else the only one whose title differs from it in numbers alone."""
        same = [table for table in self.tables if table.title == title]
        alike = same or [table for table in self.tables if _pattern(table.title) == _pattern(title)]
        if len(alike) != 1:
            found = "none" if not alike else f"{len(alike)} of them"
            raise ValueError(f"expected one table of the study {self.study} with the title {title!r}, got {found}")
        return alike[0]


def read_recorded(file: Path) -> Recorded:
    try:
        return validate(Recorded, parse(file.read_bytes()))
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}; expected a recorded study, see docs/reproduce.md") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def record_studies(studies: Path, docs: Path) -> list[Path]:
    """Record the finished studies of a folder that a page names; the files that were written.

    A study that lacks a table of a page is refused, and nothing is written.
    """
    if not studies.is_dir():
        raise ValueError(f"expected a folder of studies, got {studies}: make study writes runs/study")
    marks = [mark for page in docs.glob("*.md") for mark in MARK.finditer(page.read_text(encoding="utf-8"))]
    found: dict[Path, Recorded] = {}
    for name in sorted({mark["study"] for mark in marks if is_study(studies / mark["study"])}):
        study = read_study(studies / name)
        version = parse((studies / name / "versions.json").read_bytes()).get("unmask")
        command = PLACE.sub("", study.command)
        recorded = Recorded(FORMAT, study.study, command, version, study.tables)
        for mark in marks:
            if mark["study"] == name:
                recorded.find(_title(mark))
        found[docs / "tables" / f"{name}.json"] = recorded
    for file, recorded in found.items():
        atomic_write(file, write_recorded(recorded).encode())
    return list(found)


def write_recorded(recorded: Recorded) -> str:
    """JSON with a row of a table per line, so that a change of a number is a change of a line."""
    head = {"format": FORMAT, "study": recorded.study, "command": recorded.command, "version": recorded.version}
    lines = [f" {_json(name)}: {_json(value)}," for name, value in head.items()]
    tables = []
    for table in recorded.tables:
        rows = ",\n".join(f"   {_json([_plain(cell) for cell in row])}" for row in table.rows)
        titles = f'  {{"title": {_json(table.title)},\n   "columns": {_json(table.columns)},\n   "rows": [\n{rows}],'
        tables.append(f'{titles}\n   "note": {_json(table.note)}}}')
    return "\n".join(["{", *lines, ' "tables": [', ",\n".join(tables), " ]", "}"]) + "\n"


def fill_page(text: str, tables: Path) -> str:
    """The page with every marked table as it is recorded."""
    return MARK.sub(lambda mark: _fill(mark, tables), text)


def update_pages(docs: Path, check: bool = False) -> list[str]:
    """Write the tables into all pages of a folder; the names of the pages that differed, which ``check`` leaves as they are."""
    changed = []
    for page in sorted(docs.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        try:
            filled = fill_page(text, docs / "tables")
        except ValueError as error:
            raise ValueError(f"{page.name}: {error}") from None
        if filled == text:
            continue
        changed.append(page.name)
        if not check:
            atomic_write(page, filled.encode())
    return changed


def _fill(mark: re.Match[str], tables: Path) -> str:
    found = read_recorded(tables / f"{mark['study']}.json").find(_title(mark))
    return f"<!-- results: {mark['study']} -->\n\n{found.title}\n\n{render_table(found)}\n\n<!-- end -->"


def _title(mark: re.Match[str]) -> str:
    return next((line for line in mark["inside"].splitlines() if line.strip()), "")


def _pattern(title: str) -> str:
    return NUMBER.sub("#", title)


def _plain(cell: Cell | str) -> object:
    """Text alone where a cell is not strong."""
    if isinstance(cell, str):
        return cell
    return {"text": cell.text, "strong": True} if cell.strong else cell.text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def main(arguments: Sequence[str]) -> int:
    """What the words at the top say; the exit code."""
    check = "--check" in arguments
    places = [Path(word) for word in arguments if word != "--check"]
    try:
        if not 1 <= len(places) <= 2 or (check and len(places) > 1):
            raise ValueError("expected docs, docs and a folder of studies, or docs and --check")
        docs = places[0]
        if not docs.is_dir():
            raise ValueError(f"expected the folder of the documentation, got {docs}")
        for file in record_studies(places[1], docs) if len(places) > 1 else ():
            print(f"recorded {file}")
        changed = update_pages(docs, check)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for name in changed:
        print(f"{name}: {'differs from the recorded tables; make results writes them' if check else 'updated'}")
    return 1 if check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
