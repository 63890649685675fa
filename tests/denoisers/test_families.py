"""Published checkpoints on our transformer: against plain arithmetic in their own layout, against numbers from their own code, and
the errors when one does not fit.

``family_logits.json`` holds the logits of each family's public modelling code on ``family_fixtures.weights``, float32, one canvas:
LLaDA and Dream from NVlabs/Fast-dLLM (``llada/model``, ``dream/model``, with Dream's shift as its ``generation_utils.py`` does it),
iLLaDA from the hub's ``ILLaDAForCausalLM``, SMDM from ML-GSAI/SMDM (``lit_gpt/diffmodel.py``, its bfloat16 table of sines in
float32, flash-attn's and xformers' kernels replaced by the formulas that they document).
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.families import CONFIGS, DREAM, ILLADA, LLADA, MASKS, shapes, weights, write
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.denoisers.checkpoint import build_empty
from unmask.denoisers.families import DENOISERS, Published, smdm
from unmask.denoisers.loading import load_denoiser, split_qkv
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.heuristics import confidence

FAMILIES = list(CONFIGS)
STORED = json.loads((Path(__file__).parent / "family_logits.json").read_text())


def family(folder: Path, name: str, **changes: Any) -> Transformer:
    denoiser = load_denoiser(write(folder / name, name, **changes))
    assert isinstance(denoiser, Transformer)
    return denoiser


def plain_logits(name: str, tokens: list[int]) -> Tensor:
    """One row in float64, from the tensors by their published names."""
    w = {key: value.double() for key, value in weights(name).items()}
    length = len(tokens)
    if name == "llada":
        heads, kv_heads, theta, eps, layers = 4, 4, 500000.0, 1e-5, 2
        block, wte, last = "model.transformer.blocks", "model.transformer.wte", "model.transformer.ln_f"
        parts = ("attn_norm", "attn_out", "ff_norm", "ff_proj", "up_proj", "ff_out")
        head = w["model.transformer.ff_out.weight"]
    elif name == "smdm":
        heads, kv_heads, theta, eps, layers = 2, 2, 10000.0, 1e-5, 2
        block, wte, last = "transformer.h", "transformer.wte", "transformer.ln_f"
        parts = ("norm_1", "attn.proj", "norm_2", "mlp.swiglu.w1", "mlp.swiglu.w2", "mlp.swiglu.w3")
        head = w["lm_head.weight"]
    else:
        heads, kv_heads, eps, layers = 4, 2, 1e-6, 2
        theta = 1000000.0 if name == "dream" else 10000.0
        block, wte, last = "model.layers", "model.embed_tokens", "model.norm"
        mlp = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
        parts = ("input_layernorm", "self_attn.o_proj", "post_attention_layernorm", *mlp)
        head = w["lm_head.weight" if name == "dream" else "model.embed_tokens.weight"]
    x = w[f"{wte}.weight"][torch.tensor(tokens)]
    wide = x.shape[1] // heads
    for n in range(layers):
        norm_1, proj, norm_2, gate, up, down = (w[f"{block}.{n}.{part}.weight"] for part in parts)
        y = x / (x.pow(2).mean(1, keepdim=True) + eps).sqrt() * norm_1
        if name == "smdm":  # per head: its query, its key, its value
            fused = (y @ w[f"{block}.{n}.attn.attn.weight"].T).view(length, heads, 3, wide)
            q, k, v = fused[:, :, 0], fused[:, :, 1], fused[:, :, 2]
        else:
            inside = "" if name == "llada" else "self_attn."
            q, k, v = (y @ w[f"{block}.{n}.{inside}{a}_proj.weight"].T for a in "qkv")
            if name == "dream":
                q, k, v = (z + w[f"{block}.{n}.self_attn.{a}_proj.bias"] for a, z in zip("qkv", (q, k, v), strict=True))
            q, k, v = q.view(length, heads, wide), k.view(length, kv_heads, wide), v.view(length, kv_heads, wide)
        turned = []
        for z in (q, k):
            z = z.clone()
            for place in range(length):
                for i in range(wide // 2):
                    angle = place * theta ** (-2 * i / wide)
                    a, b = z[place, :, i].clone(), z[place, :, i + wide // 2].clone()
                    z[place, :, i] = a * math.cos(angle) - b * math.sin(angle)
                    z[place, :, i + wide // 2] = b * math.cos(angle) + a * math.sin(angle)
            turned.append(z)
        q, k = turned
        mixed = torch.zeros(length, heads, wide, dtype=torch.float64)
        for h in range(heads):
            shared = h // (heads // kv_heads)
            mixed[:, h] = (q[:, h] @ k[:, shared].T / math.sqrt(wide)).softmax(1) @ v[:, shared]
        x = x + mixed.flatten(1) @ proj.T
        y = x / (x.pow(2).mean(1, keepdim=True) + eps).sqrt() * norm_2
        gated = y @ gate.T
        x = x + (gated * gated.sigmoid() * (y @ up.T)) @ down.T
    x = x / (x.pow(2).mean(1, keepdim=True) + eps).sqrt() * w[f"{last}.weight"]
    logits = x @ head.T
    return torch.cat([logits[:1], logits[:-1]]) if name == "dream" else logits


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_arithmetic_in_the_published_layout(name: str, tmp_path: Path) -> None:
    denoiser = family(tmp_path, name)
    tokens = STORED[name]["tokens"]
    ours = denoiser.logits(denoiser.hidden(torch.tensor([tokens])))[0]
    torch.testing.assert_close(ours.double(), plain_logits(name, tokens), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_numbers_of_the_published_code(name: str, tmp_path: Path) -> None:
    """The largest difference measured was 0 for LLaDA, Dream and SMDM, and 4e-6 for iLLaDA (eager attention)."""
    denoiser = family(tmp_path, name)
    ours = denoiser.logits(denoiser.hidden(torch.tensor([STORED[name]["tokens"]])))[0]
    torch.testing.assert_close(ours, torch.tensor(STORED[name]["logits"]), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_decodes_as_its_rows_do(name: str, tmp_path: Path) -> None:
    """Rows of three lengths, padded left, right and on both sides, whatever stands in the padding."""
    denoiser, mask = family(tmp_path, name), MASKS[name]
    rows = [[7, mask, mask, 9, mask], [mask, 6, mask], [3, 4, mask, 11, mask, mask, 8, mask]]
    decoding = Decoding(block=6, stop_at_end=False)
    alone = [unmask(denoiser, confidence, torch.tensor([row]), decoding) for row in rows]
    long = 9
    for lefts in ([4, 6, 1], [0, 0, 0], [2, 3, 1]):
        tokens = torch.randint(30, (3, long), generator=torch.Generator().manual_seed(3))
        attention = torch.zeros(3, long, dtype=torch.bool)
        for r, (row, left) in enumerate(zip(rows, lefts, strict=True)):
            tokens[r, left : left + len(row)] = torch.tensor(row)
            attention[r, left : left + len(row)] = True
        together = unmask(denoiser, confidence, Canvas(tokens, attention=attention), decoding)
        for r, (row, left, single) in enumerate(zip(rows, lefts, alone, strict=True)):
            inside = slice(left, left + len(row))
            assert torch.equal(together.tokens[r, inside], single.tokens[0])
            assert torch.equal(together.rank[r, inside], single.rank[0])
            count = int(single.reveals[0])
            torch.testing.assert_close(together.logp[r, :count], single.logp[0], atol=1e-4, rtol=1e-4)
            assert mask not in together.tokens[r, inside]


def test_the_first_token_of_a_padded_dream_row_is_not_predicted_by_padding(tmp_path: Path) -> None:
    denoiser = family(tmp_path, "dream")
    row = torch.tensor([STORED["dream"]["tokens"]])
    padded, real = torch.nn.functional.pad(row, (3, 0), value=4), torch.ones(1, 11, dtype=torch.bool)
    real[:, :3] = False
    first = denoiser.hidden(padded, real)[:, 3]
    torch.testing.assert_close(first, denoiser.hidden(row)[:, 0], atol=1e-5, rtol=1e-5)
    assert (first - denoiser.hidden(padded)[:, 3]).abs().max() > 1e-2


def test_fused_heads_are_split_by_group() -> None:
    """Two groups of two queries each: q q k v | q q k v, in heads of one row."""
    config = TransformerConfig(vocab_size=2, width=4, n_layers=1, n_heads=4, n_kv_heads=2, ffn=4, mask_id=0)
    fused = torch.arange(8.0)[:, None].expand(8, 4)
    assert split_qkv(fused, config, "q")[:, 0].tolist() == [0, 1, 4, 5]
    assert split_qkv(fused, config, "k")[:, 0].tolist() == [2, 6]
    assert split_qkv(fused, config, "v")[:, 0].tolist() == [3, 7]


PUBLISHED_SMDM = """6 4 256 1024, 8 6 384 1536, 8 8 512 2048, 9 9 576 2304, 10 10 640 2560, 13 10 640 2560, 16 8 640 1600,
12 12 768 3072, 15 12 768 3072, 18 12 768 3072, 14 14 896 3584, 16 14 896 3584, 18 14 896 3584, 16 16 1024 4096, 18 16 1024 4096,
20 16 1024 4096, 18 10 1280 5120, 21 10 1280 5120, 18 11 1408 5632, 24 10 1280 5120, 21 11 1408 5632, 19 12 1536 6144,
24 11 1408 5632, 22 12 1536 6144, 25 12 1536 6144, 20 14 1792 7168, 24 14 1792 7168, 22 16 2048 8192, 25 16 2048 8192,
28 17 2176 8704"""
"""Layers, heads, width and FFN of all models in SMDM's ``lit_gpt/config.py``."""


