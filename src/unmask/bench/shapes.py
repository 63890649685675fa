"""LLaDA-8B's shape, smaller backbones of its proportions, and the arithmetic of both in closed form.

A multiplication and an addition are two FLOPs; norms, rotations and activations are not counted, as in
``torch.utils.flop_counter``.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.policies.policy import OrderPolicy, PolicyConfig

LLADA_8B = TransformerConfig(
    vocab_size=126_464,
    width=4096,
    n_layers=32,
    n_heads=32,
    ffn=12_288,
    mask_id=126_336,
    rope_theta=500_000.0,
    rope_float32=True,
)
"""``config.json`` of GSAI-ML/LLaDA-8B-Instruct."""
POLICY = PolicyConfig(kind="transformer", width=128, n_layers=1, n_heads=4, tokens=False)
"""An order policy for a language model: the paper's one-layer encoder over log p̂, entropy and place. Its widths are not given."""


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


def policy_for(denoiser: Transformer, config: PolicyConfig = POLICY) -> OrderPolicy:
    """An order policy of the named shape with its initial weights."""
    fitted = replace(config, vocab_size=denoiser.config.vocab_size, mask_id=denoiser.mask_id)
    return OrderPolicy(replace(fitted, hidden_width=denoiser.config.width)).requires_grad_(False).eval()


def linear_flops(c: TransformerConfig) -> int:
    """Of one position through the blocks, attention's products aside."""
    head_width = c.head_width or c.width // c.n_heads
    kv = (c.n_kv_heads or c.n_heads) * head_width
    projections = 2 * c.width * c.n_heads * head_width + 2 * c.width * kv
    return 2 * c.n_layers * (projections + 3 * c.width * c.ffn)


def trunk_flops(c: TransformerConfig, computed: int, attended: int | None = None) -> int:
    """``hidden`` of one canvas: ``computed`` positions that attend to ``attended`` (None: to each other)."""
    inner = c.n_heads * (c.head_width or c.width // c.n_heads)
    return computed * linear_flops(c) + 4 * c.n_layers * computed * (attended or computed) * inner


def head_flops(c: TransformerConfig, positions: int) -> int:
    return 2 * positions * c.width * (c.head_rows or c.vocab_size)


def parameters(c: TransformerConfig) -> int:
    """Weights of blocks, norms, embedding and head."""
    weights = linear_flops(c) // 2 + (2 * c.n_layers + 1) * c.width
    biases = 0
    if c.qkv_bias:
        head_width = c.head_width or c.width // c.n_heads
        biases = c.n_layers * head_width * (c.n_heads + 2 * (c.n_kv_heads or c.n_heads))
    head = 0 if c.tied_head else (c.head_rows or c.vocab_size) * c.width
    places = c.max_length * c.width if c.positions == "learned" else 0
    return weights + biases + c.vocab_size * c.width + head + places


def policy_flops(c: PolicyConfig, positions: int) -> int:
    """A ``transformer`` policy without embeddings on one canvas: enter, encoder layers (FFN of twice the width), readout."""
    if c.kind != "transformer" or c.tokens:
        raise ValueError(
            f"expected a policy of kind 'transformer' without token embeddings, got {c.kind!r}, tokens={c.tokens}"
        )
    features = len(c.features) + 1
    layer = 8 * c.width**2 * positions + 2 * positions**2 * c.width
    return 2 * (positions * features * c.width + c.n_layers * layer + positions * c.width)
