"""What a policy adds to a decoding step, measured on LLaDA-8B's shape and on smaller backbones of its block.

The parts of a step in the middle of a decoding (half of the answer hidden, half of its block) are timed alternately: the trunk, the
policy, and head and prices over all hidden positions and over those of the block. In any order

    added = policy / (trunk + prices of all hidden positions),

and in blocks, where a heuristic prices only its block and a policy everything hidden,

    added = (policy + prices of all − prices of the block) / (trunk + prices of the block),

or, for a policy that reads its block alone (``blockwise``), policy / (trunk + prices of the block).

Parts, and not whole decodings: the difference is smaller than the noise of a forward. The paper reports 1.67 % (Table
inference_cost: GSM8K, 128 tokens, LLaDA-8B). LLaDA-8B in float32 takes 32 GB; one layer's weights at all 32 depths take 5 and
cost the same time. Prices cost more than their FLOPs, for they are bound by memory. At LLaDA's ratio of head to trunk a narrower
backbone has more prices per FLOP of its trunk, so its measured overhead is an upper estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from unmask.decoding.loop import look
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import price
from unmask.decoding.protocols import Canvas
from unmask.decoding.rows import LiveRows
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.policy import OrderPolicy
from unmask.training.cost.flops import LLADA_8B, TEXT_POLICY, head_flops, parameters, policy_flops, trunk_flops
from unmask_studies.bench.backbones import backbone, llada_like, policy_for, random_tokens, share_layer
from unmask_studies.bench.measuring import Finding, time_rounds

PAPER = 1.67
"""Per cent."""


@dataclass(frozen=True)
class PolicyCost:
    """A canvas of ``prompt`` given and ``length`` other tokens. ``vocabularies``: None keeps LLaDA's ratio of head to trunk.

    ``whole`` measures LLaDA-8B's own shape too, which takes 5 GB and a minute a forward on one core.
    """

    width: int = 1024
    layers: int = 8
    vocabularies: tuple[int | None, ...] = (None, 126_464)
    prompt: int = 128
    length: int = 128
    block: int = 32
    whole: bool = True
    repeats: int = 3


QUICK = PolicyCost(width=256, layers=2, vocabularies=(None,), prompt=64, length=64, whole=False, repeats=2)


def measure_policy_cost(config: PolicyCost) -> Iterator[Finding]:
    for vocabulary in config.vocabularies:
        shape = llada_like(config.width, config.layers, vocabulary)
        name = f"{config.layers} layers of width {config.width}, {shape.vocab_size:,} tokens"
        yield from time_parts(backbone(shape), config, name)
        yield from count_flops(shape, config, name)
    if config.whole:
        yield from time_parts(share_layer(LLADA_8B), config, "LLaDA-8B")
    yield from count_flops(LLADA_8B, config, "LLaDA-8B")
    yield Finding("the paper's overhead on LLaDA-8B", PAPER, "%")


@torch.no_grad()
def time_parts(denoiser: Transformer, config: PolicyCost, name: str) -> Iterator[Finding]:
    policy = policy_for(denoiser)
    total, half = config.prompt + config.length, config.length // 2
    tokens = random_tokens(denoiser, 1, total, hidden=half, seed=1)
    live = LiveRows(denoiser, Canvas(tokens, seeds=torch.zeros(1, dtype=torch.long)), Decoding(config.block))
    view = look(denoiser, live, policy, None, {})
    states = view.states[0, -half:]

    def price_first(positions: int) -> object:
        return price(denoiser.logits(states[:positions]), denoiser.forbidden_ids)

    calls = {
        "trunk": lambda: denoiser.hidden(tokens),
        "all": lambda: price_first(half),
        "block": lambda: price_first(config.block // 2),
        "policy": lambda: policy(view),
    }
    times = time_rounds(calls, config.repeats)
    trunk, whole, block, own = (np.array(times[part]) for part in calls)
    added = {
        "any order": own / (trunk + whole),
        f"blocks of {config.block}": (own + whole - block) / (trunk + block),
        f"blocks of {config.block}, blockwise": own / (trunk + block),
    }
    for how, shares in added.items():
        yield Finding.median(f"measured, {how}: {name}", (100 * shares).tolist(), "%")


def count_flops(shape: TransformerConfig, config: PolicyCost, name: str) -> Iterator[Finding]:
    """FLOPs and weights alone, of the same step."""
    canvas, half = config.prompt + config.length, config.length // 2
    rest = trunk_flops(shape, canvas) + head_flops(shape, half)
    own = policy_flops(TEXT_POLICY, shape, canvas)
    yield Finding(f"FLOPs alone, any order: {name}", 100 * own / rest, "%")
    in_block = trunk_flops(shape, canvas) + head_flops(shape, config.block // 2)
    more = own + head_flops(shape, half - config.block // 2)
    yield Finding(f"FLOPs alone, blocks of {config.block}: {name}", 100 * more / in_block, "%")
    # Without embeddings the policy is the same for every backbone.
    weights = sum(p.numel() for p in OrderPolicy(TEXT_POLICY).parameters())
    yield Finding(f"weights of the policy over the backbone's: {name}", 100 * weights / parameters(shape), "%")
