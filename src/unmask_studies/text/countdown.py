"""Countdown: schedulers on generated problems and on published test files, none of which was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.report.tables import is_oracle
from unmask.tasks.countdown import Countdown, read_problems
from unmask_studies.plots import plot_schedulers
from unmask_studies.reports import join_reports
from unmask_studies.study import Axes, Findings, Result, Results, require_baseline
from unmask_studies.tables import LEARNED, scheduler_table
from unmask_studies.text.study import Models, TextStudy, policy_of

TASK = Countdown.kind
read_file = cache(read_problems)


@dataclass(frozen=True)
class CountdownSchedulers(TextStudy):
    """Generated problems of the test split and those of ``data``, JSON lines, × ``schedulers`` and the learned policy."""

    schedulers: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "gt_logp")
    baseline: str = "confidence"
    data: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        require_baseline(self.baseline, self.schedulers)

    @property
    def rows(self) -> list[str]:
        """The schedulers of the table: oracles come last."""
        return sorted((*self.schedulers, LEARNED), key=is_oracle)

    @property
    def files(self) -> dict[str, Path | None]:
        """Name of a problem set → its file; the generated set has none."""
        found: dict[str, Path | None] = {"generated": None} if self.sets.count else {}
        for path in self.data:
            if not path.is_file():
                raise ValueError(f"expected a file of JSON lines, but there is none at {path}")
            if path.stem in found:
                raise ValueError(f"two sets of problems are called {path.stem}: rename the file")
            found[path.stem] = path
        return found

    def needs(self) -> tuple[Sequence[str], Sequence[str]]:
        return [TASK], [policy_of(TASK)]

    def has_problems(self) -> bool:
        return bool(self.files)

    def axes(self) -> Axes:
        return self.files, self.rows

    def measure_with(self, models: Models, *key: Any) -> Result:
        name, scheduler = key
        file = self.files[name]
        problems = None if file is None else read_file(file, self.sets.limit)
        return models.evaluate(TASK, scheduler, Decoding(), problems)

    def findings(self, results: Results) -> Findings:
        joined = [join_reports([results[name, row] for row in self.rows], self.baseline) for name in self.files]
        reports = [replace(report, denoiser=TASK) for report in joined]
        tables = [scheduler_table(report, {}, "equations") for report in reports]
        return Findings(tables, {"countdown": plot_schedulers(reports, {})}, reports)
