"""SAS beside its rivals on 4×4 and 9×9 boards (tab:sudoku_cross_scale_comparison), all on the same denoiser and sampled orders.

A rival's preset says what it changes in ``base``, which is made for 9×9; on another board the same changes are made to that board's
own recipe. So at each scale every method has the policy, the problems, the number of steps and of sampled orders of that scale, but
for runs that are found finished, whose length is their preset's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.report import figures
from unmask.schedulers.loading import load_scheduler
from unmask_studies import paper_numbers
from unmask_studies.reports import evaluate_scheduler, get_denoiser, join_reports
from unmask_studies.sets import Sets
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Table, TableRow, against_baseline, describe, limits, solved
from unmask_studies.training_runs import ensure_run, load_recipe, read_history, transfer_options


@dataclass(frozen=True)
class Scale:
    """A board's recipe (a preset of ``unmask train``) and its test puzzles. ``steps`` and ``validate`` shorten the training."""

    recipe: str
    sets: Sets = field(default_factory=Sets)
    steps: int | None = None
    validate: int | None = None

    def load_recipe(self, rival: str | None, base: str) -> Any:
        """The scale's own recipe, or the rival's version of it."""
        config = load_recipe(self.recipe, steps=self.steps, validate=self.validate)
        return config if rival is None else transfer_options(load_recipe(rival), load_recipe(base), config)


@dataclass(frozen=True)
class CrossScale(GridStudy):
    """``sas`` is the recipe of each scale as it is; ``rivals`` are presets.

    ``runs`` holds finished 9×9 runs, called after their presets.
    """

    small: Scale = field(default_factory=lambda: Scale("sas-sudoku-4x4-imperfect", Sets(size=4, clues="4-8")))
    large: Scale = field(default_factory=lambda: Scale("ablation-all-action"))
    base: str = "ablation-all-action"
    rivals: tuple[str, ...] = ("rival-upo", "rival-terminal", "rival-jazbec", "rival-where-to-unmask")
    runs: Path | None = None
    seed: int = 0

    @property
    def scales(self) -> dict[str, Scale]:
        return {"4x4": self.small, "9x9": self.large}

    @property
    def methods(self) -> tuple[str, ...]:
        return ("confidence", "sas", *self.rivals)

    def axes(self) -> Axes:
        return self.scales, self.methods

    def measure(self, key: Key, folder: Path) -> Result:
        size, method = map(str, key)
        scale = self.scales[size]
        config = scale.load_recipe(method if method in self.rivals else None, self.base)
        if method == "confidence":
            scheduler, history = load_scheduler(method), {}
        else:
            runs = self.runs if size == "9x9" and scale.steps is None else None
            preset = scale.recipe if method == "sas" else method
            run = ensure_run(preset if runs else f"{size}-{method}", config, folder, runs)
            scheduler, history = load_scheduler(str(run), get_denoiser(config.denoiser)), read_history(run)
        report = evaluate_scheduler(scale.sets.load(), config.denoiser, (method, scheduler), self.seed)
        return {"report": report, "history": history}

    def findings(self, results: Results) -> Findings:
        note = (
            "One training seed. Decoding is sequential and greedy for all. Bold: the paired interval excludes 0. "
            "In the paper UPO runs its own code."
        )
        tables, panels, reports = [], {}, []
        for nth, size in enumerate(self.scales):
            report = join_reports([results[size, method]["report"] for method in self.methods], "sas")
            reports.append(report)
            rows: list[TableRow] = []
            points = panels.setdefault(f"{size}: {report.denoiser}", [])
            for row in report.rows:
                paper = paper_numbers.CROSS_SCALE.get(row.scheduler)
                calls = results[size, row.scheduler]["history"].get("calls")
                rows.append(
                    {
                        "method": row.scheduler,
                        "solved %": solved(row),
                        "paper": f"{paper[nth]:.0f}" if paper else "",
                        "against sas, paired": against_baseline(row),
                        "calls": f"{row.denoiser_calls:.1f}",
                        "training calls": f"{calls:,}" if calls else "",
                    }
                )
                points.append(figures.share(row.scheduler, limits(row), paper=paper[nth] if paper else None))
            tables.append(Table.of(f"{size}: {describe(report)}", rows, note))
        return Findings(tables, {"cross-scale": figures.intervals(panels, "solved, %")}, reports)
