"""A short race of recipes: each candidate is trained for a few steps, and the one that validates best is trained to its end.

No recipe is best for every denoiser, and nothing tells beforehand which one is: a policy that goes on from the denoiser's states
learns an order of linked sums in ten steps and nothing about reactions; a second opinion, the other way round. So both are tried.
The race has rounds: candidates whose shares of solved problems are not shown to differ from the best one's are trained further.
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
SHARED = (
    "steps",
    "validate",
    "validate_every",
    "patience",
    "save_every",
    "select",
    "race",
    "at_once",
    "mixed_precision",
    "seed",
)
"""Options of a training that all candidates take from the run."""
MEASURES = ("accuracy", "nll")


@dataclass(frozen=True)
class Recipe:
    """A policy and how it is trained. A round of its trial has ``trial_steps``."""

    policy: PolicyConfig
    training: PolicyTraining
    trial_steps: int

    def adopt(self, training: PolicyTraining) -> Recipe:
        """This recipe with the length, the validation and the seed of ``training``."""
        shared = {option: getattr(training, option) for option in SHARED}
        return replace(self, training=replace(self.training, **shared))

    def select_by(self, measure: str) -> Recipe:
        return replace(self, training=replace(self.training, select=measure))

    def shorten(self) -> Recipe:
        """Its trial: validated before the first step and after each round, at the learning rates of the whole training."""
        every = min(self.trial_steps, self.training.steps)
        return replace(self, training=replace(self.training, validate_every=every, patience=0, race=()))

    def end(self, rounds: int) -> int:
        """The last step of so many rounds: a trial is no longer than the training."""
        return min(rounds * self.trial_steps, self.training.steps)


@dataclass(frozen=True)
class Trial:
    """A candidate's trial has come to ``step``; this round ends after ``steps``."""

    name: str
    step: int
    steps: int


@dataclass(frozen=True)
class Choice:
    """The candidate that is trained, ``name``, and the last validation of each in its trial, by ``measure``: accuracy or nll."""

    name: str
    measure: str
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Race:
    """Trials of ``rounds`` at most, judged on ``problems`` held-out problems."""

    rounds: int
    problems: int

    def run(
        self,
        candidates: Mapping[str, Recipe],
        run: Run,
        train: Callable[[Recipe, Run, Callable[[], bool]], Iterator[Mapping[str, Any]]],
        on_trial: Callable[[Trial | Choice], None],
    ) -> Choice | None:
        """Train the candidates, round after round. ``train(recipe, run, stop)`` trains, or goes on; None if it left before the end.

        All are judged by the measure that the first one selects by.
        """
        measure, scores, left = "", {}, list(candidates)
        for number in range(1, self.rounds + 1):
            for name in left:
                recipe = candidates[name].shorten()
                record = self._train_to(
                    recipe.end(number),
                    (name, recipe.select_by(measure) if measure else recipe),
                    Run(run.folder / FOLDER / name),
                    train,
                    on_trial,
                )
                if record is None:
                    return None
                measure = measure or next(known for known in MEASURES if known in record)
                scores[name] = float(record[measure])
            left = self.leaders({name: scores[name] for name in left}, measure)
            if len(left) == 1:
                break
        best = max if measure == "accuracy" else min
        return Choice(best(left, key=lambda name: scores[name]), measure, scores)

    def leaders(self, scores: Mapping[str, float], measure: str) -> list[str]:
        """The best candidate, and those that could be as good: no more than a standard error of the difference behind.

        Likelihoods are means over every token, and the best of them leads alone.
        """
        if measure == "nll":
            return [min(scores, key=lambda name: scores[name])]
        best = max(scores.values())
        error = lambda share: math.sqrt((share * (1 - share) + best * (1 - best)) / self.problems)  # noqa: E731
        return [name for name, share in scores.items() if best - share <= error(share)]

    def _train_to(
        self,
        end: int,
        candidate: tuple[str, Recipe],
        place: Run,
        train: Callable[[Recipe, Run, Callable[[], bool]], Iterator[Mapping[str, Any]]],
        on_trial: Callable[[Trial | Choice], None],
    ) -> Mapping[str, Any] | None:
        """The record of the step ``end``, of a trial that goes on until there."""
        name, recipe = candidate
        latest = place.load_latest() if place.folder.is_dir() else None
        last: dict[str, Any] = {"step": 0 if latest is None else latest.step}
        on_trial(Trial(name, min(last["step"], end), end))
        if last["step"] >= end:
            last = next((record for record in place.metrics() if record.get("step") == end), {"step": end})
        else:
            # `stop` is called after a step, before its record comes.
            for record in train(recipe, place, lambda: last["step"] >= end - 1):  # noqa: B023 the latest is meant
                last = dict(record)
                on_trial(Trial(name, last["step"], end))
            if last["step"] < end:
                return None
        if not any(known in last for known in MEASURES):
            raise ValueError(
                f"{place.folder / 'metrics.jsonl'} lacks the validation of step {end}: delete {place.folder}, and resume the run"
            )
        return last


def read_choice(run: Run) -> Choice | None:
    """What the trials of this run have found, if they are over."""
    place = run.folder / FOLDER / CHOICE
    try:
        stored = read_json(place)
        scores = {str(name): float(value) for name, value in stored["scores"].items()}
        choice = Choice(str(stored["chosen"]), str(stored["measure"]), scores)
        if choice.measure in MEASURES and choice.name in scores and all(map(math.isfinite, scores.values())):
            return choice
        reason = "expected the finite score of each candidate, by accuracy or nll, and the chosen one among them"
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error)
    raise ValueError(f"{place} is damaged ({reason}): delete it, and resume the run")


def write_choice(run: Run, choice: Choice) -> None:
    content = {"chosen": choice.name, "measure": choice.measure, "scores": dict(choice.scores)}
    atomic_write(run.folder / FOLDER / CHOICE, format_json(content))
