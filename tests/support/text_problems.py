"""Denoisers for the small text tasks: one that knows nothing, and one that knows everything."""

from __future__ import annotations

import torch

from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.tasks.text_problems import TextProblemKind, TextProblemTask
from unmask.tasks.vocabulary import END, MASK, PAD, VOCABULARY


def tiny(kind: type[TextProblemKind], seed: int = 0) -> Transformer:
    """Random weights, so that nothing is ever solved and everything is quick."""
    config = TransformerConfig(
        vocab_size=VOCABULARY,
        width=16,
        n_layers=1,
        n_heads=2,
        ffn=16,
        mask_id=MASK,
        max_length=kind.prompt_width + kind.lengths[-1],
        positions="learned",
        pad_id=PAD,
        end_ids=(END,),
    )
    return Transformer(config).initialise(torch.Generator().manual_seed(seed)).requires_grad_(False).eval()


class Truthful:
    """Knows the answer to each prompt, and is equally sure of all of it."""

    mask_id, pad_id, end_ids, forbidden_ids = MASK, PAD, (END,), (MASK,)

    def __init__(self, task: TextProblemTask) -> None:
        self.forwarded, self.start = 0, task.kind.prompt_width
        target = task.canvas(range(len(task))).truth
        self.answers = {tuple(row[: self.start].tolist()): row for row in target}

    def hidden(self, tokens: torch.Tensor, attention: torch.Tensor | None = None) -> torch.Tensor:
        self.forwarded += len(tokens)
        truth = torch.stack([self.answers[tuple(row[: self.start].tolist())] for row in tokens])
        return torch.nn.functional.one_hot(truth, VOCABULARY).float() * 20

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden
