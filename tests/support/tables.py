"""Denoisers and schedulers that are tables: what exact quantities are compared with.

``T`` masked states of ``n`` positions and ``V`` tokens; ``S = 2^n`` states of a lattice; ``b`` rows, ``L`` positions of a canvas.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.protocols import Scheduler, View
from unmask.theory.lattice import Lattice


class TableDenoiser:
    """A denoiser that looks its answers up: tokens are the digits ``0 … V−1``, the mask is ``V``."""

    def __init__(self, table: Float[Tensor, "T n V"]) -> None:
        self.table = table
        self.mask_id = table.shape[2]
        self.pad_id: int | None = None
        self.end_ids: tuple[int, ...] = ()
        self.forbidden_ids: tuple[int, ...] = ()
        self.forwarded = 0

    def hidden(
        self, tokens: Int[Tensor, "B n"], attention: Bool[Tensor, "B n"] | None = None
    ) -> Float[Tensor, "B n V"]:
        self.forwarded += len(tokens)
        n, V = self.table.shape[1:]
        return self.table[(tokens * (V + 1) ** torch.arange(n - 1, -1, -1)).sum(1)]

    def logits(self, hidden: Float[Tensor, "*N V"]) -> Float[Tensor, "*N V"]:
        return hidden


def tabular_scheduler(lattice: Lattice, scores: Float[Tensor, "S n"]) -> Scheduler:
    """A scheduler that looks its scores up by the set of revealed positions: decoding at τ follows softmax(scores/τ).

    With ``choice_logp(scores, τ)`` and ``policy_gradient`` it makes sampled gradients comparable with exact ones.
    """
    positions = lattice.positions
    bits = 2 ** torch.arange(len(positions), device=positions.device)

    def score(view: View) -> Float[Tensor, "b L"]:
        state = ((~view.hidden[:, positions]).long() * bits).sum(1)
        dense = torch.full(view.tokens.shape, -torch.inf, dtype=torch.float32, device=view.tokens.device)
        columns = positions.expand(len(state), -1)
        return dense.scatter(1, columns, scores[state].float())

    return score
