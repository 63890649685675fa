"""The two grids of Sudoku studies: evaluations and decodings, over problem sets and schedulers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.denoisers.loading import list_denoisers
from unmask.evaluation.evaluate import Report
from unmask.schedulers.loading import load_scheduler
from unmask_studies.reports import evaluate_scheduler, get_denoiser, join_reports
from unmask_studies.sets import Decoded, ProblemSet, Sets, decode_boards
from unmask_studies.study import Axes, GridStudy, Key, Result, Results


@dataclass(frozen=True)
class BoardStudy(GridStudy):
    """Problem sets × ``schedulers``; ``data`` are CSV files beside the generated puzzles."""

    schedulers: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "expert", "sas")
    baseline: str = "confidence"
    sets: Sets = field(default_factory=Sets)
    data: tuple[Path, ...] = ()
    seed: int = 0

    @property
    def problems(self) -> dict[str, ProblemSet]:
        return self.sets.by_name(self.data)

    def shared_identity(self, kind: str, key: Sequence[Any]) -> Result | None:
        """Weights in a folder may change under their name: a measurement that uses them has no identity."""
        denoiser, name, scheduler = key
        if denoiser not in list_denoisers() or Path(scheduler).exists():
            return None
        problems = self.problems[name].identity()
        return {"kind": kind, "denoiser": denoiser, "scheduler": scheduler, "problems": problems, "seed": self.seed}


@dataclass(frozen=True)
class EvaluationStudy(BoardStudy):
    """``denoisers`` × problem sets × schedulers: an evaluation of one row each. The others are compared with ``baseline``."""

    denoisers: tuple[str, ...] = ("sudoku-9x9-imperfect", "sudoku-9x9")

    def axes(self) -> Axes:
        return self.denoisers, self.problems, self.schedulers

    def measure(self, key: Key, folder: Path) -> Result:
        denoiser, name, scheduler = map(str, key)
        loaded = load_scheduler(scheduler, get_denoiser(denoiser), denoiser)
        problems = self.problems[name].load()
        return evaluate_scheduler(problems, denoiser, (scheduler, loaded), self.seed)

    def identity(self, key: Key) -> Result | None:
        return self.shared_identity("evaluation", key)

    def report(self, results: Results, denoiser: str, name: str) -> Report:
        return join_reports([results[denoiser, name, scheduler] for scheduler in self.schedulers], self.baseline)


@dataclass(frozen=True)
class DecodingStudy(BoardStudy):
    """Problem sets × schedulers with one ``denoiser``: which cell was revealed when, and the digits."""

    denoiser: str = "sudoku-9x9-imperfect"

    def axes(self) -> Axes:
        return (self.denoiser,), self.problems, self.schedulers

    def measure(self, key: Key, folder: Path) -> Result:
        denoiser, name, scheduler = map(str, key)
        return decode_boards(self.problems[name].load(), denoiser, scheduler, self.seed).write()

    def identity(self, key: Key) -> Result | None:
        return self.shared_identity("decoding", key)

    def decodings(self, results: Results, name: str) -> dict[str, Decoded]:
        return {scheduler: Decoded.read(results[self.denoiser, name, scheduler]) for scheduler in self.schedulers}
