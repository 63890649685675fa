"""Pre-training of a small denoiser as a run directory, from a preset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unmask.denoisers.checkpoint import save_denoiser
from unmask.denoisers.placement import Placement, find_device
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.run import Run
from unmask.tasks.kinds import GeneratedData
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.denoiser.masked_trainer import MaskedTraining, train_masked


@dataclass(frozen=True)
class Pretrain(Placement):
    """The configuration, the data and the training of a denoiser.

    Attributes:
        model: The denoiser's shape.
        data: The problems to train on.
        training: How it is trained.
    """

    model: TransformerConfig
    data: GeneratedData = field(default_factory=SudokuData)
    training: MaskedTraining = field(default_factory=MaskedTraining)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype != "float32":
            raise ValueError(
                f"a denoiser is trained in float32, got dtype {self.dtype!r}: load it in another type later"
            )
        expected = self.data.shape()
        wrong = {key: getattr(self.model, key) for key in expected if getattr(self.model, key) != expected[key]}
        if "grid" in wrong and self.model.grid is None:
            del wrong["grid"]  # optional for a denoiser of boards
        if wrong:
            wanted = ", ".join(f"{key} {expected[key]}" for key in wrong)
            got = ", ".join(str(value) for value in wrong.values())
            raise ValueError(f"the model does not fit {self.data.kind} problems: expected {wanted}, got {got}")


def pretrain(config: Pretrain, folder: str | Path, resume: bool = False) -> Iterator[dict[str, Any]]:
    """Train in ``folder``, yielding records; at the end the denoiser is in ``folder/denoiser``, in float16."""
    device = find_device(config.device)
    run = Run.create(folder, config, resume=resume, may_differ=("device",))
    with run.work():
        generator = torch.Generator().manual_seed(config.training.seed)
        denoiser = Transformer(config.model).initialise(generator).to(device)
        yield from train_masked(denoiser, config.data, config.training, run)
        save_denoiser(denoiser, run.folder / "denoiser", dtype=torch.float16)
        config.data.save_tokenizer(run.folder / "denoiser")
