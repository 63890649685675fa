"""Train a small denoiser from nothing: a run directory from a preset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unmask.denoisers.folder import save_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.finetune import MaskedTraining, train_masked
from unmask.runs import Run
from unmask.tasks.sudoku.source import SudokuData


@dataclass(frozen=True)
class Pretrain:
    """A denoiser's shape, its data and its training."""

    model: TransformerConfig
    data: SudokuData = field(default_factory=SudokuData)
    training: MaskedTraining = field(default_factory=MaskedTraining)

    def __post_init__(self) -> None:
        size, model = self.data.size, self.model
        fits = (model.max_length, model.vocab_size, model.mask_id, model.grid or size)
        if fits != (size * size, size + 1, 0, size):
            raise ValueError(
                f"the model does not fit {size}x{size} boards: expected max_length {size * size}, vocab_size {size + 1}, "
                f"mask_id 0 and grid {size} (or none), got {model.max_length}, {model.vocab_size}, {model.mask_id}, {model.grid}"
            )


def pretrain(config: Pretrain, folder: str | Path, resume: bool = False) -> Iterator[dict[str, Any]]:
    """Train in ``folder``, yielding records; at the end the denoiser is in ``folder/denoiser``, in float16."""
    run = Run.create(folder, config, resume=resume)
    with run.lock():
        generator = torch.Generator().manual_seed(config.training.seed)
        denoiser = Transformer(config.model).initialise(generator)
        yield from train_masked(denoiser, config.data, config.training, run)
        save_denoiser(denoiser, run.folder / "denoiser", dtype=torch.float16)
