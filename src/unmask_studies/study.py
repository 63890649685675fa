"""A study: a grid of measurements, each computed once and stored as JSON, and the tables and figures made from them.

    folder/
      config.json, versions.json   as in every run directory; .lock
      pieces/<key>.json            the result of one point of the grid, written when it is complete
      runs/<name>/                 trainings that measurements need, run directories of their own
      study.json, tables.md        at the end: configuration, tables, evaluations; the tables to paste
      <figure>.svg, <figure>.pdf

A study that is killed loses at most the measurement it was in, and of one that trains only what its run had not saved.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from unmask.evaluation.evaluate import Report
from unmask.report.study_sections import FORMAT
from unmask.runs.atomic import atomic_write
from unmask.runs.jsonable import to_jsonable
from unmask.runs.processes import ProcessGroup
from unmask.runs.run import Run
from unmask_studies.tables import Table, to_markdown

Key = tuple[str | int | None, ...]
"""A point of a study's grid. Results are stored and looked up by it."""
Axes = Sequence[Iterable[str | int | None]]
Result = Mapping[str, Any]
"""One measurement, as JSON data."""
Results = Mapping[Key, Any]


@dataclass(frozen=True)
class Findings:
    """The outcome of a study. ``figures`` are matplotlib's, by file name; ``evaluations`` go into a report as they are."""

    tables: list[Table]
    figures: Mapping[str, Any] = field(default_factory=dict)
    evaluations: list[Report] = field(default_factory=list)


@dataclass(frozen=True)
class GridStudy(ABC):
    """``measure`` at every point of ``grid``, then ``findings`` from all results. Subclasses are configured by their fields.

    Of a ``shared`` study every process measures every point together with the others; the result is the first one's.
    """

    shared: ClassVar[bool] = False

    def plan(self) -> list[Table]:
        """What it will cost, if that is known before it starts."""
        return []

    def axes(self) -> Axes:
        """The values of each part of a key; without any, the grid has one point."""
        return ()

    def grid(self) -> list[Key]:
        """The keys in the order of measuring. Raises where the study cannot run: it then leaves no folder behind."""
        return list(self.points())

    def points(self) -> Iterator[Key]:
        """All combinations of the axes."""
        yield from itertools.product(*self.axes())

    @abstractmethod
    def measure(self, key: Key, folder: Path) -> Result:
        """The result at ``key``. Trainings go to ``folder/runs``."""

    def identity(self, key: Key) -> Result | None:
        """All that the result depends on, so that other studies can reuse it; None where that cannot be stated."""
        return None

    @abstractmethod
    def findings(self, results: Results) -> Findings:
        """Tables and figures of all results."""


@dataclass(frozen=True)
class Done:
    """The ``nth`` of ``total`` measurements exists; ``seconds`` is None where it was stored before, or copied."""

    name: str
    nth: int
    total: int
    seconds: float | None


def run_study(
    study: GridStudy,
    folder: str | Path,
    resume: bool = False,
    reuse: Sequence[Path] = (),
    processes: ProcessGroup | None = None,
) -> Iterator[Done]:
    """Measure what ``folder`` lacks, yielding after each point. Results of equal identity in ``reuse`` are copied.

    Of several ``processes`` each calls this for a shared study; the first one owns the folder.
    """
    reusable, grid = _read_reusable(reuse), study.grid()
    _require_distinct_files(grid)
    first = processes is None or processes.is_first
    if first:
        Run.create(folder, study, resume=resume, may_differ=("device",))
    if processes is not None:
        processes.wait()
    run = Run(Path(folder))
    with run.lock() if first else nullcontext():
        if first:
            (run.folder / "pieces").mkdir(exist_ok=True)
        for nth, key in enumerate(grid, 1):
            file, seconds = _file(run.folder, key), None
            missing = not file.exists()
            if processes is not None:  # they must agree
                missing = processes.sum(float(first and missing)) > 0
            if missing:
                identity = to_jsonable(study.identity(key))
                known = None if identity is None else reusable.get(json.dumps(identity, sort_keys=True))
                if known is None:
                    started = time.perf_counter()
                    result = to_jsonable(study.measure(key, run.folder))
                    seconds = time.perf_counter() - started
                    known = {"identity": identity, "seconds": round(seconds, 3), "result": result}
                content = {"key": list(key), **known}
                if first:
                    atomic_write(file, (json.dumps(content, allow_nan=False) + "\n").encode())
            yield Done(", ".join(map(str, key)), nth, len(grid), seconds)


def conclude(study: GridStudy, folder: str | Path, name: str, command: str) -> Findings:
    """Read all results and write ``study.json``, ``tables.md`` and the figures."""
    folder = Path(folder)
    stored = {key: _read(_file(folder, key), key) for key in study.grid()}
    findings = study.findings({key: value["result"] for key, value in stored.items()})
    content = {
        "format": FORMAT,
        "study": name,
        "command": command,
        "config": to_jsonable(study),
        "seconds": {_file(folder, key).stem: value["seconds"] for key, value in stored.items()},
        "tables": to_jsonable(findings.tables),
        "figures": sorted(f"{figure}.svg" for figure in findings.figures),
        "evaluations": to_jsonable(findings.evaluations, finite="null"),
    }
    for figure, drawn in findings.figures.items():
        _save_figure(drawn, folder / figure)
    atomic_write(folder / "tables.md", to_markdown(findings.tables, command).encode())
    atomic_write(folder / "study.json", (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())
    return findings


def require_baseline(baseline: str, schedulers: Sequence[str]) -> None:
    if baseline not in schedulers:
        raise ValueError(f"the baseline {baseline!r} is not among the schedulers: {', '.join(schedulers)}")


def _file(folder: Path, key: Key) -> Path:
    name = "_".join(re.sub(r"[^a-zA-Z0-9.=+@-]+", "_", str(part)) for part in key)
    return folder / "pieces" / f"{name}.json"


def _require_distinct_files(grid: Sequence[Key]) -> None:
    seen: dict[Path, Key] = {}
    for key in grid:
        file = _file(Path(), key)
        if file in seen:
            raise ValueError(f"two measurements would share a file: {seen[file]} and {key}; name each value once")
        seen[file] = key


def _read_reusable(studies: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Results of other studies by their identities."""
    found: dict[str, dict[str, Any]] = {}
    for folder in studies:
        if not (folder / "pieces").is_dir():
            raise ValueError(f"expected a study's folder with its pieces at {folder}, but there is none")
        for file in sorted((folder / "pieces").glob("*.json")):
            stored = _read(file)
            if stored["identity"] is not None:
                del stored["key"]
                found.setdefault(json.dumps(stored["identity"], sort_keys=True), stored)
    return found


def _read(file: Path, key: Key | None = None) -> dict[str, Any]:
    try:
        stored = json.loads(file.read_bytes())
        right = stored.keys() >= {"key", "identity", "seconds", "result"}
        if right and (key is None or stored["key"] == list(key)):
            return stored
    except FileNotFoundError:
        raise ValueError(f"the study lacks {file.name} in {file.parent}: run it again with --resume") from None
    except (ValueError, AttributeError):
        pass
    raise ValueError(f"{file} is damaged: delete it, and run the study again with --resume")


def _save_figure(figure: Any, place: Path) -> None:
    """As SVG and as PDF."""
    from unmask.report.svg import save

    for ending, undated in (("svg", {"Date": None}), ("pdf", {"CreationDate": None})):
        atomic_write(place.with_name(f"{place.name}.{ending}"), save(figure, ending, metadata=undated))
