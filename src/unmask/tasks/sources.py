"""What a run trains on: the choice that a preset's ``[data]`` makes, and how it becomes problems for a denoiser.

A kind of data is a frozen dataclass with a field ``kind``, a ``seed``, and a method
``problems(denoiser, name)`` that refuses a denoiser it does not fit and returns :class:`~unmask.decoding.protocols.Problems`. To add a kind,
write that class and add it to ``Data``: presets, ``unmask train`` and ``unmask finetune`` know it then.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Field

from unmask.decoding.protocols import Canvas, Denoiser, Problems
from unmask.runs.names import EntryPoints, did_you_mean
from unmask.tasks.arithmetic import Arithmetic, Ordered
from unmask.tasks.code import Code
from unmask.tasks.countdown import Countdown
from unmask.tasks.jsonl import TextData
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask

KINDS = EntryPoints("unmask.tasks")
"""Name → the kind of data."""

if TYPE_CHECKING:
    Data = SudokuData | TextData | Arithmetic | Ordered | Code | Countdown
else:
    Data = Annotated[Union[tuple(KINDS.values())], Field(discriminator="kind")]  # noqa: UP007


def problems(data: Data, denoiser: Denoiser, name: str) -> Problems:
    """The problems of ``data`` for the denoiser of that name."""
    return _boards(data, denoiser, name) if isinstance(data, SudokuData) else data.problems(denoiser, name)


def require_task(task: str) -> None:
    """Refuse a name that is no kind of data."""
    if task not in KINDS:
        raise ValueError(f"no task {task!r}: expected one of {', '.join(KINDS)}{did_you_mean(task, KINDS)}")


def require_kind(data: Data, task: str) -> None:
    """Refuse a preset of another task than the one that was asked for."""
    if not isinstance(data, KINDS[task]):
        mine = data.kind
        raise ValueError(f"the preset is for {mine}, not for {task}: name a preset of {task}, or leave --task out")


def with_file(data: Data, file: str) -> Data:
    """The same kind of data, from another file."""
    if "file" not in {field.name for field in fields(data)}:
        raise ValueError(f"{data.kind} problems are generated, not read: leave --data out")
    return replace(data, file=file)  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True, eq=False)
class _Boards:
    """Generated puzzles. ``held_out`` takes the clues of the puzzles to hold out."""

    data: SudokuData
    judge = None

    @property
    def vary(self) -> Any:
        return self.data.vary if self.data.augment else None

    def __call__(self, step: int, count: int) -> Canvas:
        return self.data(step, count)

    def held_out(self, count: int, which: str | None = None) -> SudokuTask:
        return SudokuTask.generated(count, self.data.size, which, "validation", self.data.seed + 1)

    def fixed(self) -> Canvas:
        boards = SudokuTask(*self.data.boards)
        return boards.canvas(range(len(boards)))


def _boards(data: SudokuData, denoiser: Denoiser, name: str) -> Problems:
    length = getattr(getattr(denoiser, "config", None), "max_length", data.size**2)
    if length != data.size**2 or denoiser.mask_id != 0:
        raise ValueError(
            f"{name} does not fill {data.size}x{data.size} boards: expected {data.size**2} positions and mask id 0, "
            f"got {length} and {denoiser.mask_id}; name a denoiser of boards, or other data"
        )
    return _Boards(data)


def problem_count(data: Data) -> int | None:
    """How many problems there are to train on, where the configuration says so."""
    return getattr(data, "puzzles", getattr(data, "count", None))
