"""Shapes of denoisers; their FLOPs and weights, and those of policies, counted on meta tensors: nothing is allocated or computed.

A multiplication and an addition are two FLOPs; norms, rotations and activations are not counted (``torch.utils.flop_counter``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from unmask.assets import MODELS
from unmask.denoisers.checkpoint import FAMILY, Checkpoint, has_weights, read_config, read_json
from unmask.denoisers.families import Published, find_family
from unmask.denoisers.loading import added_tokens, list_denoisers
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.names import did_you_mean
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.policy import OrderPolicy, choose_network, fit_config

SHAPES = {
    # config.json of GSAI-ML/LLaDA-8B-Instruct
    "llada-8b": TransformerConfig(126_464, 4096, 32, 32, 12_288, 126_336, rope_theta=500_000.0, rope_float32=True),
    "dream-7b": TransformerConfig(
        152_064, 3584, 28, 28, 18_944, 151_666, n_kv_heads=4, qkv_bias=True, logit_shift=True
    ),
    "smdm-1b": TransformerConfig(32_001, 1792, 20, 14, 7168, 32_000, head_rows=32_000),
}
LLADA_8B = SHAPES["llada-8b"]
TEXT_POLICY = PolicyConfig(kind="transformer", width=128, n_layers=1, n_heads=4, tokens=False)
"""A policy for a language model: the paper's one-layer encoder over log p̂, entropy and position. The paper gives no widths."""


def shape_of(name: str) -> TransformerConfig:
    """A denoiser's shape: one of ``SHAPES``, a shipped name, a run, a folder or its config.json. No weight is read."""
    if name in SHAPES:
        return SHAPES[name]
    path = Path(name)
    folders = [path.parent] if path.name == "config.json" else [MODELS / name, path / "denoiser", path]
    folder = next((f for f in folders if (f / "config.json").is_file()), None)
    if folder is None:
        known = [*SHAPES, *list_denoisers()]
        raise ValueError(
            f"no shape {name!r}: expected a folder with a config.json, or one of {', '.join(known)}{did_you_mean(name, known)}"
        )
    stored = read_json(folder / "config.json")
    if stored.get("family") == FAMILY:
        return read_config(folder)
    family = find_family(stored)
    if family is None:
        raise ValueError(
            f"{folder} is none of this library's own transformers: name the nearest of {', '.join(SHAPES)}"
        )
    tensors = Checkpoint(folder).shapes if has_weights(folder) else {}
    try:
        return family.configure(Published(stored, tensors, added_tokens(folder)))
    except KeyError as error:
        raise ValueError(f"{folder}: {error.args[0]} is missing") from None


def count_flops(call: Callable[[], object]) -> dict[str, int]:
    """FLOPs of a call by operator. The counter does not know fused attention, but the products it stands for."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    return {str(operator).split(".")[-1]: flops for operator, flops in counter.get_flop_counts()["Global"].items()}


@cache
def _one_layer(config: TransformerConfig, ffn: int) -> Transformer:
    """A layer with one SwiGLU of this width and full attention: a mask and a choice of experts cost nothing here."""
    plain = replace(config, n_layers=1, ffn=ffn, experts=None, attention="full", attention_block=None, seeded=False)
    with torch.device("meta"):
        return Transformer(plain).requires_grad_(False).to("meta")


@cache
def _trunk_flops(config: TransformerConfig, length: int) -> Counter[str]:
    """By operator. Of a mixture, the experts that a position takes count, and the router."""
    tokens = torch.empty(1, length, dtype=torch.long, device="meta")
    total = Counter(router=2 * length * _router_weights(config))
    for ffn, layers in config.ffn_widths(taken=True).items():
        counts = count_flops(lambda ffn=ffn: _one_layer(config, ffn).hidden(tokens))
        total.update({operator: layers * flops for operator, flops in counts.items()})
    return total


def trunk_flops(config: TransformerConfig, length: int) -> int:
    """``hidden`` of one canvas."""
    return _trunk_flops(config, length).total()


def linear_flops(config: TransformerConfig) -> int:
    """Of one position through the trunk, attention's products aside."""
    length = config.grid**2 if config.grid else 1  # a denoiser of boards takes whole boards
    counts = _trunk_flops(config, length)  # attention's products are bmm
    return (counts.total() - counts["bmm"]) // length


def _router_weights(config: TransformerConfig, biases: bool = False) -> int:
    e = config.experts
    return 0 if e is None else (config.n_layers - len(e.dense)) * (config.width + (biases and e.bias)) * e.count


@cache
def head_flops(config: TransformerConfig, positions: int) -> int:
    states = torch.empty(positions, config.width, device="meta")
    return sum(count_flops(lambda: _one_layer(config, 1).logits(states)).values())


def parameters(config: TransformerConfig) -> int:
    """Weights of the whole denoiser."""
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    whole = _one_layer(config, 1)
    blocks = sum(n * count(_one_layer(config, ffn).blocks) for ffn, n in config.ffn_widths().items())
    return count(whole) - count(whole.blocks) + blocks + _router_weights(config, biases=True)


def observation(policy: PolicyConfig, width: int, vocabulary: int, length: int) -> dict[str, Tensor]:
    """What a policy keeps of one state of ``length`` positions, as meta tensors."""
    of = lambda *size, dtype=torch.float32: torch.empty(1, length, *size, dtype=dtype, device="meta")  # noqa: E731
    seen = {"eligible": of(dtype=torch.bool), "hidden": of(dtype=torch.bool), "tokens": of(dtype=torch.long)}
    seen |= {"confidence": of(), **({"base": of()} if policy.residual and policy.base != "confidence" else {})}
    network, complete = choose_network(policy), replace(policy, vocab_size=vocabulary)
    seen |= {"states": of(width)} if network.reads_states(policy) else {}
    return seen | {name: of(*size, dtype=dtype) for name, (size, dtype) in network.keeps(complete).items()}


@cache
def policy_flops(policy: PolicyConfig, shape: TransformerConfig, length: int) -> int:
    """The policy's scores of one canvas."""
    vocabulary = shape.head_rows or shape.vocab_size
    with torch.device("meta"):
        complete, _ = fit_config(policy, Transformer(shape), "the denoiser")
        # Not in evaluation, where a TransformerEncoder is one operator without a count.
        network = OrderPolicy(complete).train().to("meta")
    seen = observation(policy, shape.width, vocabulary, length)
    if not network.network.needs_board:  # the others read their values: no padding, all hidden
        seen["real"] = seen["hidden"] = torch.ones(1, length, dtype=torch.bool)
    return sum(count_flops(lambda: network.score(seen)).values())
