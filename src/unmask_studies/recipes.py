"""One recipe for every task: what ``unmask train`` without a preset learns, beside the best preset that was made for each task.

Both are trained for the same denoiser and measured on the same test problems, paired. Antibodies have no right answer, and are
measured by −log p of the true residues along the order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float

from unmask.denoisers.hub import digest
from unmask.denoisers.loading import describe_source
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.report.gather import report_from_json
from unmask.report.numbers import percent_interval
from unmask.runs.presets import change_training
from unmask.runs.run import Run
from unmask.schedulers.loading import describe_policy, list_policies, load_scheduler
from unmask.schedulers.policy import OrderPolicy
from unmask.tasks.kinds import DEFAULT_PRESET, EvaluationRequest, evaluation_set
from unmask.training.policy.run import PolicyRun, load_run
from unmask.training.policy.trials import read_choice
from unmask.training.policy.validation import best_step
from unmask_studies.antibody.study import measure_antibodies
from unmask_studies.antibody.task import AntibodyData, AntibodyTask
from unmask_studies.reports import evaluate_scheduler, get_denoiser
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Table, TableRow, count_limits, gap, points_gap, spread
from unmask_studies.training_runs import ensure_run, find_run, load_pretraining, load_recipe, read_history

REFERENCE, PRESET, RECIPE = "confidence", "preset", "recipe"
SHIPPED = "shipped"


@dataclass(frozen=True)
class Setting:
    """A task: its denoiser, shipped or trained by the preset of ``unmask pretrain`` of that name, and the preset of its best order.

    ``by_recipe`` is the order that ships from the default recipe. ``data`` and ``train`` are the fields of the study that name
    files to measure on and to train on; generated tasks need none. ``options`` are those of the test problems.
    """

    task: str
    denoiser: str
    preset: str
    pretrained: bool = False
    by_recipe: str = ""
    data: str = ""
    train: str = ""
    options: Mapping[str, Any] | None = None


SETTINGS = {
    "sudoku-9x9-imperfect": Setting(
        "sudoku",
        "sudoku-9x9-imperfect",
        "sas-sudoku-9x9-imperfect",
        by_recipe="sas-general-sudoku-9x9-imperfect",
        options={"clues": "rao"},
    ),
    "sudoku-9x9": Setting("sudoku", "sudoku-9x9", "sas-sudoku-9x9", options={"clues": "rao"}),
    "sudoku-4x4-imperfect": Setting("sudoku", "sudoku-4x4-imperfect", "sas-sudoku-4x4-imperfect"),
    "sudoku-4x4": Setting("sudoku", "sudoku-4x4", "sas-sudoku-4x4"),
    "arithmetic": Setting("arithmetic", "arithmetic", "sas-arithmetic", by_recipe="sas-arithmetic"),
    "code": Setting("code", "code", "sas-code", pretrained=True),
    "ordered": Setting("ordered", "ordered", "sas-ordered", pretrained=True),
    "countdown": Setting("countdown", "countdown", "sas-countdown", pretrained=True),
    "reactions": Setting("reaction", "models/rxnmapper", "sas-rxnmapper", data="reactions", train="reactions_train"),
    "antibodies-heavy": Setting(
        "antibody", "models/sapiens-vh", "sas-antibody-sapiens-vh", data="heavy", train="heavy"
    ),
    "antibodies-light": Setting(
        "antibody", "models/sapiens-vl", "sas-antibody-sapiens-vl", data="light", train="light"
    ),
}


@dataclass(frozen=True)
class Recipes(GridStudy):
    """``tasks`` of the table, ``limit`` test problems of each. Tasks whose files are not named are left out.

    ``reactions`` and ``reactions_train`` are CSV files of reactions, ``heavy`` and ``light`` of antibody chains, ``models`` the
    folder of published denoisers. ``runs`` holds finished runs: denoisers, and orders called ``sas-code`` or, by the default
    recipe, ``recipe-code``; what ships is not trained again. ``steps``, ``prompts`` and ``validate`` make
    trainings shorter, ``samples`` those of denoisers.
    """

    tasks: tuple[str, ...] = tuple(SETTINGS)
    reactions: Path | None = None
    reactions_train: Path | None = None
    heavy: Path | None = None
    light: Path | None = None
    models: Path = Path("models")
    runs: Path | None = None
    limit: int = 1000
    steps: int | None = None
    prompts: int | None = None
    validate: int | None = None
    samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if unknown := [task for task in self.tasks if task not in SETTINGS]:
            raise ValueError(f"no task {unknown[0]!r}: expected some of {', '.join(SETTINGS)}")
        if self.limit < 2:
            raise ValueError(f"limit must be at least 2, got {self.limit}")

    def axes(self) -> Axes:
        return [task for task in self.tasks if self._has_files(SETTINGS[task])], (REFERENCE, PRESET, RECIPE)

    def grid(self) -> list[Key]:
        found = super().grid()
        if not found:
            needed = sorted({one for task in self.tasks for one in (SETTINGS[task].data, SETTINGS[task].train) if one})
            raise ValueError(f"there is nothing to learn: name files with {', '.join(map(_option, needed))}")
        for task in dict.fromkeys(str(key[0]) for key in found):
            setting = SETTINGS[task]
            place = self._denoiser(setting)
            if "/" in setting.denoiser and not Path(place or "").is_dir():
                raise ValueError(
                    f"there is no {place}: run unmask models {Path(setting.denoiser).name} --out {place} first"
                )
        return found

    def measure(self, key: Key, folder: Path) -> Result:
        name, row = map(str, key)
        setting = SETTINGS[name]
        denoiser = self._ensure_denoiser(setting, folder)
        ready = self._find_ready(setting, row)
        run = (
            None
            if ready
            else ensure_run(self._run_name(setting, row), self.recipe(setting, row, denoiser), folder, self.runs)
        )
        scheduler = load_scheduler(ready or str(run), get_denoiser(denoiser), denoiser)
        request = EvaluationRequest(self._file(setting.data), self.limit, self.seed)
        values: dict[str, Any]
        if setting.task == AntibodyData.kind:
            data = AntibodyData(file=str(request.data))
            held_out = data.problems(get_denoiser(denoiser), denoiser).held_out(self.limit, "test")
            values = {"nll": measure_antibodies(cast(AntibodyTask, held_out), scheduler, self.seed)["nll"]}
        else:
            task = evaluation_set(setting.task, denoiser, request, setting.options).task
            report = report_from_json(evaluate_scheduler(task, denoiser, (row, scheduler), self.seed))
            values = {"exact": report.rows[0].marks, "calls": report.rows[0].denoiser_calls}
        return values | ({} if run is None else {"history": describe_training(run)})

    def identity(self, key: Key) -> Result | None:
        name, row = map(str, key)
        setting = SETTINGS[name]
        denoiser = self._denoiser(setting)
        if denoiser is None:
            return None  # it is another one wherever it is trained
        order = self._find_ready(setting, row) or find_run(self._run_name(setting, row), self.runs)
        how = self.recipe(setting, row, "") if order is None else describe_policy(str(order))
        files = [path for path in (self._file(setting.data), self._file(setting.train)) if path is not None]
        return {
            "denoiser": describe_source(denoiser),
            "how": how,
            "files": digest(files),
            "options": setting.options,
            "limit": self.limit,
            "seed": self.seed,
        }

    def recipe(self, setting: Setting, row: str, denoiser: str) -> PolicyRun:
        """The training of a preset, or the default recipe's."""
        config = (
            load_recipe(setting.preset) if row == PRESET else load_run(setting.task, DEFAULT_PRESET, setting.denoiser)
        )
        size = {"prompts": self.prompts, "validate": self.validate, "steps": self.steps}
        config = change_training(config, **size, validate_every=self.steps)
        file = self._file(setting.train)
        data = config.data if file is None else config.data.with_file(str(file))
        return replace(config, denoiser=denoiser, data=data)

    def findings(self, results: Results) -> Findings:
        rows: list[TableRow] = []
        for name in dict.fromkeys(str(key[0]) for key in results):
            start, preset, recipe = (results[name, row] for row in (REFERENCE, PRESET, RECIPE))
            likely = "nll" in start
            of = lambda result: np.array(result["nll" if likely else "exact"], float)  # noqa: B023, E731
            difference = paired_bootstrap(of(recipe), of(preset))
            rows.append(
                {
                    "task": name,
                    "n": f"{len(of(start)):,}",
                    "measured": "−log p, nats" if likely else "right, %",
                    "confidence": _show(of(start), likely),
                    "best preset": _show(of(preset), likely),
                    "default recipe": _show(of(recipe), likely),
                    "recipe against preset, paired": gap(difference) if likely else points_gap(difference),
                    "recipe against confidence, paired": (gap if likely else points_gap)(
                        paired_bootstrap(of(recipe), of(start))
                    ),
                    "policy, kept after step": _describe(recipe),
                    "training calls, preset and recipe": " and ".join(map(_count_calls, (preset, recipe))),
                }
            )
        note = (
            "Differences are paired; bold: the 95 % interval excludes 0. Of −log p less is better. Kept after step: the one "
            "that was best on held-out problems, 0 if that was the start or a heuristic. Training calls: canvases through "
            "the denoiser, validations and trials aside; shipped: the order that ships, trained so. One training seed."
        )
        title = f"The default recipe and the best preset of each task, seed {self.seed}"
        return Findings([Table.of(title, rows, note)])

    def _has_files(self, setting: Setting) -> bool:
        """Are its files named?"""
        return all(getattr(self, one) is not None for one in (setting.data, setting.train) if one)

    def _file(self, field: str) -> Path | None:
        return getattr(self, field) if field else None

    def _run_name(self, setting: Setting, row: str) -> str:
        return setting.preset if row == PRESET else setting.preset.replace("sas", RECIPE, 1)

    def _find_ready(self, setting: Setting, row: str) -> str | None:
        """The scheduler of a row that needs no training: confidence, or an order that ships, which the preset or the recipe has
        trained."""
        if row == REFERENCE:
            return REFERENCE
        by_preset = "" if setting.preset == setting.by_recipe else setting.preset
        name = by_preset if row == PRESET else setting.by_recipe
        found = find_run(self._run_name(setting, row), self.runs)
        return name if self.steps is None and found is None and name in list_policies() else None

    def _denoiser(self, setting: Setting) -> str | None:
        """The name or the folder of the task's denoiser, None where it is still to be trained."""
        if setting.pretrained:
            found = find_run(setting.denoiser, self.runs, "denoiser")
            return None if found is None else str(found)
        return str(self.models / Path(setting.denoiser).name) if "/" in setting.denoiser else setting.denoiser

    def _ensure_denoiser(self, setting: Setting, folder: Path) -> str:
        pretraining = lambda: load_pretraining(setting.denoiser, self.samples)  # noqa: E731
        return self._denoiser(setting) or str(ensure_run(setting.denoiser, pretraining(), folder))


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def describe_training(run: Path) -> dict[str, Any]:
    """What it cost, which policy it has chosen, and after which step the policy is kept."""
    policy = cast(OrderPolicy, load_scheduler(str(run))).config
    choice = read_choice(Run(run))
    tried = {} if choice is None else dict(choice.scores)
    kept = best_step(Run(run).metrics())
    return read_history(run) | {"kind": policy.kind, "base": policy.base, "kept": kept, "tried": tried}


def _count_calls(result: Result) -> str:
    return f"{result['history']['calls']:,}" if "history" in result else SHIPPED


def _show(values: Float[np.ndarray, "n"], likely: bool) -> str:
    return spread(mean_interval(values)) if likely else percent_interval(*count_limits(int(values.sum()), len(values)))


def _describe(result: Result) -> str:
    if "history" not in result:
        return SHIPPED
    history: Mapping[str, Any] = result["history"]
    name = history["kind"] if history["base"] == REFERENCE or history["kept"] else history["base"]
    return f"{name}, {history['kept']}"
