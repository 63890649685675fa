"""The arithmetic of denoisers and policies in closed form.

A multiplication and an addition are two FLOPs; norms, rotations and activations are not counted, as in
``torch.utils.flop_counter``.
"""

from __future__ import annotations

from unmask.denoisers.transformer import TransformerConfig
from unmask.schedulers.policy import PolicyConfig


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


def policy_flops(policy: PolicyConfig, shape: TransformerConfig, length: int) -> int:
    """The policy's scores of one canvas. ``d`` its width, ``F`` what it reads of a position."""
    d, features = policy.width, len(policy.features) + 1
    if policy.kind == "mlp":
        return 2 * length * (features * d + d * d + d)
    if policy.kind == "transformer":
        layer = 8 * d * d + 2 * length * d  # q, k, v, out and an FFN of twice the width; attention's two products
        return 2 * length * (features * d + policy.n_layers * layer + d)
    if policy.kind == "hidden":
        return 2 * length * (shape.width * d + d)
    n = shape.grid
    if n is None:
        raise ValueError("a grid policy needs a denoiser of grids: choose another kind of policy")
    cells, units = n * n, 3 * n
    spread = 2 * units * cells * n * d  # pooling into units and spreading out of them: a product of that size each
    mixing = 3 * cells * n * d * d + units * n * d * d + cells * d * d
    return 2 * cells * n * 7 * d + policy.n_layers * (2 * spread + 2 * mixing) + 2 * cells * d
