"""Our loop against the published ones, on one backbone with LLaDA-8B's ratio of head to trunk.

Both sides run the same forwards of the same module and reveal the same tokens; what differs is everything around them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding import paces as pace
from unmask.decoding.caching import with_cache
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Denoiser, View
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.heuristics import confidence
from unmask.training.cost.flops import LLADA_8B, head_flops, trunk_flops
from unmask_studies.bench import loops
from unmask_studies.bench.backbones import backbone, llada_like, random_tokens
from unmask_studies.bench.measuring import Finding, ratios, time_rounds


@dataclass(frozen=True)
class DecodingBench:
    width: int = 1024
    layers: int = 8
    prompt: int = 64
    length: int = 32
    block: int = 8
    steps: int = 32
    repeats: int = 3


QUICK = DecodingBench(width=128, layers=2, prompt=16, length=16, block=8, steps=16, repeats=2)


def measure_decoding(config: DecodingBench) -> Iterator[Finding]:
    """Their time over ours. Raises where the tokens differ: a ratio of two different answers means nothing."""
    loops.require_published()
    plain = backbone(llada_like(config.width, config.layers))
    shifted = _shift(plain)
    prompt = random_tokens(plain, 1, config.prompt, hidden=0, seed=3)
    tokens = torch.nn.functional.pad(prompt, (0, config.length), value=plain.mask_id)
    blocks, whole = Decoding(config.block, config.steps), Decoding(pace=_dream_pace(config.length, config.steps))
    rivals: dict[str, tuple[Callable[..., Tensor], Transformer, Denoiser, Decoding]] = {
        "LLaDA": (loops.llada, plain, plain, blocks),
        "Dream": (loops.dream, plain, shifted, whole),
        "Fast-dLLM, dual cache": (loops.fast_dllm, plain, with_cache(plain, "dual"), blocks),
    }
    for name, (loop, theirs, ours, decoding) in rivals.items():
        model = loops.AsPublished(theirs)
        calls: dict[str, Callable[[], Any]] = {
            "theirs": partial(loop, model, prompt, config.length, config.block, config.steps),
            "ours": partial(unmask, ours, confidence, tokens, decoding, record=False),
        }
        if not torch.equal(calls["theirs"](), calls["ours"]().tokens):
            raise ValueError(f"{name}'s loop and ours reveal different tokens on the same weights: nothing to compare")
        times = time_rounds(calls, config.repeats, warm=False)
        yield Finding.median(f"{name}: their time over ours", ratios(times["theirs"], times["ours"]), "×")
    trajectory = unmask(plain, confidence, tokens, blocks, record=False)
    yield Finding(
        "share of decoding that is denoiser and pricing", 100 * trajectory.denoiser_seconds / trajectory.seconds, "%"
    )
    for name, shape in (("this backbone", plain.config), ("LLaDA-8B", LLADA_8B)):
        most = most_saved(shape, config.prompt + config.length, config.block)
        yield Finding(f"FLOPs with the whole head over those without: {name}", most, "×")


def most_saved(shape: TransformerConfig, canvas: int, block: int) -> float:
    """What a loop saves at most that computes the head only where it may reveal: (block + 1)/2 positions in the mean."""
    trunk = trunk_flops(shape, canvas)
    return (trunk + head_flops(shape, canvas)) / (trunk + head_flops(shape, 1) * (block + 1) / 2)


def list_sources() -> dict[str, str]:
    """Which loops run: the published files, or the plain ones written here."""
    return {name: "published file" if os.environ.get(name) else "plain loop" for name in loops.PUBLISHED}


def _shift(denoiser: Transformer) -> Transformer:
    """The same weights as Dream reads them: a state predicts the token to its right."""
    twin = Transformer(replace(denoiser.config, logit_shift=True))
    twin.load_state_dict(denoiser.state_dict(), assign=True)
    return twin.requires_grad_(False).eval()


def _dream_pace(length: int, steps: int) -> pace.Pace:
    """Dream's counts, but for the steps that reveal nothing."""
    counts = [count for count in loops.dream_counts(length, steps) if count]

    def rule(view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"]) -> Bool[Tensor, "b L"]:
        return pace.top(view, keys, torch.full_like(quota, counts[view.step]))

    return rule
