"""Backbones of LLaDA-8B's proportions that fit here, and policies for them, with random weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.policy import OrderPolicy
from unmask.training.cost.flops import LLADA_8B, TEXT_POLICY, head_flops, linear_flops


def llada_like(width: int, layers: int, vocabulary: int | None = None, length: int = 4096) -> TransformerConfig:
    """LLaDA's block at another width. Without ``vocabulary`` the head is to the trunk what it is in LLaDA-8B."""
    small = replace(
        LLADA_8B, width=width, n_layers=layers, n_heads=max(1, width // 128), ffn=3 * width, max_length=length
    )
    if vocabulary is None:
        share = head_flops(LLADA_8B, 1) / linear_flops(LLADA_8B)
        vocabulary = round(share * linear_flops(small) / (2 * width))
    return replace(small, vocab_size=vocabulary, mask_id=vocabulary - 1)


def backbone(config: TransformerConfig, dtype: torch.dtype = torch.float32, seed: int = 0) -> Transformer:
    """Random weights. The mask's row of the head is 0, so that no decoder, ours or another, prefers to reveal the mask."""
    denoiser = Transformer(config).to(dtype).initialise(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        denoiser.head.weight *= 8  # opinions, so that rounding does not decide an order
        denoiser.head.weight[config.mask_id] = 0
    return denoiser.requires_grad_(False).eval()


def random_tokens(denoiser: Transformer, batch: int, length: int, hidden: int, seed: int) -> Int[Tensor, "B L"]:
    """Canvases of random tokens whose last ``hidden`` positions are masked."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(denoiser.mask_id, (batch, length), generator=generator)
    tokens[:, length - hidden :] = denoiser.mask_id
    return tokens


def share_layer(config: TransformerConfig) -> Transformer:
    """The whole depth with one layer's random weights: what a forward costs, where all layers would not fit."""
    denoiser = backbone(replace(config, n_layers=1))
    denoiser.blocks = torch.nn.ModuleList([denoiser.blocks[0]] * config.n_layers)
    denoiser.config = config
    return denoiser


def policy_for(denoiser: Transformer, config: PolicyConfig = TEXT_POLICY) -> OrderPolicy:
    """An order policy of the named shape with its initial weights."""
    fitted = replace(config, vocab_size=denoiser.config.vocab_size, mask_id=denoiser.mask_id)
    return OrderPolicy(replace(fitted, hidden_width=denoiser.config.width)).requires_grad_(False).eval()
