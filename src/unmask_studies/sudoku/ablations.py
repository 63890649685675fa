"""What contributes: policies trained with one thing changed, and the rivals, on the same test puzzles.

A preset that was trained with several seeds is one row: its share solved is the mean over seeds, and the interval of its difference
from the baseline is over puzzles, each of which has its mean over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.evaluation.evaluate import Report
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.report import figures
from unmask.report.gather import report_from_json
from unmask.report.numbers import percent_interval
from unmask.runs.presets import list_presets
from unmask.schedulers.loading import load_scheduler
from unmask_studies.reports import evaluate_scheduler, get_denoiser
from unmask_studies.sets import Sets
from unmask_studies.study import Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Limits, Table, TableRow, count_limits, points_gap
from unmask_studies.training_runs import ensure_run, find_run, load_recipe, read_history, run_name

REFERENCE = "confidence"


@dataclass(frozen=True)
class Ablations(GridStudy):
    """``presets`` of ``unmask train`` × ``seeds`` (empty: each preset's own), all for the same ``denoiser``.

    ``runs`` is a folder of runs, each called after its preset, or preset@seed, which also counts without being named in ``seeds``.
    A missing run is trained in the study's folder, or, without ``train``, omitted from the table. ``steps`` and ``validate``
    shorten every training. ``baseline`` is the preset that the others are compared with.
    """

    denoiser: str = "sudoku-9x9-imperfect"
    presets: tuple[str, ...] = ("ablation-all-action",)
    baseline: str = "ablation-all-action"
    seeds: tuple[int, ...] = ()
    steps: int | None = None
    validate: int | None = None
    sets: Sets = field(default_factory=Sets)
    runs: Path | None = None
    train: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.baseline not in self.presets:
            raise ValueError(f"the baseline {self.baseline!r} is not among the presets: {', '.join(self.presets)}")
        if self.runs is not None and not self.runs.is_dir():
            raise ValueError(f"expected a folder of runs at {self.runs}, but there is none")

    def grid(self) -> list[Key]:
        """The reference, then preset and seed of each run: the requested ones, and further seeds that ``runs`` holds."""
        self.sets.by_name()
        keys: list[Key] = [(REFERENCE, None)]
        for preset in self.presets:
            seeds: list[int | None] = list(self.seeds) or [None]
            for path in sorted(self.runs.glob(f"{preset}@*")) if self.runs is not None else ():
                seed = path.name.partition("@")[2]
                if seed.isdecimal() and int(seed) not in seeds and find_run(path.name, self.runs):
                    seeds.append(int(seed))
            keys += [(preset, seed) for seed in seeds if self.train or find_run(run_name(preset, seed), self.runs)]
        return keys

    def measure(self, key: Key, folder: Path) -> Result:
        preset, seed = str(key[0]), None if key[1] is None else int(key[1])
        problems, model = self.sets.load(), get_denoiser(self.denoiser)
        if preset == REFERENCE:
            reference = (preset, load_scheduler(preset, model, self.denoiser))
            return {"report": evaluate_scheduler(problems, self.denoiser, reference, self.seed)}
        config = load_recipe(preset, seed, self.steps, self.denoiser, self.validate)
        run = ensure_run(run_name(preset, seed), config, folder, self.runs)
        history = read_history(run)
        if history["denoiser"] != self.denoiser:
            raise ValueError(f"{run} was trained for {history['denoiser']}, not for {self.denoiser}: name other runs")
        policy = (run_name(preset, seed), load_scheduler(str(run), model))
        out = {"history": history, "report": evaluate_scheduler(problems, self.denoiser, policy, self.seed)}
        if history["objective"] == "bernoulli":
            pace = Decoding(pace=load_pace("bernoulli"))
            out["bernoulli"] = evaluate_scheduler(problems, self.denoiser, policy, self.seed, pace)
        return out

    def findings(self, results: Results) -> Findings:
        rows = [Ablation.join(REFERENCE, REFERENCE, [results[REFERENCE, None]])]
        for preset in self.presets:
            some = [result for key, result in results.items() if key[0] == preset]
            rows += [Ablation.join(preset, preset, some)] if some else []
            paced = [{**result, "report": result["bernoulli"]} for result in some if "bernoulli" in result]
            rows += [Ablation.join(f"{preset}, pace bernoulli", preset, paced)] if paced else []
        sequential = [row for row in rows if row.name in (REFERENCE, row.preset)]
        points = [figures.share(row.name, row.limits()) for row in sequential]
        figure = figures.intervals({rows[0].reports[0].denoiser: points}, "solved, %")
        return Findings([self._table(rows)], {"ablations": figure})

    def _table(self, rows: Sequence[Ablation]) -> Table:
        base = next((row for row in rows if row.name == self.baseline), None)
        about = {preset.name: preset.description for preset in list_presets("train")}
        cells: list[TableRow] = []
        for row in rows:
            difference = "" if base is None or row is base else points_gap(paired_bootstrap(row.share, base.share))
            cells.append(
                {
                    "preset": row.name,
                    "what": about.get(row.preset, "the scheduler that all of them start as"),
                    "seeds": ", ".join(str(seed) for seed in row.seeds),
                    "solved %": percent_interval(*row.limits()),
                    f"against {self.baseline}": difference,
                    "cells %": f"{100 * row.cells:.2f}",
                    "calls": f"{row.calls:.1f}",
                    "training calls": "" if row.training_calls is None else f"{row.training_calls:,.0f}",
                }
            )
        report = rows[0].reports[0]
        missing = [preset for preset in self.presets if all(row.preset != preset for row in rows)]
        note = (
            "Intervals of a row: Wilson's for one seed, Student's t over seeds for several. Differences: paired bootstrap over "
            "puzzles, each with its mean over seeds; bold where the interval excludes 0. Training calls: canvases through the "
            "denoiser in one training, validation not counted."
            + (f" Not trained: {', '.join(missing)}." if missing else "")
        )
        return Table.of(f"{report.denoiser} on {report.source}, n = {report.n:,}", cells, note)


@dataclass(frozen=True)
class Ablation:
    """A preset's runs on the same problems; ``share`` [n] is the share of seeds that solve each problem."""

    name: str
    preset: str
    reports: list[Report]
    share: Float[np.ndarray, "n"]
    seeds: list[int]
    calls: float
    cells: float
    training_calls: float | None

    @classmethod
    def join(cls, name: str, preset: str, results: Sequence[Any]) -> Ablation:
        reports = [report_from_json(result["report"]) for result in results]
        histories = [result["history"] for result in results if "history" in result]
        calls = [history["calls"] for history in histories if history["calls"] is not None]
        return cls(
            name=name,
            preset=preset,
            reports=reports,
            share=np.mean([report.rows[0].marks for report in reports], axis=0),
            seeds=[history["seed"] for history in histories],
            calls=float(np.mean([report.rows[0].denoiser_calls for report in reports])),
            cells=float(np.mean([report.rows[0].cell for report in reports])),
            training_calls=float(np.mean(calls)) if calls else None,
        )

    def limits(self) -> Limits:
        if len(self.reports) > 1:
            found = mean_interval([report.rows[0].exact for report in self.reports])
            return found.mean, max(0.0, found.low), min(1.0, found.high)
        return count_limits(int(self.share.sum()), len(self.share))
