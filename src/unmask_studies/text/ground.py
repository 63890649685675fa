"""The ground of studies on text: small tasks, the denoisers and orders that they need, found among runs or trained.

A task's denoiser is the preset of ``unmask pretrain`` of the task's name, its order the preset ``sas-TASK`` of ``unmask train``.
Both are looked for in a folder of finished runs under these names, and trained in the study's folder where they are missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.evaluation.evaluate import Row
from unmask.runs.presets import load_preset
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.kinds import WRITTEN
from unmask.tasks.text_problems import Written, WrittenTask
from unmask.training.denoiser.pretrain import Pretrain
from unmask.training.policy.run import PolicyRun
from unmask_studies.sets import denoiser_named, difference, evaluated
from unmask_studies.study import Cell, Piece
from unmask_studies.trained import finished, found, history, pretrained, recipe, trained

LEARNED = "learned"
"""How studies call the order of the task at hand."""


def order_of(task: str) -> str:
    return f"sas-{task}"


@dataclass(frozen=True)
class Texts:
    """``generated`` problems of a task's test split, of which the first ``limit`` are decoded.

    ``samples`` shortens the trainings of denoisers; ``steps``, ``prompts`` and ``validate`` those of orders.
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

    def problems(self, task: str, length: int | None = None) -> WrittenTask:
        return _problems(task, self.count, self.seed, length)


@dataclass(frozen=True)
class Ground:
    """Where a study's denoisers and orders are: in ``runs``, or trained in ``folder``. ``published``: it has files, too."""

    texts: Texts
    runs: Path | None
    folder: Path
    seed: int = 0
    published: bool = False

    def __post_init__(self) -> None:
        if not self.texts.count and not self.published:
            raise ValueError(
                "without generated problems there are none: leave out --no-generated, or name a file with --data"
            )

    def denoiser(self, task: str) -> str:
        """The folder of the task's denoiser, whether it is trained yet or not."""
        return str(found(task, self.runs, "denoiser") or self.folder / "runs" / task)

    def order(self, preset: str) -> str:
        return str(found(preset, self.runs) or self.folder / "runs" / preset)

    def pieces(self, tasks: Sequence[str], orders: Sequence[str] = ()) -> list[Piece]:
        """A piece per denoiser and per order: what its training cost."""
        pieces = [Piece(f"the denoiser of {task}", lambda t=task: self._train_denoiser(t)) for task in tasks]
        return pieces + [Piece(f"the order {preset}", lambda p=preset: self._train_order(p)) for preset in orders]

    def config(self, preset: str) -> PolicyRun:
        """A preset of ``unmask train`` on this ground: shortened, and for the denoiser that is there."""
        config = recipe(preset, steps=self.texts.steps)
        task = _kind(config, preset)
        shorter = {name: getattr(self.texts, name) for name in ("prompts", "validate")}
        training = replace(config.training, **{name: value for name, value in shorter.items() if value is not None})
        config = replace(config, training=training, data=_fewer(config.data, training.steps * training.prompts))
        return replace(config, denoiser=self.denoiser(task))

    def scheduler(self, task: str, order: str) -> Any:
        """A heuristic by its name, the task's own order (``LEARNED``), or the order of a preset, for the task's denoiser."""
        denoiser = self.denoiser(task)
        model = denoiser_named(denoiser)
        kind_of(task).check(model, denoiser)
        preset = order_of(task) if order == LEARNED else order
        learned = finished(Path(self.order(preset)))
        return load_scheduler(self.order(preset) if learned else order, model, denoiser)

    def measured(self, task: str, order: str, decoding: Decoding, length: int | None = None) -> dict[str, Any]:
        """An order on the task's test problems."""
        scheduler = self.scheduler(task, order)
        return evaluated(self.texts.problems(task, length), self.denoiser(task), order, scheduler, self.seed, decoding)

    def _train_denoiser(self, task: str) -> Mapping[str, Any]:
        config = load_preset(task, Pretrain, "pretrain")
        samples = self.texts.samples
        if samples is not None:
            training = replace(config.training, samples=samples)
            config = replace(config, training=training, data=_fewer(config.data, samples))
        return {"folder": str(pretrained(task, config, self.runs, self.folder))}

    def _train_order(self, preset: str) -> Mapping[str, Any]:
        config = self.config(preset)
        past = history(trained(preset, config, self.runs, self.folder))
        if Path(past["denoiser"]).resolve() != Path(config.denoiser).resolve():
            raise ValueError(
                f"the order {self.order(preset)} was trained for {past['denoiser']}, not for {config.denoiser}: "
                "name a folder of runs that has both, or neither"
            )
        return past


def points(row: Row, other: Row) -> Cell:
    """The difference of the shares solved, in pairs, in points; strong where its limits leave out 0."""
    found = difference(row, other)
    text = f"{100 * found.mean:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
    return Cell(text.replace("-", "−"), found.low > 0 or found.high < 0)


def limits(row: Row) -> tuple[float, float, float]:
    """The share solved, and its interval."""
    return row.exact, row.exact_low, row.exact_high


def kind_of(task: str) -> type[Written]:
    if task not in WRITTEN:
        raise ValueError(f"no text task {task!r}: expected one of {', '.join(WRITTEN)}")
    return WRITTEN[task]


def blocks_of(task: str, counts: Sequence[int], length: int | None = None) -> dict[int, int | None]:
    """Number of blocks → their size at the task's shortest, or another, length; one block is any order: None."""
    length = length or kind_of(task).lengths[0]
    if not counts or any(count < 1 or length % count for count in counts):
        raise ValueError(f"blocks must be numbers that divide the length {length} of {task}, got {tuple(counts)}")
    return {count: None if count == 1 else length // count for count in counts}


def _kind(config: PolicyRun, preset: str) -> str:
    kind = getattr(config.data, "kind", "sudoku")
    if kind not in WRITTEN:
        raise ValueError(f"the preset {preset} is for {kind}: expected one for {', '.join(WRITTEN)}")
    return kind


def _fewer(data: Any, shown: int) -> Any:
    """The same canvases from a corpus that has no more problems than are shown: a shorter one begins like a longer one."""
    return replace(data, count=min(data.count, shown))


@cache
def _problems(task: str, count: int, seed: int, length: int | None) -> WrittenTask:
    return WrittenTask.generated(kind_of(task)(count=count, split="test", seed=seed, length=length))
