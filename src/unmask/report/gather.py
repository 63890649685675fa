"""What a report is made of: evaluations (``Report.write``), training runs (``Run``) and traces, read from the named paths.

A folder with ``study.json`` is a study's, one with ``metrics.jsonl`` or ``config.json`` a run's; any other stands for the JSON
files in it. A file says by itself what it is. What is none of these is one ValueError.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.evaluation.evaluate import Report, Row, Stratum, Versus
from unmask.report.study_sections import Studied, is_study, read_study
from unmask.report.traces.format import FORMAT, Trace
from unmask.report.traces.reading import from_json, parse
from unmask.runs.run import Run


@dataclass(frozen=True)
class Evaluation:
    """A report, the command that made it, if it is known, and the file's name."""

    name: str
    report: Report
    command: str | None


@dataclass(frozen=True)
class Training:
    """A run's folder: its configuration, what it ran on, and its metrics, one record a step."""

    name: str
    config: dict[str, Any]
    versions: dict[str, Any]
    metrics: list[dict[str, Any]]


@dataclass(frozen=True)
class Inputs:
    evaluations: list[Evaluation]
    trainings: list[Training]
    traces: list[Trace]
    studies: list[Studied] = dataclasses.field(default_factory=list)


def gather(paths: Sequence[Path]) -> Inputs:
    """Read everything that ``paths`` name."""
    if not paths:
        raise ValueError("there is nothing to report: name evaluation files, run folders or traces")
    found = Inputs([], [], [])
    for path in paths:
        if not path.exists():
            raise ValueError(f"expected an evaluation, a run's folder or a trace at {path}, but there is nothing")
        if path.is_dir() and is_study(path):
            found.studies.append(read_study(path))
        elif path.is_dir() and ((path / "metrics.jsonl").exists() or (path / "config.json").exists()):
            found.trainings.append(_training(path))
        elif path.is_dir():
            files = sorted(path.glob("*.json"))
            if not files:
                raise ValueError(f"{path} is neither a run's folder (no metrics.jsonl) nor a folder of JSON files")
            for file in files:
                _file(file, found)
        else:
            _file(path, found)
    return found


def _file(path: Path, found: Inputs) -> None:
    try:
        value = parse(path.read_bytes())
        if isinstance(value, dict) and value.get("format") == FORMAT:
            found.traces.append(from_json(value))
        elif isinstance(value, dict) and "rows" in value and "denoiser" in value:
            command = value.get("command")
            found.evaluations.append(
                Evaluation(path.stem, report_of(value), command if isinstance(command, str) else None)
            )
        else:
            raise ValueError("expected an evaluation (unmask evaluate --json) or a trace (unmask trace)")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def report_of(value: Any) -> Report:
    """The report that ``Report.write`` wrote: null is NaN again. Fields of later versions are left out."""
    report = _fields(Report, value, "the evaluation")
    if not isinstance(report["rows"], list) or not report["rows"]:
        raise ValueError("rows: expected at least one row")
    rows = []
    for nth, stored in enumerate(report["rows"]):
        row = _fields(Row, stored, f"row {nth + 1}")
        strata = row["strata"]
        if not isinstance(strata, dict):
            raise ValueError(f"row {nth + 1}, strata: expected a JSON object")
        row["strata"] = {k: Stratum(**_fields(Stratum, v, f"row {nth + 1}, {k}")) for k, v in strata.items()}
        if row["versus"] is not None:
            row["versus"] = Versus(**_fields(Versus, row["versus"], f"row {nth + 1}, versus"))
        if len(row["solved"]) != row["n"] or not set(row["solved"]) <= {"0", "1"}:
            raise ValueError(f"row {nth + 1}, solved: expected {row['n']} characters 0 or 1")
        rows.append(Row(**row))
    return Report(**{**report, "rows": rows})


def _fields(cls: type, value: Any, place: str) -> dict[str, Any]:
    """The dataclass's fields out of JSON, numbers and texts checked."""
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected a JSON object, got {type(value).__name__}")
    out = {}
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name not in value:
            if required:
                raise ValueError(f"{place}: {field.name} is missing")
            continue
        item = value[field.name]
        kind = str(field.type)
        if kind == "float":
            item = math.nan if item is None else item
            if type(item) not in (int, float):
                raise ValueError(f"{place}, {field.name}: expected a number, got {type(item).__name__}")
            item = float(item)
        if kind == "int" and type(item) is not int:
            raise ValueError(f"{place}, {field.name}: expected a whole number, got {type(item).__name__}")
        if kind == "str" and not isinstance(item, str):
            raise ValueError(f"{place}, {field.name}: expected text, got {type(item).__name__}")
        out[field.name] = item
    return out


def _training(path: Path) -> Training:
    def stored(name: str) -> dict[str, Any]:
        if not (path / name).exists():
            return {}
        try:
            value = parse((path / name).read_bytes())
        except ValueError as error:
            raise ValueError(f"{path / name}: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path / name}: expected a JSON object, got {type(value).__name__}")
        return value

    return Training(path.resolve().name, stored("config.json"), stored("versions.json"), Run(path).metrics())
