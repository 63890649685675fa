"""The kind ``grid``: Sudoku's symmetries are built in. ``n`` digits of a board of ``L`` cells, ``u`` units, ``d`` width."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.decoding.kv_store import Place
from unmask.decoding.protocols import View
from unmask.denoisers.checkpoint import Shape, require_plausible_size
from unmask.schedulers.config import KINDS, PolicyConfig
from unmask.schedulers.features import confidence_logit
from unmask.schedulers.networks import Kept, TokenwiseNetwork

PER_DIGIT = 7
"""Features of a cell and digit."""


class Grid(TokenwiseNetwork):
    """A vector per cell *and* digit, the same weights for all of them.

    Each layer mixes a vector with means over its row, its column, its box, and over the digits of its cell. Relabelling digits,
    permuting bands, rows, stacks and columns, or transposing permutes the scores and changes none (rows and columns share their
    weights). Means count: that one digit is left for a cell, or one cell for a digit, is a threshold on a mean; softmax attention
    would have to learn it. Pooling and spreading are two products with the cells' incidence matrix.
    """

    looks_around = True
    reads_standing = True
    needs_board = True

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        if not config.size:
            raise ValueError("a grid policy needs a denoiser of grids: its configuration has no size")
        size, width = config.size, config.width
        height = max(h for h in range(1, size + 1) if size % h == 0 and h * h <= size)
        row, column = torch.arange(size * size) // size, torch.arange(size * size) % size
        box = row // height * height + column // (size // height)
        units = torch.cat([F.one_hot(unit, size).T for unit in (row, column, box)]).float()
        self.register_buffer("units", units, persistent=False)
        self.register_buffer("columns", torch.arange(size) + 1, persistent=False)
        self.distribution = config.distribution
        self.enter = nn.Linear(PER_DIGIT, width)
        self.layers = nn.ModuleList(_Mixing(width, size) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, 1)

    @classmethod
    def check(cls, config: PolicyConfig) -> None:
        if config.blockwise:
            raise ValueError("a grid policy reads the whole board: blockwise goes with the other kinds")

    @classmethod
    def keeps(cls, config: PolicyConfig) -> Kept:
        return {"logp": ((config.vocab_size - 1,), torch.float32), "best": ((), torch.long)}

    @classmethod
    def fit(cls, config: PolicyConfig, denoiser: Any) -> tuple[PolicyConfig, dict[str, Tensor]]:
        if not config.size:
            others = ", ".join(kind for kind in KINDS if kind != "grid")
            raise ValueError(
                f"{config.denoiser} is no denoiser of boards: policy.kind must be one of {others}, got grid"
            )
        return config, {}

    @classmethod
    def require_plausible(cls, config: PolicyConfig, stored: Mapping[str, Shape], file: Path) -> None:
        require_plausible_size(config.n_layers * config.width**2, stored, file, config.n_layers)

    def observe(self, view: View) -> dict[str, Tensor]:
        logp = view.prices.logp
        spread = logp.new_zeros(*view.tokens.shape, logp.shape[1]).index_put(view.at, logp)
        return {"logp": spread[..., 1:], "best": view.best}

    def forward(self, seen: dict[str, Tensor], at: Place | None) -> Float[Tensor, "b L"]:
        """Read at the likeliest digit of each cell."""
        x, best = self.mix(seen)
        at_best = x.gather(2, best[..., None, None].expand(-1, -1, 1, x.shape[-1]))[:, :, 0]
        return self.readout(self.norm(at_best))[..., 0]

    def compare_tokens(self, seen: dict[str, Tensor], at: Place) -> tuple[Float[Tensor, "N V"], Float[Tensor, "N V"]]:
        return self.readout(self.norm(self.mix(seen)[0][at]))[..., 0], seen["logp"][at]

    def mix(self, seen: dict[str, Tensor]) -> tuple[Float[Tensor, "b L n d"], Int[Tensor, "b L"]]:
        """The vectors of every cell and digit, and the likeliest digit of each cell, counted from 0."""
        best = (seen["best"] - 1).clamp(min=0)
        x = self.enter(self.digit_features(seen, best))
        for layer in self.layers:
            x = layer(x, self.units)
        return x, best

    def digit_features(self, seen: dict[str, Tensor], best: Int[Tensor, "b L"]) -> Float[Tensor, "b L n F"]:
        """Per cell and digit: p, log p, revealed here, hidden cell, the logit of p̂, entropy, whether it is the likeliest."""
        hidden = seen["hidden"][..., None]
        digits = seen["logp"].shape[-1]
        logp = seen["logp"].clamp(min=-20.0).masked_fill(~hidden, 0.0)
        p = logp.exp() * hidden
        revealed = F.one_hot(seen["tokens"], digits + 1)[..., 1:].float()
        if not self.distribution:
            p, logp = (x * F.one_hot(best, digits) for x in (p, logp))
        logit = (confidence_logit(seen)[..., None] / 10).masked_fill(~hidden, 0.0).expand_as(p)
        entropy = -(p * logp).sum(-1, keepdim=True).expand_as(p)
        leading = F.one_hot(best, digits).float() * hidden
        return torch.stack([p, logp / 5, revealed, hidden.float().expand_as(p), logit, entropy, leading], dim=-1)


class _Mixing(nn.Module):
    """One layer of :class:`Grid`: project a vector, average over its units and its cell, mix."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.norm = nn.LayerNorm(width)
        self.look = nn.Linear(width, width)
        self.own = nn.Linear(width, width)
        self.line, self.box, self.cell = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "b L n d"], units: Float[Tensor, "u L"]) -> Float[Tensor, "b L n d"]:
        inner = F.gelu(self.look(self.norm(x)))
        pooled = (units / self.size @ inner.flatten(2)).unflatten(2, inner.shape[2:])  # b u n d
        lines = 2 * self.size
        spread = torch.cat([self.line(pooled[:, :lines]), self.box(pooled[:, lines:])], dim=1)
        mixed = self.own(inner) + (units.T @ spread.flatten(2)).unflatten(2, inner.shape[2:])
        mixed = mixed + self.cell(inner.mean(2, keepdim=True))
        return x + self.out(F.gelu(mixed))
