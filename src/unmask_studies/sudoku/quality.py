"""Where the order matters, and where it stops: what a learned policy gains on denoisers from barely trained to nearly perfect.

The denoisers differ only in how long they were trained. For each, a policy is trained from the same short preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.evaluation.evaluate import Report
from unmask.report import figures
from unmask.schedulers.loading import load_scheduler
from unmask_studies.reports import evaluate_scheduler, get_denoiser, join_reports
from unmask_studies.sets import Sets
from unmask_studies.study import Findings, GridStudy, Key, Result, Results, require_baseline
from unmask_studies.tables import LEARNED, Table, TableRow, against_baseline, label, limits, solved
from unmask_studies.training_runs import ensure_run, load_pretraining, load_recipe, read_history

TRAINED = ("denoiser", "policy")


@dataclass(frozen=True)
class Quality(GridStudy):
    """A denoiser of ``denoiser_preset`` for each number of ``samples``, a policy of ``policy_preset`` for each denoiser."""

    denoiser_preset: str = "sudoku-9x9-imperfect"
    samples: tuple[int, ...] = (3200, 5120, 7040, 12800, 64000)
    policy_preset: str = "demo"
    policy_steps: int | None = None
    validate: int | None = None
    schedulers: tuple[str, ...] = ("left_to_right", "confidence", "margin", "expert", "gt_logp")
    baseline: str = "confidence"
    sets: Sets = field(default_factory=lambda: Sets(generated=500))
    seed: int = 0

    def __post_init__(self) -> None:
        require_baseline(self.baseline, self.schedulers)
        if not self.samples or list(self.samples) != sorted(set(self.samples)):
            raise ValueError(f"samples must be different numbers, the fewest first, got {self.samples}")

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.schedulers, LEARNED)

    def grid(self) -> list[Key]:
        self.sets.by_name()
        return [(samples, what) for samples in self.samples for what in (*TRAINED, *self.rows)]

    def measure(self, key: Key, folder: Path) -> Result:
        samples, what = key
        denoiser, policy = f"denoiser-{samples}", f"policy-{samples}"
        place = str(folder / "runs" / denoiser)
        if what == "denoiser":
            ensure_run(denoiser, load_pretraining(self.denoiser_preset, int(str(samples))), folder)
            return {"samples": samples}
        if what == "policy":
            config = load_recipe(self.policy_preset, None, self.policy_steps, place, self.validate)
            return read_history(ensure_run(policy, config, folder))
        name = str(folder / "runs" / policy) if what == LEARNED else str(what)
        scheduler = (str(what), load_scheduler(name, get_denoiser(place), place))
        return evaluate_scheduler(self.sets.load(), place, scheduler, self.seed)

    def findings(self, results: Results) -> Findings:
        reports = {}
        for samples in self.samples:
            report = join_reports([results[samples, row] for row in self.rows], self.baseline)
            reports[samples] = replace(report, denoiser=f"{self.denoiser_preset}, {samples:,} samples")
        return Findings([self._table(reports)], {"quality": self._figure(reports)}, list(reports.values()))

    def _table(self, reports: Mapping[int, Report]) -> Table:
        rows: list[TableRow] = []
        for samples, report in reports.items():
            shares = {f"{label(row.scheduler)}, solved %": solved(row) for row in report.rows}
            gain = against_baseline(report.row(LEARNED))
            rows.append({"boards trained on": f"{samples:,}", **shares, f"learned against {self.baseline}": gain})
        one = next(iter(reports.values()))
        title = f"{self.denoiser_preset} trained for so long, on {one.source}, n = {one.n:,}, seed {one.seed}"
        note = (
            f"Each policy is trained by the preset {self.policy_preset}. Bold: the paired interval excludes 0. The paper has no "
            "such table; its remark that a perfect denoiser makes the order irrelevant is the last row's limit."
        )
        return Table.of(title, rows, note)

    def _figure(self, reports: Mapping[int, Report]) -> Any:
        shares = {
            label(name): [figures.share(f"{n:,}", limits(report.row(name))) for n, report in reports.items()]
            for name in self.rows
        }
        gains = {n: report.row(LEARNED).versus for n, report in reports.items()}
        gain = [figures.share(f"{n:,}", (v.difference, v.low, v.high)) for n, v in gains.items() if v is not None]
        difference = f"gain of the learned policy over {self.baseline}"
        panels = {"solved": shares, difference: {LEARNED: gain}}
        return figures.lines(panels, "boards the denoiser was trained on", ["solved, %", "points"], [difference])
