"""A study: named pieces, each computed once and kept as JSON, and what all of them say together.

    folder/
      config.json, versions.json   as in every run directory; .lock
      pieces/<name>.json           the result of one piece, written when it is complete
      runs/<name>/                 trainings that pieces need, run directories of their own
      study.json, tables.md        at the end: configuration, tables, evaluations; the tables to paste
      <figure>.svg, <figure>.pdf

A study is a frozen dataclass, read from a preset, with the two methods of ``Study``. A study that is killed loses at most the
piece it was in, and of a piece that trains only what its run had not saved.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from unmask.evaluation.evaluate import Report
from unmask.report.study_sections import FORMAT
from unmask.runs.atomic import atomic_write
from unmask.runs.jsonable import to_jsonable
from unmask.runs.run import Run

ESTIMATE = ("minutes",)
"""What a preset says about a study that changes nothing in it: a study goes on though the estimate is another one."""


@dataclass(frozen=True)
class Piece:
    """One measurement that stands by itself. ``compute`` returns JSON data; the name says what was measured.

    ``key``, if there is one, is all that the result depends on: another study's piece with the same key is the same measurement.
    """

    name: str
    compute: Callable[[], Mapping[str, Any]]
    key: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Cell:
    """A table's cell; ``strong`` only where a paired interval says so."""

    text: str
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """``rows`` have as many cells as there are ``columns``; plain text is a cell that is not strong."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    note: str = ""


@dataclass(frozen=True)
class Findings:
    """What a study says. ``figures`` are matplotlib's, by file name; ``evaluations`` go into a report as they are."""

    tables: list[Table]
    figures: Mapping[str, Any] = field(default_factory=dict)
    evaluations: list[Report] = field(default_factory=list)


@runtime_checkable
class Study(Protocol):
    """``pieces`` may train in ``folder/runs``; ``findings`` gets every piece's result by name."""

    def pieces(self, folder: Path) -> list[Piece]: ...
    def findings(self, results: Mapping[str, Any]) -> Findings: ...


@dataclass(frozen=True)
class Done:
    """A piece is there, the ``nth`` of ``total``; ``seconds`` is None where it was there before, or in another study."""

    name: str
    nth: int
    total: int
    seconds: float | None


def run_study(study: Study, folder: str | Path, resume: bool = False, reuse: Sequence[Path] = ()) -> Iterator[Done]:
    """Compute the pieces that ``folder`` lacks, in their order, yielding after each. What studies in ``reuse`` have is copied."""
    known, todo = _keyed(reuse), study.pieces(Path(folder))  # a study that cannot be done leaves no folder behind
    _refuse_same_files(todo)
    run = Run.create(folder, study, resume=resume, may_differ=ESTIMATE)
    with run.lock():
        (run.folder / "pieces").mkdir(exist_ok=True)
        for nth, piece in enumerate(todo, 1):
            file = _file(run.folder, piece.name)
            key, seconds = None if piece.key is None else to_jsonable(piece.key), None
            same = known.get(json.dumps(key, sort_keys=True)) if key is not None else None
            if not file.exists() and same is not None:
                content = {**same, "piece": piece.name}
                atomic_write(file, (json.dumps(content, allow_nan=False) + "\n").encode())
            elif not file.exists():
                started = time.perf_counter()
                result = to_jsonable(piece.compute())
                seconds = time.perf_counter() - started
                content = {"piece": piece.name, "key": key, "seconds": round(seconds, 3), "result": result}
                atomic_write(file, (json.dumps(content, allow_nan=False) + "\n").encode())
            yield Done(piece.name, nth, len(todo), seconds)


