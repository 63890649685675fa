"""What an order policy adds to a decoding step, measured on LLaDA-8B's shape and on smaller backbones of its block.

The parts of a step in the middle of a decoding (half of the answer hidden, half of its block) are timed in turns: the trunk, the
policy, and head and prices over all hidden positions and over those of the block. In any order

    added = policy / (trunk + prices of all hidden positions),

and in blocks, where a heuristic prices only its block and a policy everything hidden,

    added = (policy + prices of all − prices of the block) / (trunk + prices of the block),

or, for a policy that reads its block alone (``blockwise``), policy / (trunk + prices of the block).

Parts, and not whole decodings: what is sought is smaller than the noise of a forward. The paper reports 1.67 % (Table
inference_cost: GSM8K, 128 tokens, LLaDA-8B). LLaDA-8B in float32 takes 32 GB; one layer's weights at all 32 depths take 5 and
cost the same time. Prices cost more than their FLOPs, for they are bound by memory. At LLaDA's ratio of head to trunk a narrower
backbone has more prices per FLOP of its trunk, so what is measured there is rather too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from unmask.decoding.loop import look
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import price
from unmask.decoding.protocols import Canvas
from unmask.decoding.rows import LiveRows
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.policy import OrderPolicy
from unmask.training.cost.flops import LLADA_8B, TEXT_POLICY, head_flops, parameters, policy_flops, trunk_flops
from unmask_studies.bench.backbones import backbone, llada_like, policy_for, repeated
from unmask_studies.bench.measuring import Finding, rounds

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


def policy_cost(config: PolicyCost) -> Iterator[Finding]:
    for vocabulary in config.vocabularies:
        shape = llada_like(config.width, config.layers, vocabulary)
        name = f"{config.layers} layers of width {config.width}, {shape.vocab_size:,} tokens"
        yield from measured(backbone(shape), config, name)
        yield from computed(shape, config, name)
    if config.whole:
        yield from measured(repeated(LLADA_8B), config, "LLaDA-8B")
    yield from computed(LLADA_8B, config, "LLaDA-8B")
    yield Finding("the paper's overhead on LLaDA-8B", PAPER, "%")


@torch.no_grad()
def measured(denoiser: Transformer, config: PolicyCost, name: str) -> Iterator[Finding]:
    policy = policy_for(denoiser)
    total, half = config.prompt + config.length, config.length // 2
    tokens = torch.randint(denoiser.mask_id, (1, total), generator=torch.Generator().manual_seed(1))
    tokens[:, -half:] = denoiser.mask_id
    live = LiveRows(denoiser, Canvas(tokens, seeds=torch.zeros(1, dtype=torch.long)), Decoding(config.block))
    view = look(denoiser, live, policy, None, {})
    states = view.states[0, -half:]

    def priced(positions: int) -> object:
        return price(denoiser.logits(states[:positions]), denoiser.forbidden_ids)

    calls = {
        "trunk": lambda: denoiser.hidden(tokens),
        "all": lambda: priced(half),
        "block": lambda: priced(config.block // 2),
        "policy": lambda: policy(view),
    }
    times = rounds(calls, config.repeats)
    parts = list(zip(*(times[name] for name in calls), strict=True))
    any_order = [100 * policy / (trunk + whole) for trunk, whole, _, policy in parts]
    in_blocks = [100 * (policy + whole - block) / (trunk + block) for trunk, whole, block, policy in parts]
    yield Finding.median(f"measured, any order: {name}", any_order, "%")
    yield Finding.median(f"measured, blocks of {config.block}: {name}", in_blocks, "%")
    alone = [100 * policy / (trunk + block) for trunk, _, block, policy in parts]
    yield Finding.median(f"measured, blocks of {config.block}, blockwise: {name}", alone, "%")


def computed(shape: TransformerConfig, config: PolicyCost, name: str) -> Iterator[Finding]:
    """FLOPs and weights alone, of the same step."""
    canvas, half = config.prompt + config.length, config.length // 2
    rest = trunk_flops(shape, canvas) + head_flops(shape, half)
    own = policy_flops(TEXT_POLICY, shape, canvas)
    yield Finding(f"FLOPs alone, any order: {name}", 100 * own / rest, "%")
    in_block = trunk_flops(shape, canvas) + head_flops(shape, config.block // 2)
    more = own + head_flops(shape, half - config.block // 2)
    yield Finding(f"FLOPs alone, blocks of {config.block}: {name}", 100 * more / in_block, "%")
    weights = sum(
        p.numel() for p in OrderPolicy(TEXT_POLICY).parameters()
    )  # without embeddings, the same for every backbone
    yield Finding(f"weights of the policy over the backbone's: {name}", 100 * weights / parameters(shape), "%")
