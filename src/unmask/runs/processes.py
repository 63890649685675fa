"""Processes that share a training step or an evaluation (``accelerate launch``). One process is the plain case: nothing is sent.

Every process calls the same functions in the same order; the first one writes. When one of them dies, the others learn of it at the
next exchange and end with an error that says so; when one only stops answering, they give up after ``PATIENCE``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")
PATIENCE = timedelta(minutes=10)
"""How long a process waits for the others. They differ by part of a step, or by a validation."""


def started(mixed_precision: str = "no", patience: timedelta = PATIENCE) -> Accelerator:
    """The accelerator of this process, with a bound on how long it waits for the others."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    return Accelerator(mixed_precision=mixed_precision, kwargs_handlers=[InitProcessGroupKwargs(timeout=patience)])


def launched_processes() -> int:
    """How many processes ``accelerate launch`` (or torchrun) has started with this one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launched(patience: timedelta = PATIENCE) -> Together | None:
    """All processes of an ``accelerate launch``; None where this one is alone."""
    return Together(started(patience=patience)) if launched_processes() > 1 else None


@dataclass(frozen=True)
class Together:
    """The processes that share a step."""

    accelerator: Accelerator

    @property
    def processes(self) -> int:
        return self.accelerator.num_processes

    @property
    def first(self) -> bool:
        return self.accelerator.is_main_process

    def share(self, count: int) -> Int[Tensor, "p"]:
        """This process's part of ``count`` rows, next to each other."""
        return torch.arange(count).tensor_split(self.processes)[self.accelerator.process_index]

    def shared(self, prompts: int) -> Int[Tensor, "p"]:
        """This process's part of a training step, which must have something for everybody."""
        if prompts < self.processes:
            raise ValueError(f"{self.processes} processes cannot share {prompts} prompts: ask for more prompts")
        return self.share(prompts)

    def dealt(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of ``items``, dealt like cards: of sorted ones everybody gets some of each kind."""
        return items[self.accelerator.process_index :: self.processes]

    def records(self, mine: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The records (JSON data) of all processes, those of the first one first."""
        lines = "".join(f"\n{json.dumps(record)}" for record in mine) or "\n"
        sent = torch.tensor(list(lines.encode()), dtype=torch.uint8, device=self.accelerator.device)
        return [json.loads(line) for line in bytes(self.concatenated(sent)[0].tolist()).splitlines() if line]

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over processes."""
        if self.processes == 1:
            return tensor
        return _answered(lambda: self.accelerator.reduce(tensor, "sum"))  # pyright: ignore

    def sum(self, value: float | int) -> float:
        return self.add(torch.tensor(value, dtype=torch.float64, device=self.accelerator.device)).item()

    def means(self, totals: dict[str, tuple[float, float]]) -> dict[str, float]:
        both = self.add(torch.tensor(list(totals.values()), dtype=torch.float64, device=self.accelerator.device))
        return {name: above / (below or 1.0) for name, (above, below) in zip(totals, both.tolist(), strict=True)}

    def concatenated(self, mine: Tensor) -> tuple[Tensor, int]:
        """The rows of all processes one after another, and where this process's begin."""
        if self.processes == 1:
            return mine, 0
        size = torch.tensor([len(mine)], device=mine.device)
        sizes = _answered(lambda: self.accelerator.gather(size)).tolist()  # pyright: ignore
        padded = _answered(lambda: self.accelerator.pad_across_processes(mine))
        parts = _answered(lambda: self.accelerator.gather(padded)).split(max(sizes))  # pyright: ignore
        whole = torch.cat([part[:n] for part, n in zip(parts, sizes, strict=True)])
        return whole, sum(sizes[: self.accelerator.process_index])

    def wait(self) -> None:
        if self.processes > 1:
            _answered(self.accelerator.wait_for_everyone)


def _answered(exchange: Callable[[], T]) -> T:
    try:
        return exchange()
    except RuntimeError as error:  # gloo's own, and all of torch.distributed's
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"another process of this run has died or does not answer ({reason}); start them all again, a run with --resume"
        ) from error
