"""What the studies of open text train: a denoiser of characters, and policies for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from unmask.denoisers.checkpoint import save_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.run import Run
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import build_policy
from unmask.training.denoiser.masked_trainer import MaskedTraining, train_masked
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.trainer import PolicyJob, train_policy
from unmask_studies.reports import get_denoiser
from unmask_studies.study import Result
from unmask_studies.text.passages import ALPHABET, MASK, Passages
from unmask_studies.text.sentences import END, Sentences
from unmask_studies.training_runs import is_finished, read_history

STATISTICS = ("confidence", "entropy", "position", "margin", "progress", "left", "right")
"""What the policies of these studies read."""
Source = Passages | Sentences


@dataclass(frozen=True)
class CharacterDenoiser:
    """The configuration of a denoiser's run."""

    model: TransformerConfig
    data: Source
    training: MaskedTraining


@dataclass(frozen=True)
class CharacterPolicy:
    """The same of a policy's run."""

    denoiser: str
    policy: PolicyConfig
    data: Source
    training: PolicyTraining


def shape_denoiser(source: Source, width: int, layers: int) -> TransformerConfig:
    """A transformer for the canvases of ``source``, which know an end token if sentences end."""
    shape = TransformerConfig(
        vocab_size=ALPHABET,
        width=width,
        n_layers=layers,
        n_heads=4,
        ffn=2 * width,
        mask_id=MASK,
        max_length=source.width,
        positions="rotary",
    )
    return replace(shape, pad_id=END, end_ids=(END,)) if isinstance(source, Sentences) else shape


def train_character_denoiser(place: Path, config: CharacterDenoiser, seed: int) -> Result:
    """The denoiser is in ``place/denoiser`` at the end."""
    if not is_finished(place, "denoiser"):
        run = Run.create(place, config, resume=True)
        with run.lock():
            model = Transformer(config.model).initialise(torch.Generator().manual_seed(seed))
            for _ in train_masked(model, config.data, config.training, run):
                pass
            save_denoiser(model, place / "denoiser", dtype=torch.float16)
    return {"samples": config.training.samples}


def train_character_policy(place: Path, config: CharacterPolicy, problems: Source | None = None) -> Result:
    """The policy is in ``place/policy`` at the end. ``problems`` are other draws from the same text than ``config.data``."""
    if not is_finished(place):
        training, model = config.training, get_denoiser(config.denoiser)
        teacher = load_scheduler(training.teacher, model) if training.teacher else None
        run = Run.create(place, config, resume=True)
        with run.lock():
            torch.manual_seed(training.seed)
            policy = build_policy(config.policy, model, config.denoiser)
            held_out = config.data.held_out("validation", training.validate)
            job = PolicyJob(model, policy, problems or config.data, training, held_out, run, teacher=teacher)
            for _ in train_policy(job):
                pass
    return read_history(place)
