"""What contributes: orders trained with one thing changed, and the rivals, on the same test puzzles.

A preset that was trained with several seeds is one row: its share solved is the mean over seeds, and the limits of its difference
from the baseline are over puzzles, each of which has its mean over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.evaluation.evaluate import Report
from unmask.evaluation.statistics import Interval, mean_interval, paired_bootstrap, wilson
from unmask.report.gather import report_from_json
from unmask.report.numbers import percent_interval
from unmask.runs.presets import list_presets
from unmask.schedulers.loading import load_scheduler
from unmask_studies.sets import Sets, denoiser_named, evaluated, solved
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.trained import found, history, recipe, run_name, trained

REFERENCE = "confidence"


@dataclass(frozen=True)
class Ablations:
    """``presets`` of ``unmask train`` × ``seeds`` (empty: each preset's own), all for the same ``denoiser``.

    ``runs`` is a folder of runs, each called after its preset, or preset@seed, which also counts without being named in ``seeds``.
    What is missing there is trained in the study's folder, or, without ``train``, left out of the table. ``steps`` and ``validate``
    shorten every training. ``baseline`` is the preset that the others are compared with.
    """

    minutes: float = 0.0
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

    def wanted(self) -> list[tuple[str, int | None]]:
        """Preset and seed of each run: those asked for, and further seeds that ``runs`` holds."""
        out: list[tuple[str, int | None]] = []
        for preset in self.presets:
            seeds: list[int | None] = list(self.seeds) or [None]
            for path in sorted(self.runs.glob(f"{preset}@*")) if self.runs is not None else ():
                seed = path.name.partition("@")[2]
                if seed.isdecimal() and int(seed) not in seeds and found(path.name, self.runs):
                    seeds.append(int(seed))
            out += [(preset, seed) for seed in seeds if self.train or found(run_name(preset, seed), self.runs)]
        return out

    def pieces(self, folder: Path) -> list[Piece]:
        problems = next(iter(self.sets.named().values()))

        def reference() -> Mapping[str, Any]:
            scheduler = load_scheduler(REFERENCE, denoiser_named(self.denoiser), self.denoiser)
            return {"report": evaluated(problems(), self.denoiser, REFERENCE, scheduler, self.seed)}

        def measure(preset: str, seed: int | None) -> Mapping[str, Any]:
            name = run_name(preset, seed)
            config = recipe(preset, seed, self.steps, self.denoiser, self.validate)
            run = trained(name, config, self.runs, folder)
            past = history(run)
            if past["denoiser"] != self.denoiser:
                raise ValueError(f"{run} was trained for {past['denoiser']}, not for {self.denoiser}: name other runs")
            policy = load_scheduler(str(run), denoiser_named(self.denoiser))
            out = {"history": past, "report": evaluated(problems(), self.denoiser, name, policy, self.seed)}
            if past["objective"] == "bernoulli":
                coins = Decoding(pace=load_pace("bernoulli"))
                out["coins"] = evaluated(problems(), self.denoiser, name, policy, self.seed, coins)
            return out

        pieces = [Piece(REFERENCE, reference)]
        pieces += [
            Piece(run_name(preset, seed), lambda a=preset, b=seed: measure(a, b)) for preset, seed in self.wanted()
        ]
        return pieces

    def findings(self, results: Mapping[str, Any]) -> Findings:
        rows = [_one_row(REFERENCE, REFERENCE, [results[REFERENCE]])]
        for preset in self.presets:
            some = [result for name, result in results.items() if name.partition("@")[0] == preset]
            rows += [_one_row(preset, preset, some)] if some else []
            coins = [{**result, "report": result["coins"]} for result in some if "coins" in result]
            rows += [_one_row(f"{preset}, pace bernoulli", preset, coins)] if coins else []
        return Findings([self._table(rows)], {"ablations": _figure(rows)})

    def _table(self, rows: list[OneRow]) -> Table:
        base = next((row for row in rows if row.name == self.baseline), None)
        columns = [
            "preset",
            "what",
            "seeds",
            "solved %",
            f"against {self.baseline}",
            "cells %",
            "calls",
            "training calls",
        ]
        about = {preset.name: preset.description for preset in list_presets("train")}
        cells: list[list[Cell | str]] = []
        for row in rows:
            versus = Cell("")
            if base is not None and row is not base:
                v = paired_bootstrap(row.share, base.share)
                text = f"{100 * v.mean:+.1f} [{100 * v.low:+.1f}, {100 * v.high:+.1f}]"
                versus = Cell(text.replace("-", "−"), v.low > 0 or v.high < 0)
            cells.append(
                [
                    row.name,
                    about.get(row.preset, "the order that all of them begin as"),
                    ", ".join(str(seed) for seed in row.seeds),
                    percent_interval(*row.limits()),
                    versus,
                    f"{100 * row.cells:.2f}",
                    f"{row.calls:.1f}",
                    "" if row.training_calls is None else f"{row.training_calls:,.0f}",
                ]
            )
        report = rows[0].reports[0]
        missing = [preset for preset in self.presets if all(row.preset != preset for row in rows)]
        note = (
            "Limits of a row: Wilson's for one seed, Student's t over seeds for several. Differences: paired bootstrap over "
            "puzzles, each with its mean over seeds; bold where the limits leave out 0. Training calls: canvases through the "
            "denoiser in one training, validation not counted."
            + (f" Not trained: {', '.join(missing)}." if missing else "")
        )
        return Table(f"{report.denoiser} on {report.source}, n = {report.n:,}", columns, cells, note)


@dataclass(frozen=True)
class OneRow:
    """A preset's runs on the same problems; ``share`` [n] is the share of seeds that solve each problem."""

    name: str
    preset: str
    reports: list[Report]
    share: Float[np.ndarray, "n"]
    seeds: list[int]
    calls: float
    cells: float
    training_calls: float | None

    def limits(self) -> tuple[float, float, float]:
        if len(self.reports) > 1:
            interval: Interval = mean_interval([report.rows[0].exact for report in self.reports])
            return interval.mean, max(0.0, interval.low), min(1.0, interval.high)
        n = len(self.share)
        return (float(self.share.mean()), *wilson(int(self.share.sum()), n))


def _one_row(name: str, preset: str, results: list[Any]) -> OneRow:
    reports = [report_from_json(result["report"]) for result in results]
    pasts = [result["history"] for result in results if "history" in result]
    calls = [past["calls"] for past in pasts if past["calls"] is not None]
    return OneRow(
        name=name,
        preset=preset,
        reports=reports,
        share=np.mean([solved(report.rows[0]) for report in reports], axis=0),
        seeds=[past["seed"] for past in pasts],
        calls=float(np.mean([report.rows[0].denoiser_calls for report in reports])),
        cells=float(np.mean([report.rows[0].cell for report in reports])),
        training_calls=float(np.mean(calls)) if calls else None,
    )


def _figure(rows: list[OneRow]) -> Any:
    from unmask.report import figures as drawing

    orders = [row for row in rows if row.name in (REFERENCE, row.preset)]  # a pace of its own is another question
    points = [drawing.share(row.name, row.limits()) for row in orders]
    return drawing.intervals({rows[0].reports[0].denoiser: points}, "solved, %")
