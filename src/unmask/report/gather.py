"""The inputs of a report: evaluations (``Report.write``), training runs (``Run``), studies and traces.

A folder with ``study.json`` is a study's, one with ``results.json`` a benchmark's, one with ``metrics.jsonl`` or ``config.json`` a
run's; any other stands for the JSON files in it, whose content tells what they are. Benchmarks on the same problems become one
evaluation. Anything else is one ValueError.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from unmask.evaluation.evaluate import Report, Row, Stratum
from unmask.report.benchmarks import compare_benchmarks, is_benchmark, read_benchmark
from unmask.report.stored import parse, validate
from unmask.report.study_sections import StudyResult, is_study, read_study
from unmask.report.traces.format import FORMAT, Trace
from unmask.report.traces.reading import from_json
from unmask.runs.bounded import read_bounded
from unmask.runs.run import Run


@dataclass(frozen=True)
class Evaluation:
    """A report, the command that wrote it, if it is known, and the file's name."""

    name: str
    report: Report
    command: str | None


@dataclass(frozen=True)
class Training:
    """A run's folder: its configuration, versions, and metrics, one record per step."""

    name: str
    config: dict[str, Any]
    versions: dict[str, Any]
    metrics: list[dict[str, Any]]


@dataclass(frozen=True)
class Inputs:
    evaluations: list[Evaluation]
    trainings: list[Training]
    traces: list[Trace]
    studies: list[StudyResult] = dataclasses.field(default_factory=list)


def gather(paths: Sequence[Path]) -> Inputs:
    """Read everything that ``paths`` name."""
    if not paths:
        raise ValueError("there is nothing to report: name evaluation files, run folders or traces")
    found, benchmarks = Inputs([], [], []), []
    for path in paths:
        if not path.exists():
            raise ValueError(f"expected an evaluation, a run's folder or a trace at {path}, but there is nothing")
        if path.is_dir() and is_study(path):
            found.studies.append(read_study(path))
        elif path.is_dir() and is_benchmark(path):
            benchmarks.append(read_benchmark(path))
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
    for report in compare_benchmarks(benchmarks):
        found.evaluations.append(Evaluation(report.task, report, None))
    return found


def _file(path: Path, found: Inputs) -> None:
    try:
        value = parse(read_bounded(path))
        if isinstance(value, dict) and value.get("format") == FORMAT:
            found.traces.append(from_json(value))
        elif isinstance(value, dict) and "rows" in value and "denoiser" in value:
            command = value.get("command")
            found.evaluations.append(
                Evaluation(path.stem, report_from_json(value), command if isinstance(command, str) else None)
            )
        else:
            raise ValueError("expected an evaluation (unmask evaluate --json) or a trace (unmask trace)")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def report_from_json(value: Any) -> Report:
    """The report that ``Report.write`` wrote: null is NaN again. What it was written with beside its own fields is ignored."""
    if not isinstance(value, dict) or not isinstance(value.get("rows"), list) or not value["rows"]:
        raise ValueError("rows: expected at least one row")
    value = {**value, "rows": [_restore_row(row) for row in value["rows"]]}
    report = validate(Report, value)
    for nth, row in enumerate(report.rows):
        if len(row.solved) != row.n or not set(row.solved) <= {"0", "1"}:
            raise ValueError(f"rows, {nth}, solved: expected {row.n} characters 0 or 1")
    return report


def _restore_row(row: Any) -> Any:
    strata = row.get("strata") if isinstance(row, dict) else None
    if isinstance(strata, dict):
        row = {**row, "strata": {name: _restore_nan(Stratum, stratum) for name, stratum in strata.items()}}
    return _restore_nan(Row, row)


def _restore_nan(cls: type, value: Any) -> Any:
    """JSON has no NaN: a number that is not known is null."""
    if not isinstance(value, dict):
        return value
    numbers = {name for name, kind in get_type_hints(cls).items() if kind is float}
    return {name: math.nan if item is None and name in numbers else item for name, item in value.items()}


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
