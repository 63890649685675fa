"""Kinds of policies, from the paper's to the general one, an ingredient at a time: learning curves, and the same test puzzles.

All are trained by the recipe of ``unmask train`` without a preset, for the same number of steps and of orders in each; a row says
what it has that the rows before it lack. The first has the paper's objective besides its policy, so that groups of its orders are
of one puzzle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.denoisers.loading import describe_source
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.report import figures
from unmask.report.numbers import percent, percent_interval
from unmask.schedulers.loading import describe_policy, load_scheduler
from unmask.tasks.kinds import DEFAULT_PRESET
from unmask.training.policy.run import PolicyRun, load_run
from unmask_studies.reports import evaluate_scheduler, get_denoiser
from unmask_studies.sets import Sets
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.sudoku.ablations import REFERENCE, Ablation
from unmask_studies.tables import Limits, Table, TableRow, points_gap
from unmask_studies.training_runs import EVEN_PASSES, ensure_run, find_run, read_curve, read_history, run_name

AS_PUBLISHED = {"objective": "grpo", "advantage": "trajectory", "group": 6, "rollout_temperature": None, "mu": 1}
"""The paper's objective: returns of orders drawn at the policy's temperature, compared within a group."""
STATISTICS = {"kind": "mlp", "width": 64, "tokens": False}
KINDS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "mlp-grpo": ("statistics of a position, the paper's objective", STATISTICS, AS_PUBLISHED),
    "mlp": ("the price of the truth in greedy states", STATISTICS, {}),
    "hidden": ("the denoiser's state of a position", {"kind": "hidden", "width": 64}, {}),
    "transformer": ("attention among statistics of positions", {"kind": "transformer", "width": 32}, {}),
    "blocks": ("blocks copied from the denoiser, on its states and all prices", {"token_width": 0}, {}),
    "general": ("a vector for every position and token, the denoiser's attention", {}, {}),
}
"""What each brings, and how it differs from the default recipe's policy and training."""


@dataclass(frozen=True)
class Kinds(GridStudy):
    """``kinds`` × ``seeds``: trainings of ``steps``, validated on ``validate`` puzzles every ``validate_every`` steps.

    ``prompts`` are the orders of a step, the recipe's number if None; ``runs`` holds finished runs, called after kind and seed:
    ``mlp@1``.
    """

    denoiser: str = "sudoku-9x9-imperfect"
    kinds: tuple[str, ...] = tuple(KINDS)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 150
    validate: int = 200
    validate_every: int = 25
    prompts: int | None = None
    sets: Sets = field(default_factory=Sets)
    runs: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown or not self.kinds or not self.seeds:
            raise ValueError(
                f"expected kinds among {', '.join(KINDS)} and at least one seed, got {self.kinds} and {self.seeds}"
            )

    def axes(self) -> Axes:
        return self.kinds, self.seeds

    def grid(self) -> list[Key]:
        return [(REFERENCE, None), *super().grid()]

    def recipe(self, kind: str, seed: int) -> PolicyRun:
        """The default recipe with this kind's changes."""
        _, policy, training = KINDS[kind]
        config = load_run(preset=DEFAULT_PRESET, denoiser=self.denoiser)
        size = {"prompts": max(1, (self.prompts or config.training.prompts) // training.get("group", 1))}
        own: dict[str, Any] = {"steps": self.steps, "validate": self.validate, "validate_every": self.validate_every}
        own |= {"race": (), "select": "accuracy", "patience": 0, **EVEN_PASSES}
        return replace(
            config,
            denoiser=self.denoiser,
            policy=replace(config.policy, **policy),
            training=replace(config.training, **(own | size | training), seed=seed),
            candidates=(),
        )

    def identity(self, key: Key) -> Result:
        kind, seed = str(key[0]), key[1]
        found = None if seed is None else find_run(run_name(kind, int(seed)), self.runs)
        how = None if seed is None else self.recipe(kind, int(seed)) if found is None else describe_policy(str(found))
        return {
            "denoiser": describe_source(self.denoiser),
            "of": kind,
            "how": how,
            "sets": self.sets,
            "seed": self.seed,
        }

    def measure(self, key: Key, folder: Path) -> Result:
        problems, model = self.sets.load(), get_denoiser(self.denoiser)
        if key[0] == REFERENCE:
            reference = (REFERENCE, load_scheduler(REFERENCE, model, self.denoiser))
            return {"report": evaluate_scheduler(problems, self.denoiser, reference, self.seed)}
        kind, seed = str(key[0]), int(key[1] or 0)
        run = ensure_run(run_name(kind, seed), self.recipe(kind, seed), folder, self.runs)
        policy = (run_name(kind, seed), load_scheduler(str(run), model))
        report = evaluate_scheduler(problems, self.denoiser, policy, self.seed)
        return {"history": read_history(run), "curve": read_curve(run), "report": report}

    def findings(self, results: Results) -> Findings:
        of = lambda kind: [result for key, result in results.items() if key[0] == kind]  # noqa: E731
        reference = Ablation.join(REFERENCE, REFERENCE, of(REFERENCE))
        start = {"kind": REFERENCE, "what it has": "", "seeds": "", "solved %": percent_interval(*reference.limits())}
        rows: list[TableRow] = [
            start | {"against confidence": "", "validation, start and best": "", "training calls": ""}
        ]
        series: dict[str, list[tuple[float, figures.Point]]] = {}
        for kind in self.kinds:
            found = of(kind)
            row = Ablation.join(kind, kind, found)
            series[kind] = [(calls, figures.share("", limits)) for calls, limits in _mean_curve(found)]
            rows.append(
                {
                    "kind": kind,
                    "what it has": KINDS[kind][0],
                    "seeds": ", ".join(map(str, row.seeds)),
                    "solved %": percent_interval(*row.limits()),
                    "against confidence": points_gap(paired_bootstrap(row.share, reference.share)),
                    "validation, start and best": _ends(found),
                    "training calls": f"{row.training_calls:,.0f}",
                }
            )
        note = (
            "Intervals of a row: Wilson's for one seed, Student's t over seeds for several. Differences: paired bootstrap over "
            "puzzles, each with its mean over seeds; bold where the interval excludes 0. Validation: held-out puzzles that also "
            "choose the step, means over seeds. Training calls: canvases through the denoiser in one training, without validation."
        )
        report = reference.reports[0]
        table = Table.of(f"{report.denoiser} on {report.source}, n = {report.n:,}: {self.steps} steps", rows, note)
        curves = figures.curves(series, "denoiser calls in training", "held-out puzzles solved, %")
        return Findings([table], {"kinds": curves})


def _mean_curve(found: list[Any]) -> list[tuple[float, Limits]]:
    """Calls and share solved at each validation: the mean over seeds, and the least and the greatest of them."""
    shares = np.array([[share for _, share in result["curve"]] for result in found])
    calls = np.array([[calls for calls, _ in result["curve"]] for result in found]).mean(0)
    limits = zip(shares.mean(0), shares.min(0), shares.max(0), strict=True)
    return [
        (float(at), (float(mean), float(low), float(high))) for at, (mean, low, high) in zip(calls, limits, strict=True)
    ]


def _ends(found: list[Any]) -> str:
    start = mean_interval([result["curve"][0][1] for result in found]).mean
    best = mean_interval([max(share for _, share in result["curve"]) for result in found]).mean
    return f"{percent(start)} → {percent(best)}"
