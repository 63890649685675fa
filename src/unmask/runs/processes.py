"""Processes that share a training step or an evaluation (``accelerate launch``). A single process sends nothing.

Every process calls the same functions in the same order; the first one writes. When a process dies, the others notice at the next
exchange and end with an error that says so; when it only stops answering, they give up after ``PATIENCE``.
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


def start_accelerator(mixed_precision: str = "no", patience: timedelta = PATIENCE, cpu: bool = False) -> Accelerator:
    """The accelerator of this process, with a bound on how long it waits for the others.

    ``cpu``: not on a GPU, even if there is one. Without GPUs it is needed for torchrun, whose processes would not find each other.
    """
    from accelerate import Accelerator, InitProcessGroupKwargs

    waiting = InitProcessGroupKwargs(timeout=patience)
    return Accelerator(mixed_precision=mixed_precision, cpu=cpu, kwargs_handlers=[waiting])


def count_processes() -> int:
    """How many processes ``accelerate launch`` (or torchrun) has started, this one included."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Whether this is the only process, or the first of several."""
    return os.environ.get("RANK", "0") == "0"


def current_group(patience: timedelta = PATIENCE, cpu: bool = False) -> ProcessGroup | None:
    """The processes of an ``accelerate launch`` or of torchrun; None for a single process."""
    return ProcessGroup(start_accelerator(patience=patience, cpu=cpu)) if count_processes() > 1 else None


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that share a step."""

    accelerator: Accelerator

    @property
    def size(self) -> int:
        return self.accelerator.num_processes

    @property
    def is_first(self) -> bool:
        return self.accelerator.is_main_process

    def split(self, count: int) -> Int[Tensor, "p"]:
        """This process's share of ``count`` rows, contiguous."""
        return torch.arange(count).tensor_split(self.size)[self.accelerator.process_index]

    def round_robin(self, items: Sequence[T]) -> Sequence[T]:
        """Every ``size``-th item: of sorted ones each process gets some of every kind."""
        return items[self.accelerator.process_index :: self.size]

    def gather_records(self, mine: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The records (JSON data) of all processes, those of the first one first."""
        lines = "".join(f"\n{json.dumps(record)}" for record in mine) or "\n"
        sent = torch.tensor(list(lines.encode()), dtype=torch.uint8, device=self.accelerator.device)
        return [json.loads(line) for line in bytes(self.all_gather(sent)[0].tolist()).splitlines() if line]

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum over processes, on the device of the summand."""
        if self.size == 1:
            return tensor
        sent = tensor.to(self.accelerator.device)  # NCCL sends what is on its GPU
        return _exchange(lambda: self.accelerator.reduce(sent, "sum")).to(tensor.device)  # pyright: ignore

    def sum(self, value: float | int) -> float:
        return self.all_reduce(torch.tensor(value, dtype=torch.float64)).item()

    def mean(self, totals: dict[str, tuple[float, float]]) -> dict[str, float]:
        """Σ numerators / Σ denominators over processes, by name."""
        both = self.all_reduce(torch.tensor(list(totals.values()), dtype=torch.float64))
        return {name: above / (below or 1.0) for name, (above, below) in zip(totals, both.tolist(), strict=True)}

    def all_gather(self, mine: Tensor) -> tuple[Tensor, int]:
        """The rows of all processes one after another, and where this process's begin."""
        if self.size == 1:
            return mine, 0
        count = torch.tensor([len(mine)], device=mine.device)
        counts = _exchange(lambda: self.accelerator.gather(count)).tolist()  # pyright: ignore
        padded = _exchange(lambda: self.accelerator.pad_across_processes(mine))
        parts = _exchange(lambda: self.accelerator.gather(padded)).split(max(counts))  # pyright: ignore
        whole = torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])
        return whole, sum(counts[: self.accelerator.process_index])

    def wait(self) -> None:
        if self.size > 1:
            _exchange(self.accelerator.wait_for_everyone)


def _exchange(send: Callable[[], T]) -> T:
    try:
        return send()
    except RuntimeError as error:  # gloo's own, and all of torch.distributed's
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"another process of this run has died or does not answer ({reason}); start them all again, a run with --resume"
        ) from error
