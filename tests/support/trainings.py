"""A policy training of six steps on 4×4 Sudoku."""

from __future__ import annotations

import torch

from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.schedulers.policy import OrderPolicy, PolicyConfig
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import build_policy

DATA = SudokuData(size=4, puzzles=64, clues="5-7")


TRAINING = PolicyTraining(steps=6, prompts=4, group=3, states=16, mu=2, correctness=0.5, validate_every=2, save_every=2)


def small(kind: str = "grid") -> tuple[Transformer, OrderPolicy]:
    denoiser = load_denoiser("sudoku-4x4")
    assert isinstance(denoiser, Transformer)
    torch.manual_seed(0)
    return denoiser, build_policy(PolicyConfig(kind=kind, width=8, n_layers=1, n_heads=2), denoiser, "sudoku-4x4")
