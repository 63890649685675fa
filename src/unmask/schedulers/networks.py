"""Networks from the observation of a state to one number per position. ``b`` states, ``L`` positions, ``F`` features, ``d`` width.

``mlp``, ``transformer`` and ``hidden`` are the paper's (appendices "Policy Architecture" and "Hidden-State"); ``grid`` is ours.
Each returns a *residual*: the policy adds it to the confidence score, and the last layer starts at zero.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    """Every position by itself: statistics and token embedding through two hidden layers."""

    def __init__(self, n_features: int, width: int, vocab_size: int | None, length: int | None) -> None:
        super().__init__()
        self.enter = Enter(n_features, width, vocab_size, length)
        self.body = nn.Sequential(nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.readout = nn.Linear(width, 1)

    def forward(
        self, features: Float[Tensor, "b L F"], tokens: Int[Tensor, "b L"], real: Bool[Tensor, "b L"] | None
    ) -> Float[Tensor, "b L"]:
        return self.readout(self.body(self.enter(features, tokens)))[..., 0]


class Attentive(nn.Module):
    """A small Transformer encoder: positions are scored relative to each other."""

    def __init__(
        self, n_features: int, width: int, n_layers: int, n_heads: int, vocab_size: int | None, length: int | None
    ) -> None:
        super().__init__()
        self.enter = Enter(n_features, width, vocab_size, length)
        layer = nn.TransformerEncoderLayer(width, n_heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, 1)

    def forward(
        self, features: Float[Tensor, "b L F"], tokens: Int[Tensor, "b L"], real: Bool[Tensor, "b L"] | None
    ) -> Float[Tensor, "b L"]:
        x = self.body(self.enter(features, tokens), src_key_padding_mask=None if real is None else ~real)
        return self.readout(self.norm(x))[..., 0]


class Projection(nn.Module):
    """The frozen denoiser's own states: linear, activation, linear. No attention: they are contextual already."""

    def __init__(self, hidden_width: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden_width)
        self.project = nn.Linear(hidden_width, width)
        self.readout = nn.Linear(width, 1)

    def forward(self, states: Float[Tensor, "b L D"]) -> Float[Tensor, "b L"]:
        return self.readout(F.gelu(self.project(self.norm(states))))[..., 0]


class Enter(nn.Module):
    """Statistics, and where the vocabulary is small the token and the position, into ``d`` channels."""

    def __init__(self, n_features: int, width: int, vocab_size: int | None, length: int | None) -> None:
        super().__init__()
        self.features = nn.Linear(n_features, width)
        self.token = nn.Embedding(vocab_size, width) if vocab_size else None
        self.position = nn.Embedding(length, width) if length else None

    def forward(self, features: Float[Tensor, "b L F"], tokens: Int[Tensor, "b L"]) -> Float[Tensor, "b L d"]:
        x = self.features(features)
        if self.token is not None:
            x = x + self.token(tokens)
        if self.position is not None:
            x = x + self.position.weight[: tokens.shape[1]]
        return x


class Grid(nn.Module):
    """A network with Sudoku's symmetries built in: a vector per cell *and* digit, the same weights for all of them.

    Each layer mixes a vector with means over its row, its column, its box, and over the digits of its cell. Relabelling digits,
    permuting bands, rows, stacks and columns, or transposing permutes the scores and changes none (rows and columns share their
    weights). Means count: that one digit is left for a cell, or one cell for a digit, is a threshold on a mean; softmax attention
    would have to learn it. Pooling and spreading are two products with the cells' incidence matrix.
    """

    def __init__(self, size: int, n_features: int, width: int, n_layers: int) -> None:
        super().__init__()
        height = max(h for h in range(1, size + 1) if size % h == 0 and h * h <= size)
        row, column = torch.arange(size * size) // size, torch.arange(size * size) % size
        box = row // height * height + column // (size // height)
        units = torch.cat([F.one_hot(unit, size).T for unit in (row, column, box)]).float()
        self.register_buffer("units", units, persistent=False)
        self.enter = nn.Linear(n_features, width)
        self.layers = nn.ModuleList(_Mixing(width, size) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, 1)

    def forward(self, features: Float[Tensor, "b L n F"], best: Int[Tensor, "b L"]) -> Float[Tensor, "b L"]:
        """``features`` per cell and digit; ``best`` the likeliest digit (counted from 0), where the score is read."""
        x = self.enter(features)
        for layer in self.layers:
            x = layer(x, self.units)
        at_best = x.gather(2, best[..., None, None].expand(-1, -1, 1, x.shape[-1]))[:, :, 0]
        return self.readout(self.norm(at_best))[..., 0]


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
