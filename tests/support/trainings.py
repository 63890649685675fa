"""A policy training of six steps on 4×4 Sudoku, and a denoiser of two positions with one right order."""

from __future__ import annotations

import torch

from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.policy import OrderPolicy, build_policy
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.policy.config import PolicyTraining

DATA = SudokuData(size=4, puzzles=64, clues="5-7")


TRAINING = PolicyTraining(steps=6, prompts=4, group=3, states=16, mu=2, correctness=0.5, validate_every=2, save_every=2)


def small(kind: str = "grid", token_width: int = 0) -> tuple[Transformer, OrderPolicy]:
    denoiser = load_denoiser("sudoku-4x4")
    assert isinstance(denoiser, Transformer)
    torch.manual_seed(0)
    config = PolicyConfig(kind=kind, width=8, n_layers=1, n_heads=2, token_width=token_width)
    return denoiser, build_policy(config, denoiser, "sudoku-4x4")


class TwoPositions:
    """A denoiser of two positions whose answer is (1, 2): position 0 is ``sure`` of the other token until position 1 is known."""

    mask_id, pad_id, end_ids, forbidden_ids = 0, None, (), (0,)

    def __init__(self, first: float, sure: float, second: float) -> None:
        self.first, self.sure, self.second = first, sure, second
        self.forwarded = 0

    def hidden(self, tokens: torch.Tensor, attention: torch.Tensor | None = None) -> torch.Tensor:
        self.forwarded += len(tokens)
        known = (tokens[:, 1] != 0).float()
        logits = torch.zeros(len(tokens), 2, 3)
        logits[:, 0, 1] = self.first + 8.0 * known
        logits[:, 0, 2] = self.sure * (1 - known)
        logits[:, 1, 2] = self.second
        return logits

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    @staticmethod
    def problems(step: int, batch: int) -> Canvas:
        return Canvas(tokens=torch.zeros(batch, 2, dtype=torch.long), target=torch.tensor([[1, 2]]).expand(batch, -1))

    @staticmethod
    def policy() -> OrderPolicy:
        torch.manual_seed(0)
        return OrderPolicy(PolicyConfig(kind="mlp", width=8, length=2, vocab_size=3))
