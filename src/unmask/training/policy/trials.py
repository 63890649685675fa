"""A short race of recipes: each candidate is trained for a few steps, and the one that validates best is trained to its end.

No recipe is best for every denoiser, and nothing tells beforehand which one is: a policy that goes on from the denoiser's states
learns an order of linked sums in ten steps and nothing about reactions; a second opinion, the other way round. So both are tried.
Trials are run directories, ``trials/NAME`` of the run's own. They have the learning rates of the whole training, and are
resumed like any run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from unmask.runs.atomic import atomic_write
from unmask.runs.jsonable import format_json, read_json
from unmask.runs.run import Run
from unmask.schedulers.config import PolicyConfig
from unmask.training.policy.config import PolicyTraining

FOLDER = "trials"
CHOICE = "choice.json"
SHARED = ("steps", "validate", "validate_every", "save_every", "select", "race", "at_once", "mixed_precision", "seed")
"""Options of a training that all candidates take from the run."""
MEASURES = ("accuracy", "nll")


@dataclass(frozen=True)
class Recipe:
    """A policy and how it is trained."""

    policy: PolicyConfig
    training: PolicyTraining

    def adopt(self, training: PolicyTraining) -> Recipe:
        """This recipe with the length, the validation and the seed of ``training``."""
        shared = {option: getattr(training, option) for option in SHARED}
        return replace(self, training=replace(self.training, **shared))

    def select_by(self, measure: str) -> Recipe:
        return replace(self, training=replace(self.training, select=measure))

    def shorten(self, steps: int) -> Recipe:
        """Its trial: validated before the first step and after ``steps``, at the learning rates of the whole training."""
        return replace(self, training=replace(self.training, validate_every=steps, race=()))


@dataclass(frozen=True)
class Trial:
    """A candidate's trial has come to ``step`` of ``steps``."""

    name: str
    step: int
    steps: int


@dataclass(frozen=True)
class Choice:
    """What validation says of every candidate after its trial, by ``measure``, and the one that is trained.

    ``measure`` is accuracy or nll, or empty where there was nothing to try.
    """

    measure: str
    scores: Mapping[str, float]

    @property
    def name(self) -> str:
        """The best; among equals the first."""
        sign = -1 if self.measure == "nll" else 1
        return max(self.scores, key=lambda name: sign * self.scores[name])


def run_trials(
    candidates: Mapping[str, Recipe],
    steps: int,
    run: Run,
    train: Callable[[Recipe, Run, Callable[[], bool]], Iterator[Mapping[str, Any]]],
    on_trial: Callable[[Trial | Choice], None],
) -> Choice | None:
    """Train each candidate for ``steps`` steps. ``train(recipe, run, stop)`` trains, or goes on; None if it left before the end.

    All are judged by the measure that the first one selects by.
    """
    measure, scores = "", {}
    for name, recipe in candidates.items():
        place = Run(run.folder / FOLDER / name)
        record = _last_record(place)
        on_trial(Trial(name, record["step"], steps))
        if record["step"] < steps:
            trial = recipe.shorten(steps)
            last = lambda: record["step"] >= steps - 1  # noqa: B023, E731  # it is called after a step, before its record comes
            for record in train(trial.select_by(measure) if measure else trial, place, last):
                on_trial(Trial(name, record["step"], steps))
        if record["step"] < steps:
            return None
        measure = measure or next((known for known in MEASURES if known in record), "")
        if measure not in record:
            raise ValueError(
                f"{place.folder / 'metrics.jsonl'} lacks the validation of step {steps}: delete {place.folder}, and resume the run"
            )
        scores[name] = float(record[measure])
    return Choice(measure, scores)


def read_choice(run: Run) -> Choice | None:
    """What the trials of this run have found, if they are over."""
    place = run.folder / FOLDER / CHOICE
    try:
        stored = read_json(place)
        choice = Choice(str(stored["measure"]), {str(name): float(value) for name, value in stored["scores"].items()})
        if choice.measure in MEASURES and choice.scores and all(map(math.isfinite, choice.scores.values())):
            return choice
        reason = "expected the finite score of each candidate, by accuracy or nll"
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error)
    raise ValueError(f"{place} is damaged ({reason}): delete it, and resume the run")


def write_choice(run: Run, choice: Choice) -> None:
    content = {"chosen": choice.name, "measure": choice.measure, "scores": dict(choice.scores)}
    atomic_write(run.folder / FOLDER / CHOICE, format_json(content))


def _last_record(run: Run) -> Mapping[str, Any]:
    """That of the step which a trial goes on after."""
    latest = run.load_latest() if run.folder.is_dir() else None
    step = 0 if latest is None else latest.step
    return next((record for record in run.metrics() if record.get("step") == step), {"step": step})
