"""Learn an order for a frozen denoiser: a run directory from a preset."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unmask.policies.policy import OrderPolicy, PolicyConfig
from unmask.recipe import PolicyTraining
from unmask.registry import load_denoiser, load_scheduler
from unmask.runs import Run
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.train import train_policy


@dataclass(frozen=True)
class Learn:
    """A frozen denoiser, the policy's shape, the problems and the training. ``validation`` names the clues of held-out puzzles.

    ``start`` names a policy (shipped, or a folder) whose weights are the first ones; its shape must be the same.
    """

    denoiser: str = "sudoku-9x9-imperfect"
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    start: str = ""
    data: SudokuData = field(default_factory=SudokuData)
    validation: str | None = None
    training: PolicyTraining = field(default_factory=PolicyTraining)


def fitted(config: PolicyConfig, denoiser: Any, name: str) -> PolicyConfig:
    """The policy's configuration with what it must know of its denoiser."""
    shape = denoiser.config
    return dataclasses.replace(
        config,
        size=shape.grid,
        length=shape.max_length,
        vocab_size=shape.vocab_size,
        mask_id=shape.mask_id,
        hidden_width=shape.width,
        denoiser=name,
    )


def _begin_as(policy: OrderPolicy, name: str, denoiser: Any) -> None:
    """Copy the weights of another policy of the same shape."""
    other = load_scheduler(name, denoiser)
    weights = other.state_dict() if isinstance(other, OrderPolicy) else {}
    mine = {key: tuple(tensor.shape) for key, tensor in policy.state_dict().items()}
    if mine != {key: tuple(tensor.shape) for key, tensor in weights.items()}:
        raise ValueError(
            f"cannot start from {name}: expected a policy of kind {policy.config.kind}, width {policy.config.width}"
        )
    policy.load_state_dict(weights)


def learn(
    config: Learn, folder: str | Path, resume: bool = False, stop: Callable[[], bool] = lambda: False
) -> Iterator[dict[str, Any]]:
    """Train in ``folder``, yielding a record per step; at the end the best policy is in ``folder/policy``.

    Under ``accelerate launch`` every process calls this; the first one owns the folder.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision=config.training.mixed_precision)
    denoiser = load_denoiser(config.denoiser).to(accelerator.device)
    name = config.training.teacher
    teacher = load_scheduler(name, denoiser, config.denoiser) if name else None
    if accelerator.is_main_process:
        Run.create(folder, config, resume=resume)
    accelerator.wait_for_everyone()
    run = Run(Path(folder))
    with run.lock() if accelerator.is_main_process else contextlib.nullcontext():
        torch.manual_seed(config.training.seed)
        policy = OrderPolicy(fitted(config.policy, denoiser, config.denoiser))
        if config.start:
            _begin_as(policy, config.start, denoiser)
        held_out = SudokuTask.generated(
            config.training.validate, config.data.size, config.validation, "validation", config.data.seed + 1
        )
        validation = held_out.canvas(range(len(held_out)))
        yield from train_policy(
            denoiser, policy, config.data, config.training, validation, run, stop, teacher, accelerator
        )
