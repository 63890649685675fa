"""The kinds of task: what a class must provide, and the table of all of them.

A kind is a frozen dataclass that derives from :class:`TaskKind` (:class:`GeneratedKind` where problems are generated and a denoiser
can be pretrained on them), has the fields ``kind: Literal["parity"] = "parity"`` and ``seed``, and is an entry point::

    [project.entry-points."unmask.tasks"]
    parity = "my_package:Parity"

A preset's ``[data]`` with that ``kind``, ``unmask train``, ``finetune``, ``pretrain`` and ``unmask evaluate --task`` then know it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Union, runtime_checkable

import torch
from jaxtyping import Bool, Int
from pydantic import Field
from torch import Tensor

from unmask.decoding.protocols import Canvas, Denoiser, Task
from unmask.denoisers.loading import load_denoiser
from unmask.runs.names import EntryPoints, did_you_mean
from unmask.tasks.sudoku.grid import Grid

Judge = Callable[[Int[Tensor, "B L"], Int[Tensor, "B L"]], Bool[Tensor, "B"]]
"""``judge(target, tokens)``: which finished canvases answer their problems. There may be other answers than the target."""


@runtime_checkable
class Problems(Protocol):
    """The problems of a training run, made for one denoiser. Called with a step and a count: that step's canvases, always the same.

    ``held_out`` gives other problems, for selection and measurement; ``which`` is a preset's ``validation``, defined by each kind.
    ``fixed`` is every training canvas at once, for the second stage. ``vary``, if not None, transforms canvases and
    their orders by symmetries (:data:`unmask.training.denoiser.path_masks.Vary`). ``judge``, if not None, decides which answers to
    the training canvases are right; if None, only the target is.
    """

    @property
    def vary(self) -> Callable[..., Any] | None: ...
    @property
    def judge(self) -> Judge | None: ...
    def __call__(self, step: int, count: int, /) -> Canvas: ...
    def held_out(self, count: int, which: str | None = None) -> Task: ...
    def fixed(self) -> Canvas: ...


@dataclass(frozen=True)
class EvaluationRequest:
    """The first ``limit`` problems of the file ``data``, or generated ones of the test split."""

    data: Path | None = None
    limit: int = 200
    seed: int = 0


@dataclass(frozen=True)
class Drawing:
    """A picture of an answer: an SVG whose elements have the classes ``atom-0``, ``atom-1``, …, and (position, atom) pairs."""

    svg: str
    parts: tuple[tuple[int, int], ...]


Draw = Callable[[Sequence[int], Mapping[int, float]], Drawing | None]
"""``draw(tokens, when)``: ``when`` has the positions that were revealed, 0 for the first step to 1 for the last."""


@dataclass(frozen=True)
class EvaluationSet:
    """Problems that fit a denoiser, and how traces show them: the text of a token, the shape of a board (None: text), a picture."""

    denoiser: Denoiser
    task: Task
    label_token: Callable[[int], str] = str
    grid: Grid | None = None
    draw: Draw | None = None


class TaskKind(ABC):
    """A kind of problem: a preset's ``[data]`` table.

    ``preset`` is the default of ``unmask train --task``; ``schedulers`` are those that ``unmask evaluate`` compares by default.
    ``options``, name → help, are the fields that its evaluations honour: ``unmask evaluate --task`` takes them.

    Attributes:
        kind: The name of the task.
        seed: Seeds the problems.
    """

    kind: str
    seed: int
    preset: ClassVar[str | None] = None
    schedulers: ClassVar[tuple[str, ...]] = ("random", "left_to_right", "confidence", "margin", "entropy")
    options: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def problems(self, denoiser: Denoiser, name: str) -> Problems:
        """Training and held-out problems for the denoiser of that name; a denoiser that does not fit is a ValueError."""

    def evaluation(self, denoiser: Denoiser, name: str, request: EvaluationRequest) -> EvaluationSet:
        """Problems to evaluate on: by default the split ``test`` of :meth:`problems`."""
        if request.data is not None:
            data = self.with_file(str(request.data))
        else:
            data = replace(self, seed=request.seed)  # pyright: ignore[reportArgumentType]
        return EvaluationSet(denoiser, data.problems(denoiser, name).held_out(request.limit, "test"))

    @classmethod
    def fit(cls, denoiser: Denoiser, name: str) -> dict[str, Any]:
        """The fields that the denoiser decides."""
        return {}

    @classmethod
    def for_training(cls, denoiser: str) -> TaskKind:
        """Problems to learn an order from, for the denoiser of that name."""
        return cls()

    @property
    def problem_count(self) -> int | None:
        """How many problems there are to train on, where the configuration says so."""
        return None

    @classmethod
    def require_file(cls, request: EvaluationRequest) -> str:
        if request.data is None:
            raise ValueError(f"{cls.kind} is read from a file: name it with --data")
        return str(request.data)

    def with_file(self, file: str) -> TaskKind:
        """The same kind of data, from another file."""
        if "file" not in {field.name for field in fields(self)}:  # pyright: ignore[reportArgumentType]
            raise ValueError(f"{self.kind} problems are generated, not read: leave --data out")
        return replace(self, file=file)  # pyright: ignore[reportArgumentType]


class GeneratedKind(TaskKind):
    """A kind whose problems are generated: never short, and made without a denoiser. The data themselves give the canvases."""

    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """The values that a denoiser's configuration must have to fit these problems."""

    @abstractmethod
    def __call__(self, step: int, batch: int) -> Canvas:
        """The canvases of a training step: a function of the step and the seed alone."""

    @abstractmethod
    def first(self, count: int) -> GeneratedKind:
        """The same data with at most ``count`` problems: the first of the longer corpus."""

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer of these problems, if they are text, beside a denoiser that was trained on them."""


DEFAULT_PRESET = "default"
"""The training preset of tasks that have none of their own."""
KINDS = EntryPoints("unmask.tasks")
"""Name → class."""

if TYPE_CHECKING:
    Data = TaskKind
    GeneratedData = GeneratedKind


def __getattr__(name: str) -> Any:
    """``Data`` and ``GeneratedData``: unions of the registered classes, for configurations. Made late: kinds import this module."""
    if name not in ("Data", "GeneratedData"):
        raise AttributeError(name)
    needed = TaskKind if name == "Data" else GeneratedKind
    kinds = sorted(
        (kind for kind in KINDS.values() if issubclass(kind, needed)), key=lambda kind: kind.kind != "sudoku"
    )
    return Annotated[Union[tuple(kinds)], Field(discriminator="kind")]  # noqa: UP007


def find_kind(task: str) -> type[TaskKind]:
    """The class of a task, by its name."""
    if task not in KINDS:
        raise ValueError(f"no task {task!r}: expected one of {', '.join(KINDS)}{did_you_mean(task, KINDS)}")
    return KINDS[task]


def find_preset(task: str | None) -> str:
    """The training preset of a task, where none is named."""
    return find_kind(task or "sudoku").preset or DEFAULT_PRESET


def require_kind(data: TaskKind, task: str) -> None:
    """Refuse a preset of another task than the requested one."""
    if data.kind != task:
        raise ValueError(f"the preset is for {data.kind}, not for {task}: name a preset of {task}, or leave --task out")


def evaluation_set(
    task: str,
    denoiser_name: str,
    request: EvaluationRequest,
    options: Mapping[str, Any] | None = None,
    **loading: Any,
) -> EvaluationSet:
    """Load the denoiser by ``load_denoiser(…, **loading)`` and the problems that fit it; ``options`` are some of the kind's."""
    kind, denoiser = find_kind(task), load_denoiser(denoiser_name, **loading)
    data = kind(**kind.fit(denoiser, denoiser_name), **(options or {}))
    return data.evaluation(denoiser, denoiser_name, request)


def shuffle_rows(seed: int, step: int, batch: int, count: int) -> Int[Tensor, "B"]:
    """The rows of a step out of ``count``: each once per epoch, in a new order each epoch. A function of the seed and the step."""
    place = step * batch + torch.arange(batch)
    rows = torch.empty_like(place)
    for epoch in torch.unique(place // count).tolist():
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        inside = place // count == epoch
        rows[inside] = order[place[inside] % count]
    return rows
