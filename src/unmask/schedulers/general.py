"""The general policy: blocks of the denoiser's own kind that go on from its final states.

It knows nothing of a task. What it inherits is the denoiser's attention: the blocks start as copies of the denoiser's last ones,
and the prices of the state, where the vocabulary is small also the distributions and the tokens, are added at their entrance by
layers that start at zero. A denoiser wider than the policy, or a policy without states, gets new blocks of the policy's own width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.decoding.kv_store import Place
from unmask.denoisers.masked_lm import MaskedLMBlocks
from unmask.denoisers.transformer import Blocks, TransformerConfig
from unmask.runs.config import read

SMALL_VOCABULARY = 64
"""Up to here the policy reads whole distributions and embeds the tokens."""


class General(nn.Module):
    """``shape`` is that of the blocks; ``states_width`` that of the states they go on from, 0 if they read prices alone."""

    def __init__(self, shape: Mapping[str, Any], n_features: int, vocab_size: int | None, states_width: int) -> None:
        super().__init__()
        self.blocks = blocks = build_blocks(shape)
        width = blocks.width
        self.enter = nn.Linear(n_features, width)
        self.token = nn.Embedding(vocab_size, width) if vocab_size else None
        self.narrow = None
        if states_width == width:  # the blocks begin with what they know: the denoiser's states
            for parameter in (*self.enter.parameters(), *(self.token.parameters() if self.token else ())):
                nn.init.zeros_(parameter)
        elif states_width:
            self.narrow = nn.Sequential(nn.RMSNorm(states_width), nn.Linear(states_width, width, bias=False))
        self.norm = nn.RMSNorm(width)
        self.readout = nn.Linear(width, 1)

    def forward(
        self,
        features: Float[Tensor, "b L F"],
        tokens: Int[Tensor, "b L"],
        states: Float[Tensor, "b L D"] | None,
        real: Bool[Tensor, "b L"] | None,
        at: Place,
    ) -> Float[Tensor, "N"]:
        """Of the hidden positions ``at``."""
        x = self.enter(features)
        if self.token is not None:
            x = x + self.token(tokens)
        if states is not None:
            states = states.to(x.dtype)
            x = x + (states if self.narrow is None else self.narrow(states))
        return self.readout(self.norm(self.blocks(x, real, at)))[:, 0]


def build_blocks(shape: Mapping[str, Any]) -> Blocks | MaskedLMBlocks:
    """Blocks of this shape: of a model of transformers if it names a ``model_type``, else of this library's transformer."""
    if "model_type" in shape:
        return MaskedLMBlocks(dict(shape))
    return Blocks(read(TransformerConfig, dict(shape), "the policy's blocks"))


def blocks_for(denoiser: Any, width: int, n_layers: int, n_heads: int, states: bool) -> Any:
    """Copies of the denoiser's last blocks; new ones of ``width`` if it is wider, has none to copy, or ``states`` are not read."""
    copy = getattr(denoiser, "last_blocks", None)
    if states and copy is not None and denoiser.config.width <= width:
        return copy(n_layers).float()
    return Blocks(TransformerConfig(1, width, n_layers, n_heads, 2 * width, 0))


def distributions(
    logp: Float[Tensor, "N V"], at: tuple[Tensor, Tensor], shape: torch.Size, vocab_size: int
) -> Float[Tensor, "b L F"]:
    """p and log p of every token, 0 where nothing was priced."""
    logp = nn.functional.pad(logp.clamp(min=-20.0), (0, vocab_size - logp.shape[1]), value=-20.0)
    packed = torch.cat([logp.exp(), logp / 5], dim=1)
    return packed.new_zeros(*shape, packed.shape[1]).index_put(at, packed)
