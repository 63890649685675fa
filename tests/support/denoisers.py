"""Denoisers whose every answer a test can compute by itself.

``JointTable`` knows the joint distribution, so each order must give the same likelihood. ``Stubborn`` contradicts what is given.
``CountingTable`` prices a position by the whole canvas, in integers, so that a batch is exactly its rows. ``text_denoiser`` is the
real transformer, tiny. All of them prefer the mask token by far: a loop that does not forbid it reveals it.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from unmask.decoding.pricing import price
from unmask.decoding.protocols import View
from unmask.denoisers.transformer import Transformer, TransformerConfig

LOVED = 80.0
"""The logit of the mask token."""


class Runaway(AssertionError):
    """A loop that reveals nothing would never end."""


class Counting(ABC):
    """What the denoisers here share: ids, and counts of their calls."""

    def __init__(
        self,
        vocabulary: int,
        mask_id: int,
        end_ids: tuple[int, ...] = (),
        pad_id: int | None = None,
        limit: int = 10**9,
    ) -> None:
        self.vocabulary, self.mask_id, self.end_ids, self.pad_id = vocabulary, mask_id, end_ids, pad_id
        self.forbidden_ids: tuple[int, ...] = (mask_id,)
        self.forwarded, self.limit = 0, limit
        self.canvases: list[Tensor] = []
        self.priced: list[int] = []

    def hidden(self, tokens: Tensor, attention: Tensor | None = None) -> Tensor:
        self.forwarded += len(tokens)
        if self.forwarded > self.limit:
            raise Runaway(f"more than {self.limit} canvases went through the denoiser")
        self.canvases.append(tokens.clone())
        states = self.answer(tokens, attention)
        states[..., self.mask_id] = LOVED
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """The state of a position is its logits already."""
        self.priced.append(len(hidden))
        return hidden

    @abstractmethod
    def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
        """The logits of every position ``[b, L, V]``."""


class JointTable(Counting):
    """``joint[x_1, …, x_L]`` in float64, over tokens 0 … V−1; the mask is V. Logits are exact conditionals."""

    def __init__(self, length: int, tokens: int, seed: int = 0) -> None:
        super().__init__(tokens + 1, mask_id=tokens)
        generator = torch.Generator().manual_seed(seed)
        weight = torch.rand([tokens] * length, generator=generator, dtype=torch.float64) ** 4 + 1e-3
        self.joint = weight / weight.sum()

    def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
        length, values = self.joint.dim(), self.mask_id
        states = torch.zeros(*tokens.shape, self.vocabulary, dtype=torch.float64)
        for row, i in itertools.product(range(len(tokens)), range(length)):
            given = [slice(None) if int(t) == values or j == i else int(t) for j, t in enumerate(tokens[row])]
            rest = self.joint[tuple(given)]
            axis = sum(isinstance(g, slice) for g in given[:i])
            states[row, i, :values] = rest.movedim(axis, 0).reshape(values, -1).sum(1).log()
        return states

    def sequences(self) -> Tensor:
        """All V^L sequences, in the order of ``joint.flatten()``."""
        return torch.tensor(list(itertools.product(range(self.mask_id), repeat=self.joint.dim())))


class Stubborn(Counting):
    """Certain that every position, the given ones above all, holds the token after the one that stands there."""

    def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
        wanted = (tokens + 1) % self.vocabulary
        wanted = torch.where(wanted == self.mask_id, (wanted + 1) % self.vocabulary, wanted)
        states = torch.zeros(*tokens.shape, self.vocabulary)
        return states.scatter(2, wanted[..., None], 30.0)


class CountingTable(Counting):
    """Logits looked up in a table of random numbers by a sum over the canvas, exact whatever the batch and the padding."""

    size = 100_003

    def __init__(self, vocabulary: int = 7, mask_id: int = 3, seed: int = 0, scale: float = 1.5, **ids: Any) -> None:
        super().__init__(vocabulary, mask_id, **ids)
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(self.size, generator=generator) * scale
        self.weight = torch.randint(1, self.size, (256, vocabulary), generator=generator)

    def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
        real = torch.ones_like(tokens, dtype=torch.bool) if attention is None else attention
        place = (real.long().cumsum(1) - 1).clamp(min=0)
        code = (self.weight[place, tokens] * real).sum(1)[:, None, None]
        at = code + 7919 * place[..., None] + 104_729 * torch.arange(self.vocabulary)
        return self.table[at % self.size]


class Fixed(Counting):
    """The same logits ``[L, V]`` for every canvas."""

    def __init__(self, logits: Tensor, mask_id: int, **ids: Any) -> None:
        super().__init__(logits.shape[1], mask_id, **ids)
        self.fixed = logits

    def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
        return self.fixed.expand(len(tokens), -1, -1).clone()


def opinionated(seed: int = 0) -> Transformer:
    """A small random denoiser whose opinions depend strongly on the canvas."""
    config = TransformerConfig(
        vocab_size=5, width=24, n_layers=2, n_heads=3, ffn=32, mask_id=0, max_length=16, positions="learned"
    )
    denoiser = Transformer(config).initialise(torch.Generator().manual_seed(seed))
    for weight in denoiser.parameters():
        if weight.dim() == 2:
            weight.data *= 12
    return denoiser.requires_grad_(False)


def text_denoiser(seed: int = 0, **changes: Any) -> Transformer:
    """Rotary positions, grouped heads, biased q, k and v, shifted logits, an end and a padding token; weights far from 0."""
    settings = {
        "vocab_size": 13,
        "width": 16,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 2,
        "ffn": 24,
        "mask_id": 12,
        "pad_id": 0,
        "end_ids": (1,),
        "forbidden_ids": (0,),
        "qkv_bias": True,
        "logit_shift": True,
    }
    denoiser = Transformer(TransformerConfig(**{**settings, **changes}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in denoiser.named_parameters():
            mean = 1.0 if "norm" in name else 0.0
            parameter.copy_(mean + 0.4 * torch.randn(parameter.shape, generator=generator))
    return denoiser.requires_grad_(False).eval()


def view_of(
    denoiser: Any,
    tokens: Tensor,
    eligible: Tensor | None = None,
    total: Tensor | None = None,
    index: Tensor | None = None,
    step: int = 0,
    block: int | None = None,
    **rest: Any,
) -> View:
    """The view of a first step, put together by hand; every hidden position is eligible by default."""
    hidden = tokens.eq(denoiser.mask_id)
    eligible = hidden if eligible is None else eligible
    index = torch.arange(tokens.shape[1]).expand_as(tokens) if index is None else index
    states = denoiser.hidden(tokens)
    row, position = torch.nonzero(eligible, as_tuple=True)
    return View(
        denoiser=denoiser,
        tokens=tokens,
        attention=None,
        hidden=hidden,
        eligible=eligible,
        index=index,
        place=index % block if block else index,
        rows=torch.arange(len(tokens)),
        step=step,
        total=hidden.sum(1) if total is None else total,
        states=states,
        at=(row, position),
        prices=price(denoiser.logits(states[row, position]), denoiser.forbidden_ids),
        seeds=torch.arange(len(tokens)),
        **rest,
    )
