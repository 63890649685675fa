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
AT_ONCE = 16
"""Boards whose vectors stay in a core's cache while a layer works on them."""


class Grid(TokenwiseNetwork):
    """A vector per cell *and* digit, the same weights for all of them.

    Each layer mixes a vector with means over its row, its column, its box, and over the digits of its cell. Relabelling digits,
    permuting bands, rows, stacks and columns, or transposing permutes the scores and changes none (rows and columns share their
    weights). Means count: that one digit is left for a cell, or one cell for a digit, is a threshold on a mean; softmax attention
    would have to learn it.
    """

    looks_around = True
    reads_standing = True
    needs_board = True

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        if not config.size:
            raise ValueError("a grid policy needs a denoiser of grids: its configuration has no size")
        size, width = config.size, config.width
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
        best = self._best(seen)
        features = self.digit_features(seen, best)
        boards = len(best) if best.device.type != "cpu" or torch.compiler.is_compiling() else AT_ONCE
        parts = zip(features.split(boards), best.split(boards), strict=True)
        return self.readout(self.norm(torch.cat([self._mix(x, digit) for x, digit in parts])))[..., 0]

    def compare_tokens(self, seen: dict[str, Tensor], at: Place) -> tuple[Float[Tensor, "N V"], Float[Tensor, "N V"]]:
        x = self._mix(self.digit_features(seen, self._best(seen)))
        return self.readout(self.norm(x[at]))[..., 0], seen["logp"][at]

    def _best(self, seen: dict[str, Tensor]) -> Int[Tensor, "b L"]:
        """The likeliest digit of each cell, counted from 0."""
        return (seen["best"] - 1).clamp(min=0)

    def _mix(
        self, features: Float[Tensor, "b L n F"], digit: Int[Tensor, "b L"] | None = None
    ) -> Float[Tensor, "b L *n d"]:
        """The vectors of every cell and digit, or of one digit of each cell.

        They have no mean: all norms subtract it, so that nothing is lost and the norms have less to do.
        """
        x = F.linear(features, subtract_mean(self.enter.weight), subtract_mean(self.enter.bias))
        *before, last = self.layers
        for layer in before:
            x = layer(x)
        return last(x, digit)

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


Units = tuple[Float[Tensor, "b 2 n n d"], Float[Tensor, "b n n d"]]
"""Vectors of every line, rows before columns, and of every box, and digit."""


class _Mixing(nn.Module):
    """One layer of :class:`Grid`: project a vector, average over its units and its cell, mix.

    ``first`` is the place of the first digit of each cell's units among the vectors of all units and digits.
    """

    first: Tensor
    mean: Tensor

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.height = max(h for h in range(1, size + 1) if size % h == 0 and h * h <= size)
        cell = torch.arange(size * size)
        row, column = cell // size, cell % size
        box = row // self.height * self.height + column // (size // self.height)
        first = torch.stack([row, size + column, 2 * size + box], dim=1) * size
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("mean", torch.full((width, 1), 1 / width), persistent=False)
        self.norm = nn.LayerNorm(width)
        self.look = nn.Linear(width, width)
        self.own = nn.Linear(width, width)
        self.line, self.box, self.cell = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "b L n d"], digit: Int[Tensor, "b L"] | None = None
    ) -> Float[Tensor, "b L *n d"]:
        """``x`` has no mean. With ``digit`` only that one of each cell is computed."""
        # Passes over memory are what costs: the norm's scale is a factor of a product, what is not read again is overwritten.
        scale = ((x * x) @ self.mean + self.norm.eps).rsqrt()
        shift = F.linear(self.norm.bias, self.look.weight, self.look.bias)
        inner = F.linear(x, self.look.weight * self.norm.weight)
        overwrites = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        inner = F.gelu(torch.addcmul(shift, inner, scale, out=inner if overwrites else None))
        units = self._average(inner)
        cell = F.linear(inner.sum(2), self.cell.weight / self.size, self.own.bias)
        if digit is None:
            mixed = self._add_everywhere(F.linear(inner, self.own.weight), units, cell)
        else:
            x, inner = (_take(vectors, digit) for vectors in (x, inner))
            mixed = F.linear(inner, self.own.weight) + self._read(units, digit) + cell
        return F.linear(F.gelu(mixed), subtract_mean(self.out.weight), subtract_mean(self.out.bias)).add_(x)

    def _average(self, inner: Float[Tensor, "b L n d"]) -> Units:
        """Of each digit over every unit, projected. Sums of the parts of rows in boxes serve both."""
        size, height, width = self.size, self.height, self.size // self.height
        cells = inner.unflatten(1, (size, size))
        parts = cells.unflatten(2, (height, width)).sum(3)
        lines = torch.stack([parts.sum(2), cells.sum(1)], dim=1)
        boxes = parts.unflatten(1, (width, height)).sum(2).flatten(1, 2)
        return F.linear(lines, self.line.weight / size), F.linear(boxes, self.box.weight / size)

    def _add_everywhere(
        self, mixed: Float[Tensor, "b L n d"], units: Units, cell: Float[Tensor, "b L d"]
    ) -> Float[Tensor, "b L n d"]:
        """What the units of a cell, and the cell, say to each of its digits, in place."""
        lines, boxes = units
        rows, columns = lines.unbind(1)
        height, width = self.height, self.size // self.height
        grid = mixed.unflatten(1, (width, height, height, width))
        grid += (rows.unflatten(1, (width, height, 1)) + boxes.unflatten(1, (width, 1, height)))[:, :, :, :, None]
        grid += columns.unflatten(1, (1, 1, height, width))
        mixed += cell[:, :, None]
        return mixed

    def _read(self, units: Units, digit: Int[Tensor, "b L"]) -> Float[Tensor, "b L d"]:
        """What the units of each cell say of one digit."""
        lines, boxes = units
        vectors = torch.cat([lines.flatten(1, 3), boxes.flatten(1, 2)], dim=1)
        board = torch.arange(0, vectors.shape[0] * vectors.shape[1], vectors.shape[1], device=digit.device)
        at = (self.first + board[:, None, None]) + digit[..., None]
        return F.embedding_bag(at.flatten(0, 1), vectors.flatten(0, 1), mode="sum").view(*digit.shape, -1)


def _take(vectors: Float[Tensor, "b L n d"], digit: Int[Tensor, "b L"]) -> Float[Tensor, "b L d"]:
    return vectors.gather(2, digit[..., None, None].expand(-1, -1, 1, vectors.shape[-1]))[:, :, 0]


def subtract_mean(weights: Float[Tensor, "d *F"]) -> Float[Tensor, "d *F"]:
    """Weights whose products have no mean."""
    return weights - weights.mean(0)