@pytest.mark.parametrize("size", [tuple(map(int, size.split())) for size in PUBLISHED_SMDM.split(",")])
def test_every_size_of_smdm_is_inferred_from_its_shapes(size: tuple[int, int, int, int]) -> None:
    layers, heads, width, ffn = size
    stored = {"width": width, "ffn": ffn, "layers": layers, "rows": 32001}
    config = smdm(Published({}, shapes("smdm", stored), {}))
    assert (config.n_layers, config.n_heads, config.width, config.ffn) == size
    assert (config.n_kv_heads, config.mask_id, config.vocab_size, config.head_rows) == (heads, 32000, 32001, 32000)
    assert (config.max_length, config.end_ids) == (2048, (2,))


BIG_LLADA = {
    "d_model": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 32, "mlp_hidden_size": 12288,
    "vocab_size": 126464, "embedding_size": 126464, "mask_token_id": 126336, "eos_token_id": 126081,
}  # fmt: skip
BIG_DREAM = {
    "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "intermediate_size": 18944, "vocab_size": 152064,
}  # fmt: skip
BIG_ILLADA = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 155136,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({**LLADA, **BIG_LLADA}, 16_031_162_368 // 2),  # total_size of its index, in bytes of bfloat16
        ({**DREAM, **BIG_DREAM}, 7_615_616_512),  # Qwen2.5-7B's
        ({**ILLADA, **BIG_ILLADA}, 7_615_025_152),  # 7.62B on its card, of which 6.98B are not the embedding
    ],
)
def test_the_published_sizes(config: dict[str, Any], count: int) -> None:
    family = DENOISERS[config["architectures"][0]]
    denoiser = build_empty(family.configure(Published(config, {}, {})))
    assert sum(p.numel() for p in denoiser.parameters()) == count
    name = {"LLaDAModelLM": "llada", "DreamModel": "dream", "ILLaDAForCausalLM": "illada"}[config["architectures"][0]]
    assert {family.theirs(ours) for ours, _ in denoiser.named_parameters()} == shapes(name, config).keys()
