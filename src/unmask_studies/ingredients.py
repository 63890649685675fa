"""Ingredients of the default recipe, one of them changed at a time, for as many denoiser calls and with several seeds.

Relative prices cost a second forward for each position of an order. So trainings without them draw twice as many orders, and calls
are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.denoisers.loading import describe_source
from unmask.evaluation.statistics import paired_bootstrap
from unmask.report.numbers import percent_interval
from unmask.schedulers.loading import describe_policy, load_scheduler
from unmask.tasks.kinds import DEFAULT_PRESET, EvaluationRequest, evaluation_set
from unmask.training.policy.run import PolicyRun, load_run
from unmask_studies.recipes import SETTINGS, Setting
from unmask_studies.reports import evaluate_scheduler, get_denoiser
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.sudoku.ablations import REFERENCE, Ablation
from unmask_studies.tables import Table, TableRow, points_gap
from unmask_studies.training_runs import ensure_run, find_run, read_history, run_name

RECIPE, OTHER_PRICES = "recipe", "other-prices"
NOISY = ("arithmetic",)
"""Tasks for which the recipe chooses relative prices."""
DRAWN = {"objective": "grpo", "rollout_temperature": None}
"""Orders are drawn at the policy's own temperature, by objectives that weigh the draw."""


@dataclass(frozen=True)
class Ingredient:
    """What is changed in the recipe's training and policy."""

    what: str
    training: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)


INGREDIENTS = {
    RECIPE: Ingredient("nearly greedy orders, the price of the truth, half of the states"),
    "hot": Ingredient("orders drawn at temperature 1", {"rollout_temperature": 1.0}),
    "teacher": Ingredient("states along confidence", {"behaviour": "teacher", "teacher": REFERENCE}),
    OTHER_PRICES: Ingredient("relative prices where the recipe does without, and the reverse"),
    "right": Ingredient("fits whether the likeliest token is right", {"label": "right", "relative": False}),
    "all-action": Ingredient("all-action credit, orders drawn at temperature 1", {**DRAWN, "advantage": "all_action"}),
    "correctness": Ingredient(
        "all-action credit with correctness 0.5", {**DRAWN, "advantage": "all_action", "correctness": 0.5}
    ),
    "critic": Ingredient("return to go against the denoiser's own expectation", {**DRAWN, "advantage": "critic"}),
    "passes": Ingredient("two passes over all states instead of a half", {"mu": 2}),
    "warm-start": Ingredient("begins as left to right", policy={"base": "left_to_right"}),
}


