"""SAS beside its rivals on 4×4 and 9×9 boards (tab:sudoku_cross_scale_comparison), all on the same denoiser and sampled orders.

A rival's preset says what it changes in ``base``, which is made for 9×9; on another board the same changes are made to that board's
own recipe. So at each scale every method has the policy, the problems, the number of steps and of sampled orders of that scale, but
for runs that are found finished, whose length is their preset's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from unmask.report.numbers import percent_interval
from unmask.schedulers.loading import load_scheduler
from unmask.training.policy.run import Learn
from unmask_studies import paper_numbers as paper
from unmask_studies.sets import ProblemSet, Sets, denoiser_named, evaluated, joined
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import against
from unmask_studies.trained import history, recipe, trained

LENGTH = ("steps", "validate", "validate_every", "save_every", "seed")
"""What a scale decides, not a method."""


def transferred(rival: Learn, base: Learn, recipe: Learn) -> Learn:
    """``recipe`` with the training options in which ``rival`` differs from ``base``; the length stays the recipe's."""
    changed = {
        option.name: getattr(rival.training, option.name)
        for option in fields(rival.training)
        if option.name not in LENGTH and getattr(rival.training, option.name) != getattr(base.training, option.name)
    }
    return replace(recipe, training=replace(recipe.training, **changed))


@dataclass(frozen=True)
class Scale:
    """A board's recipe (a preset of ``unmask train``) and its test puzzles. ``steps`` and ``validate`` shorten the training."""

    recipe: str
    sets: Sets = field(default_factory=Sets)
    steps: int | None = None
    validate: int | None = None

    def learn(self, rival: str | None, base: str) -> Learn:
        """The scale's own recipe, or what a rival makes of it."""
        config = recipe(self.recipe, steps=self.steps, validate=self.validate)
        return config if rival is None else transferred(recipe(rival), recipe(base), config)


@dataclass(frozen=True)
class CrossScale:
    """``sas`` is the recipe of each scale as it is; ``rivals`` are presets.

    ``runs`` holds finished 9×9 runs, called after their presets.
    """

    minutes: float = 0.0
    small: Scale = field(default_factory=lambda: Scale("sas-sudoku-4x4-imperfect", Sets(size=4, clues="4-8")))
    large: Scale = field(default_factory=lambda: Scale("ablation-all-action"))
    base: str = "ablation-all-action"
    rivals: tuple[str, ...] = ("rival-upo", "rival-terminal", "rival-jazbec", "rival-where-to-unmask")
    runs: Path | None = None
    seed: int = 0

    def pieces(self, folder: Path) -> list[Piece]:
        def measure(scale: Scale, size: str, method: str, problems: ProblemSet) -> Mapping[str, Any]:
            config = scale.learn(method if method in self.rivals else None, self.base)
            if method == "confidence":
                order = load_scheduler("confidence")
                past = {}
            else:
                usual = scale.recipe if method == "sas" else method
                there = self.runs if size == "9x9" and scale.steps is None else None
                run = trained(usual if there else f"{size}-{method}", config, there, folder)
                order, past = load_scheduler(str(run), denoiser_named(config.denoiser)), history(run)
            return {"report": evaluated(problems(), config.denoiser, method, order, self.seed), "history": past}

        pieces = []
        for size, scale in self._scales().items():
            problems = next(iter(scale.sets.named().values()))
            for method in self._methods():
                pieces.append(
                    Piece(f"{size}: {method}", lambda a=scale, b=size, c=method, d=problems: measure(a, b, c, d))
                )
        return pieces

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        tables, panels, reports = [], {}, []
        for nth, size in enumerate(self._scales()):
            some = {method: results[f"{size}: {method}"] for method in self._methods()}
            report = joined([result["report"] for result in some.values()], "sas")
            reports.append(report)
            rows: list[list[Cell | str]] = []
            points = []
            for row in report.rows:
                said, calls = paper.CROSS_SCALE.get(row.scheduler), some[row.scheduler]["history"].get("calls")
                rows.append(
                    [
                        row.scheduler,
                        percent_interval(row.exact, row.exact_low, row.exact_high),
                        f"{said[nth]:.0f}" if said else "",
                        against(row),
                        f"{row.denoiser_calls:.1f}",
                        f"{calls:,}" if calls else "",
                    ]
                )
                limits = (row.exact, row.exact_low, row.exact_high)
                points.append(drawing.share(row.scheduler, limits, paper=said[nth] if said else None))
            columns = ["method", "solved %", "paper", "against sas, in pairs", "calls", "training calls"]
            title = f"{size}: {report.denoiser} on {report.source}, n = {report.n:,}, seed {report.seed}"
            note = (
                "One training seed. Decoding is sequential and greedy for all. Bold: the paired interval leaves out 0. "
                "In the paper UPO runs its own code."
            )
            tables.append(Table(title, columns, rows, note))
            panels[f"{size}: {report.denoiser}"] = points
        return Findings(tables, {"cross-scale": drawing.intervals(panels, "solved, %")}, reports)

    def _scales(self) -> dict[str, Scale]:
        return {"4x4": self.small, "9x9": self.large}

    def _methods(self) -> tuple[str, ...]:
        return ("confidence", "sas", *self.rivals)