def conclude(study: Study, folder: str | Path, pieces: Sequence[str], name: str, command: str) -> Findings:
    """Read the pieces of these names, and write what they say: ``study.json``, ``tables.md`` and the figures."""
    folder = Path(folder)
    stored = {piece: _read(folder, piece) for piece in pieces}
    findings = study.findings({key: value["result"] for key, value in stored.items()})
    content = {
        "format": FORMAT,
        "study": name,
        "command": command,
        "config": to_jsonable(study),
        "seconds": {key: value["seconds"] for key, value in stored.items()},
        "tables": to_jsonable([_even(table) for table in findings.tables]),
        "figures": sorted(f"{figure}.svg" for figure in findings.figures),
        "evaluations": to_jsonable(null(findings.evaluations)),
    }
    for figure, drawn in findings.figures.items():
        _draw(drawn, folder / figure)
    atomic_write(folder / "tables.md", markdown(findings, command).encode())
    atomic_write(folder / "study.json", (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    return findings


def markdown(findings: Findings, command: str) -> str:
    """The tables as they go into a document, under the command that made them."""
    parts = [f"```\n{command}\n```"]
    for table in findings.tables:
        lines = [f"| {' | '.join(table.columns)} |", f"|{'---|' * len(table.columns)}"]
        for row in _even(table).rows:
            cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
            marked = (f"**{cell.text}**" if cell.strong else cell.text for cell in cells)
            lines.append(f"| {' | '.join(text.replace('|', '/') for text in marked)} |")
        parts += [table.title, "\n".join(lines), *([table.note] if table.note else [])]
    return "\n\n".join(parts) + "\n"


def null(value: Any) -> Any:
    """JSON data in which what is not finite is null, as in an evaluation's file."""
    value = to_jsonable(value, finite=True)
    if isinstance(value, dict):
        return {key: null(item) for key, item in value.items()}
    if isinstance(value, list):
        return [null(item) for item in value]
    return None if value in ("NaN", "Infinity", "-Infinity") else value


def _even(table: Table) -> Table:
    wrong = [row for row in table.rows if len(row) != len(table.columns)]
    if wrong:
        raise ValueError(f"table {table.title!r}: expected {len(table.columns)} cells in a row, got {wrong[0]}")
    return table


def _file(folder: Path, name: str) -> Path:
    return folder / "pieces" / f"{re.sub(r'[^a-zA-Z0-9.=+@-]+', '_', name)}.json"


def _refuse_same_files(pieces: Sequence[Piece]) -> None:
    seen: dict[str, str] = {}
    for piece in pieces:
        file = _file(Path(), piece.name).name
        if file in seen:
            raise ValueError(f"two pieces would share a file: {seen[file]!r} and {piece.name!r}; name each thing once")
        seen[file] = piece.name


def _keyed(studies: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """The pieces of other studies, by their keys."""
    found: dict[str, dict[str, Any]] = {}
    for folder in studies:
        if not (folder / "pieces").is_dir():
            raise ValueError(f"expected a study's folder with its pieces at {folder}, but there is none")
        for file in sorted((folder / "pieces").glob("*.json")):
            stored = _read(folder, file.stem, file)
            if stored["key"] is not None:
                found.setdefault(json.dumps(stored["key"], sort_keys=True), stored)
    return found


def _read(folder: Path, name: str, file: Path | None = None) -> dict[str, Any]:
    file = file or _file(folder, name)
    try:
        stored = json.loads(file.read_bytes())
        if stored.keys() >= {"piece", "key", "seconds", "result"} and _file(folder, stored["piece"]) == file:
            return stored
    except FileNotFoundError:
        raise ValueError(f"the study in {folder} lacks the piece {name!r}: run it again with --resume") from None
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"{file} is damaged: delete it, and run the study again with --resume")


def _draw(figure: Any, place: Path) -> None:
    """As SVG and as PDF, without the date: the same numbers give the same bytes."""
    from io import BytesIO

    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "unmask", "svg.fonttype": "none", "pdf.fonttype": 42}):
        for ending, unsaid in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
            out = BytesIO()
            figure.savefig(out, format=ending, metadata=unsaid)
            atomic_write(place.with_name(f"{place.name}.{ending}"), out.getvalue())
