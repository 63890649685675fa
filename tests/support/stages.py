"""A second stage on a tiny text denoiser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.text import MADE, examples
from unmask.tasks.jsonl import TextData
from unmask.training.denoiser.masked_trainer import MaskedTraining
from unmask.training.denoiser.second_stage import SecondStage


def stage(tmp_path: Path, family: str, **options: Any) -> SecondStage:
    folder = tmp_path / family
    if not folder.exists():
        MADE[family](folder)
    data = TextData(file=examples(tmp_path / f"{family}.jsonl", family), length=6, held_out=0.3)
    training = MaskedTraining(samples=320, batch=8, lr=2e-2, log_every=10, save_every=10)
    given = {"adapter": "lora", "rank": 4, "order": "confidence", "validate": 6, "loss_on": "reveal", **options}
    return SecondStage(denoiser=str(folder), data=data, training=training, **given)
