"""What studies on text share: small tasks, and the denoisers and policies that they need, found among runs or trained.

A task's denoiser is the preset of ``unmask pretrain`` of the task's name, its policy the preset ``sas-TASK`` of ``unmask train``.
Both are looked for in a folder of finished runs under these names, and trained in the study's folder where they are missing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.runs.presets import change_training
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.text_problems import TextProblemKind, TextProblemTask, text_problem_kinds
from unmask_studies.reports import evaluate_scheduler, get_denoiser
from unmask_studies.study import GridStudy, Key, Result
from unmask_studies.tables import LEARNED, label
from unmask_studies.training_runs import (
    ensure_run,
    find_run,
    is_finished,
    load_pretraining,
    load_recipe,
    read_history,
)


def policy_of(task: str) -> str:
    return f"sas-{task}"


@dataclass(frozen=True)
class Texts:
    """``generated`` problems of a task's test split, of which the first ``limit`` are decoded.

    ``samples`` shortens the trainings of denoisers; ``steps``, ``prompts`` and ``validate`` those of policies.
    """

    generated: int = 1000
    limit: int | None = None
    seed: int = 0
    samples: int | None = None
    steps: int | None = None
    prompts: int | None = None
    validate: int | None = None

    def __post_init__(self) -> None:
        if self.generated < 0 or (self.limit is not None and self.limit < 1):
            raise ValueError(f"expected some problems, got generated = {self.generated}, limit = {self.limit}")

    @property
    def count(self) -> int:
        return self.generated if self.limit is None else min(self.generated, self.limit)

    def problems(self, task: str, length: int | None = None) -> TextProblemTask:
        return _generate(task, self.count, self.seed, length)


@dataclass(frozen=True)
class Models:
    """A study's denoisers and policies: in ``runs``, or trained in ``folder``."""

    texts: Texts
    runs: Path | None
    folder: Path
    seed: int = 0

    def denoiser(self, task: str) -> str:
        """The folder of the task's denoiser, whether it is trained yet or not."""
        return str(find_run(task, self.runs, "denoiser") or self.folder / "runs" / task)

    def policy(self, preset: str) -> Path:
        return find_run(preset, self.runs) or self.folder / "runs" / preset

    def train_denoiser(self, task: str) -> Result:
        config = load_pretraining(task, self.texts.samples)
        if self.texts.samples is not None:
            config = replace(config, data=_truncate(config.data, self.texts.samples))
        return {"folder": str(ensure_run(task, config, self.folder, self.runs))}

    def train_policy(self, preset: str) -> Result:
        config = self.recipe(preset)
        history = read_history(ensure_run(preset, config, self.folder, self.runs))
        if Path(history["denoiser"]).resolve() != Path(config.denoiser).resolve():
            raise ValueError(
                f"the policy {self.policy(preset)} was trained for {history['denoiser']}, not for {config.denoiser}: "
                "name a folder of runs that has both, or neither"
            )
        return history

    def recipe(self, preset: str) -> Any:
        """A preset of ``unmask train``, shortened, and for the task's denoiser."""
        config = load_recipe(preset, steps=self.texts.steps)
        task = config.data.kind
        if task not in (kinds := text_problem_kinds()):
            raise ValueError(f"the preset {preset} is for {task}: expected one for {', '.join(kinds)}")
        config = change_training(config, prompts=self.texts.prompts, validate=self.texts.validate)
        data = _truncate(config.data, config.training.steps * config.training.prompts)
        return replace(config, data=data, denoiser=self.denoiser(task))

    def scheduler(self, task: str, name: str) -> Any:
        """A heuristic by its name, the task's own policy (``LEARNED``), or the policy of a preset, for the task's denoiser."""
        denoiser = self.denoiser(task)
        model = get_denoiser(denoiser)
        kind_of(task).check(model, denoiser)
        policy = self.policy(policy_of(task) if name == LEARNED else name)
        return load_scheduler(str(policy) if is_finished(policy) else name, model, denoiser)

    def evaluate(
        self, task: str, name: str, decoding: Decoding, problems: TextProblemTask | None = None
    ) -> dict[str, Any]:
        """A scheduler on the task's test problems, or others."""
        problems = problems or self.texts.problems(task)
        scheduler = (name, self.scheduler(task, name))
        return evaluate_scheduler(problems, self.denoiser(task), scheduler, self.seed, decoding)


@dataclass(frozen=True)
class TextStudy(GridStudy):
    """A grid whose first points are trainings: ("denoiser", task) and ("policy", preset), then the product of ``axes``."""

    sets: Texts = field(default_factory=Texts)
    runs: Path | None = None
    seed: int = 0

    @abstractmethod
    def needs(self) -> tuple[Sequence[str], Sequence[str]]:
        """Tasks whose denoisers, and presets whose policies are needed."""

    def has_problems(self) -> bool:
        return self.sets.count > 0

    def grid(self) -> list[Key]:
        if not self.has_problems():
            raise ValueError("there are no problems: leave out --no-generated, or name a file with --data")
        tasks, presets = self.needs()
        return [*(("denoiser", task) for task in tasks), *(("policy", name) for name in presets), *super().grid()]

    def measure(self, key: Key, folder: Path) -> Result:
        models = Models(self.sets, self.runs, folder, self.seed)
        match key:
            case ("denoiser", str(task)):
                return models.train_denoiser(task)
            case ("policy", str(preset)):
                return models.train_policy(preset)
        return self.measure_with(models, *key)

    @abstractmethod
    def measure_with(self, models: Models, *key: Any) -> Result:
        """The result at a point of the axes."""


@dataclass(frozen=True)
class TaskStudy(TextStudy):
    """``schedulers`` on one ``task``, beside ``policies``, presets of ``unmask train``; without any, the task's own policy.

    ``names`` are those of the policies in tables.
    """

    task: str = "arithmetic"
    schedulers: tuple[str, ...] = ("left_to_right", "confidence", "margin", "entropy")
    policies: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.names) != len(self.policies):
            raise ValueError(f"expected a name for each policy, got {len(self.names)} for {len(self.policies)}")

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.schedulers, *(self.policies or (LEARNED,)))

    def label(self, name: str) -> str:
        return dict(zip(self.policies, self.names, strict=True)).get(name, label(name))

    def needs(self) -> tuple[Sequence[str], Sequence[str]]:
        return [self.task], self.policies or [policy_of(self.task)]


def kind_of(task: str) -> type[TextProblemKind]:
    if task not in (kinds := text_problem_kinds()):
        raise ValueError(f"no text task {task!r}: expected one of {', '.join(kinds)}")
    return kinds[task]


def block_sizes(task: str, counts: Iterable[int], length: int | None = None) -> dict[int, int | None]:
    """Number of blocks → their size at the task's shortest, or another, length; one block is any order: None."""
    length, counts = length or kind_of(task).lengths[0], tuple(counts)
    if not counts or any(count < 1 or length % count for count in counts):
        raise ValueError(f"blocks must be numbers that divide the length {length} of {task}, got {counts}")
    return {count: None if count == 1 else length // count for count in counts}


def name_blocks(count: int) -> str:
    return "any order" if count == 1 else f"{count} blocks"


def _truncate(data: Any, shown: int) -> Any:
    """The same canvases from a corpus with no more problems than are shown: a shorter one begins like a longer one."""
    return replace(data, count=min(data.count, shown))


@cache
def _generate(task: str, count: int, seed: int, length: int | None) -> TextProblemTask:
    return TextProblemTask.generate(kind_of(task)(count=count, split="test", seed=seed, length=length))
