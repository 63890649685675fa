"""Learn an order for a frozen denoiser: a run directory from a preset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unmask.policies.policy import OrderPolicy, PolicyConfig
from unmask.registry import load_denoiser
from unmask.runs import Run
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.train import PolicyTraining, train_policy


@dataclass(frozen=True)
class Learn:
    """A frozen denoiser, the policy's shape, the problems and the training. ``validation`` names the clues of held-out puzzles."""

    denoiser: str = "sudoku-9x9-imperfect"
    policy: PolicyConfig = field(default_factory=PolicyConfig)
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


def learn(
    config: Learn, folder: str | Path, resume: bool = False, stop: Callable[[], bool] = lambda: False
) -> Iterator[dict[str, Any]]:
    """Train in ``folder``, yielding a record per step; at the end the best policy is in ``folder/policy``."""
    denoiser = load_denoiser(config.denoiser)
    run = Run.create(folder, config, resume=resume)
    with run.lock():
        torch.manual_seed(config.training.seed)
        policy = OrderPolicy(fitted(config.policy, denoiser, config.denoiser))
        held_out = SudokuTask.generated(
            config.training.validate, config.data.size, config.validation, "validation", config.data.seed + 1
        )
        validation = held_out.canvas(range(len(held_out)))
        yield from train_policy(denoiser, policy, config.data, config.training, validation, run, stop)
