"""Train a small denoiser from nothing: a run directory from a preset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from unmask.denoisers.checkpoint import save_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.run import Run
from unmask.tasks.arithmetic import Arithmetic, Ordered
from unmask.tasks.code import Code
from unmask.tasks.countdown import Countdown
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.denoiser.masked_trainer import MaskedTraining, train_masked

Generated = Annotated[SudokuData | Arithmetic | Ordered | Code | Countdown, Field(discriminator="kind")]
"""What a denoiser is trained on: problems that are never short. In a preset ``kind`` says which; without it, Sudoku."""


@dataclass(frozen=True)
class Pretrain:
    """A denoiser's shape, its data and its training."""

    model: TransformerConfig
    data: Generated = field(default_factory=SudokuData)
    training: MaskedTraining = field(default_factory=MaskedTraining)

    def __post_init__(self) -> None:
        what, expected = _shape(self.data)
        wrong = {key: getattr(self.model, key) for key in expected if getattr(self.model, key) != expected[key]}
        if "grid" in wrong and self.model.grid is None:
            del wrong["grid"]  # a denoiser of boards may do without
        if wrong:
            wanted = ", ".join(f"{key} {expected[key]}" for key in wrong)
            got = ", ".join(str(value) for value in wrong.values())
            raise ValueError(f"the model does not fit {what}: expected {wanted}, got {got}")


def _shape(data: Generated) -> tuple[str, dict[str, Any]]:
    """What the problems are called, and what the configuration of a denoiser must say to fit them."""
    if not isinstance(data, SudokuData):
        return f"{data.name} problems", data.shape()
    size = data.size
    return f"{size}x{size} boards", {"max_length": size * size, "vocab_size": size + 1, "mask_id": 0, "grid": size}


def pretrain(config: Pretrain, folder: str | Path, resume: bool = False) -> Iterator[dict[str, Any]]:
    """Train in ``folder``, yielding records; at the end the denoiser is in ``folder/denoiser``, in float16."""
    run = Run.create(folder, config, resume=resume)
    with run.lock():
        generator = torch.Generator().manual_seed(config.training.seed)
        denoiser = Transformer(config.model).initialise(generator)
        yield from train_masked(denoiser, config.data, config.training, run)
        save_denoiser(denoiser, run.folder / "denoiser", dtype=torch.float16)