@dataclass(frozen=True)
class Ingredients(GridStudy):
    """``tasks`` × ``ingredients`` × ``seeds``: trainings of ``steps`` with ``prompts`` orders each, twice as many where prices are
    not relative, on ``limit`` test problems.

    Tasks are those of ``unmask study recipes`` whose denoisers ship. ``runs`` holds finished runs, called after task, ingredient
    and seed: ``arithmetic-hot@1``.
    """

    tasks: tuple[str, ...] = ("sudoku-9x9-imperfect", *NOISY)
    ingredients: tuple[str, ...] = tuple(INGREDIENTS)
    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int = 40
    prompts: int = 12
    validate: int = 200
    validate_every: int = 20
    limit: int = 500
    runs: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        ready = [name for name, setting in SETTINGS.items() if not (setting.pretrained or setting.data)]
        for option, known in (("tasks", ready), ("ingredients", list(INGREDIENTS))):
            if unknown := [name for name in getattr(self, option) if name not in known]:
                raise ValueError(f"{option}: expected some of {', '.join(known)}, got {unknown[0]!r}")
        if RECIPE not in self.ingredients or not self.seeds or not self.tasks:
            raise ValueError(
                f"expected a task, a seed and the ingredient {RECIPE!r}, with which the others are compared, got "
                f"{self.tasks}, {self.seeds} and {self.ingredients}"
            )

    def axes(self) -> Axes:
        return self.tasks, self.ingredients, self.seeds

    def grid(self) -> list[Key]:
        return [*((task, REFERENCE, None) for task in self.tasks), *super().grid()]

    def recipe(self, task: str, ingredient: str, seed: int) -> PolicyRun:
        """The default recipe with one ingredient changed."""
        setting, change = SETTINGS[task], INGREDIENTS[ingredient]
        config = load_run(setting.task, DEFAULT_PRESET, setting.denoiser)
        relative = change.training.get("relative", (task in NOISY) != (ingredient == OTHER_PRICES))
        own: dict[str, Any] = {"steps": self.steps, "validate": self.validate, "validate_every": self.validate_every}
        own |= {"prompts": self.prompts * (1 if relative else 2), "relative": relative, "relative_above": 1.0}
        own |= {"race": (), "select": "accuracy", "patience": 0}
        return replace(
            config,
            denoiser=setting.denoiser,
            policy=replace(config.policy, **change.policy),
            training=replace(config.training, **(own | dict(change.training)), seed=seed),
            candidates=(),
        )

    def identity(self, key: Key) -> Result:
        task, ingredient = str(key[0]), str(key[1])
        how: Any = None
        if key[2] is not None:
            found = find_run(_name(key), self.runs)
            how = self.recipe(task, ingredient, int(key[2])) if found is None else describe_policy(str(found))
        source = describe_source(SETTINGS[task].denoiser)
        return {"denoiser": source, "of": ingredient, "how": how, "limit": self.limit, "seed": self.seed}

    def measure(self, key: Key, folder: Path) -> Result:
        setting = SETTINGS[str(key[0])]
        model = get_denoiser(setting.denoiser)
        history: dict[str, Any] = {}
        if key[2] is None:
            scheduler = load_scheduler(REFERENCE, model, setting.denoiser)
        else:
            run = ensure_run(_name(key), self.recipe(str(key[0]), str(key[1]), int(key[2])), folder, self.runs)
            scheduler, history = load_scheduler(str(run), model), {"history": read_history(run)}
        report = evaluate_scheduler(self._problems(setting), setting.denoiser, (_name(key), scheduler), self.seed)
        return {"report": report, **history}

    def _problems(self, setting: Setting) -> Any:
        request = EvaluationRequest(None, self.limit, self.seed)
        return evaluation_set(setting.task, setting.denoiser, request, setting.options).task

    def findings(self, results: Results) -> Findings:
        return Findings([self._table(task, results) for task in self.tasks])

    def _table(self, task: str, results: Results) -> Table:
        found = {
            name: Ablation.join(name, name, [one for key, one in results.items() if key[:2] == (task, name)])
            for name in (REFERENCE, *self.ingredients)
        }
        base, rows = found[RECIPE], list[TableRow]()
        for name, row in found.items():
            compared = name not in (RECIPE, REFERENCE)
            rows.append(
                {
                    "ingredient": name,
                    "what is changed": INGREDIENTS[name].what if name in INGREDIENTS else "where all begin but one",
                    "seeds": ", ".join(map(str, row.seeds)),
                    "solved %": percent_interval(*row.limits()),
                    "against the recipe": points_gap(paired_bootstrap(row.share, base.share)) if compared else "",
                    "training calls": "" if row.training_calls is None else f"{row.training_calls:,.0f}",
                }
            )
        note = (
            "Intervals of a row: Wilson's for one seed, Student's t over seeds for several. Differences: paired bootstrap over "
            "problems, each with its mean over seeds; bold where the interval excludes 0. The step that is kept is chosen on "
            f"{self.validate} held-out problems. Training calls: canvases through the denoiser in one training, without validation."
        )
        report = base.reports[0]
        return Table.of(f"{task} on {report.source}, n = {report.n:,}: {self.steps} steps", rows, note)


def _name(key: Key) -> str:
    """Of a run."""
    return run_name(f"{key[0]}-{key[1]}", None if key[2] is None else int(key[2]))
