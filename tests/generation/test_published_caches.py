"""Fast-dLLM's caches: its loops around its own LLaDA reveal, token for token, what ours reveal with ``cache`` on the same weights.

With ``UNMASK_LLADA_CODE`` (a folder with LLaDA's modelling code that takes caches, Fast-dLLM's ``llada/model``) and
``UNMASK_FAST_DLLM_DECODER`` (its ``llada/generate.py``, or a checkout). Keys and values are stored and replaced by that code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.families import LLADA, weights, write
from support.published import load_package
from unmask.decoding.loop import unmask
from unmask.decoding.options import Cache, Decoding
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.schedulers.heuristics import confidence
from unmask_studies.bench.loops import load_published

LOOPS: dict[Cache, str] = {
    "none": "generate",
    "prefix": "generate_with_prefix_cache",
    "dual": "generate_with_dual_cache",
}
SHAPES: list[dict[str, Any]] = [{}, {"n_kv_heads": 2}, {"n_layers": 5}]
PROMPTS = [[3, 4, 5, 6, 7], [8], [10, 11, 12, 13, 14, 15, 16]]
SETTINGS: list[tuple[int, int, int, float | None]] = [
    (16, 4, 16, None), (16, 8, 8, None), (24, 12, 12, None), (16, 16, 4, None), (12, 6, 4, None),
    (16, 4, 16, 0.3), (16, 8, 16, 0.1), (24, 12, 24, 0.2), (16, 16, 16, 0.05), (12, 6, 12, 0.5),
]  # fmt: skip
"""L, B, T, threshold."""


class Published:
    """Fast-dLLM's LLaDA, of which the mask and the padding of the vocabulary are never the likeliest token, as after training."""

    device = torch.device("cpu")

    def __init__(self, model: Any, forbidden: tuple[int, ...]) -> None:
        self.model, self.forbidden = model, torch.tensor(forbidden)

    def __call__(self, tokens: Tensor, **options: Any) -> SimpleNamespace:
        found = self.model(tokens, **options)
        logits = found.logits.index_fill(-1, self.forbidden, -1e9)
        return SimpleNamespace(logits=logits, past_key_values=found.attn_key_values)


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def both(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> tuple[Transformer, Published]:
    """The same weights in our transformer and in the published one."""
    parts = load_package("UNMASK_LLADA_CODE", "configuration_llada", "modeling_llada")
    config = {**LLADA, "max_sequence_length": 64, **request.param}
    folder = write(tmp_path_factory.mktemp("llada"), "llada", **config)
    known = {field.name for field in fields(parts["configuration_llada"].ModelConfig)}
    dropout = {"residual_dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0, "init_device": "cpu"}
    made = parts["configuration_llada"].ModelConfig(**{k: v for k, v in config.items() if k in known}, **dropout)
    theirs = parts["modeling_llada"].LLaDAModel(made)
    held = {key.removeprefix("model."): tensor for key, tensor in weights("llada", config).items()}
    theirs.load_state_dict(held, strict=False)
    ours: Any = load_denoiser(folder)
    return ours, Published(theirs.eval(), ours.forbidden_ids)


@pytest.mark.parametrize("cache", LOOPS)
@pytest.mark.parametrize(("length", "block", "steps", "threshold"), SETTINGS)
def test_fast_dllm_itself(
    both: tuple[Transformer, Published], length: int, block: int, steps: int, threshold: float | None, cache: Cache
) -> None:
    published = load_published("UNMASK_FAST_DLLM_DECODER")
    if published is None:
        pytest.skip("UNMASK_FAST_DLLM_DECODER names neither llada/generate.py of Fast-dLLM nor its checkout")
    ours, theirs = both
    loop: Callable[..., tuple[Tensor, int]] = getattr(published, LOOPS[cache])
    pace = "top" if threshold is None else f"threshold:p={threshold}"
    decoding = Decoding(block, steps if threshold is None else None, cache=cache, pace=pace, stop_at_end=False)
    for prompt in PROMPTS:
        given: dict[str, Any] = {"gen_length": length, "block_length": block, "threshold": threshold}
        with torch.compiler.set_stance("force_eager"):
            wanted, _ = loop(theirs, torch.tensor([prompt]), steps=steps, mask_id=ours.mask_id, **given)
        canvas = torch.tensor([prompt + [ours.mask_id] * length])
        found = unmask(ours, confidence, Canvas(canvas), decoding)
        assert torch.equal(found.tokens, wanted)
