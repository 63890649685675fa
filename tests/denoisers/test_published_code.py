"""Logits of the published modelling code and of ours, in float32 and in bfloat16: not one bit apart.

Environment variables name the published code: ``UNMASK_LLADA_CODE`` a folder with LLaDA's ``modeling_llada.py`` and
``configuration_llada.py``, ``UNMASK_DREAM_CODE`` one with Dream's ``modeling_dream.py``, ``configuration_dream.py`` and
``generation_utils.py``. NVlabs/Fast-dLLM has both (``llada/model``, ``dream/model``).
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.families import DREAM, LLADA, weights, write
from support.published import load_package
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import RMSNorm, TransformerConfig

TYPES = [torch.float32, torch.bfloat16]
LLADAS: list[dict[str, Any]] = [
    {}, {"n_kv_heads": 2}, {"n_kv_heads": 1}, {"include_qkv_bias": True}, {"rope_full_precision": False}, {"rms_norm_eps": 1e-3},
    {"d_model": 32, "mlp_hidden_size": 96}, {"n_layers": 5, "max_sequence_length": 300},
]  # fmt: skip
DREAMS: list[dict[str, Any]] = [
    {}, {"num_key_value_heads": 4}, {"hidden_size": 32, "rms_norm_eps": 1e-5},
    {"num_hidden_layers": 5, "max_position_embeddings": 300},
]  # fmt: skip


def tensors(name: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a variant; biases, which the layout without them lacks, like the others."""
    found = weights(name, config)
    if config.get("include_qkv_bias"):
        for key in [key for key in found if key.endswith("_proj.weight") and key.split(".")[-2][0] in "qkv"]:
            found[key.replace("weight", "bias")] = found[key][:, 0].clone()
    return found


def largest_difference(folder: Path, name: str, dtype: torch.dtype, theirs: nn.Module, config: dict[str, Any]) -> float:
    """Over three canvases. The parameters alone change their type: buffers stay in float32, as ``from_pretrained`` leaves them."""
    held = tensors(name, config)
    write(folder, name, **config)
    if config.get("include_qkv_bias"):
        from safetensors.torch import save_file

        save_file(held, folder / "model.safetensors")
    shorter = {key.removeprefix("model.") if name == "llada" else key: tensor for key, tensor in held.items()}
    theirs.load_state_dict(shorter, strict=False)
    for parameter in theirs.parameters():
        parameter.data = parameter.data.to(dtype)
    length = config.get("max_sequence_length", config.get("max_position_embeddings", 24)) - 4
    tokens = torch.randint(31, (3, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        wanted = theirs.eval()(tokens).logits
    if name == "dream":
        wanted = torch.cat([wanted[:, :1], wanted[:, :-1]], dim=1)
    ours = load_denoiser(folder, dtype)
    logits = ours.logits(ours.hidden(tokens))
    assert logits.dtype == wanted.dtype == dtype
    assert float(wanted.float().std()) > 0.1
    return float((logits.float() - wanted.float()).abs().max())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("changes", LLADAS, ids=str)
def test_llada_itself(changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    parts = load_package("UNMASK_LLADA_CODE", "configuration_llada", "modeling_llada")
    known = {field.name for field in fields(parts["configuration_llada"].ModelConfig)}
    dropout = {"residual_dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0, "init_device": "cpu"}
    config = {**LLADA, **changes}
    made = parts["configuration_llada"].ModelConfig(**{k: v for k, v in config.items() if k in known}, **dropout)
    theirs = parts["modeling_llada"].LLaDAModel(made)
    assert largest_difference(tmp_path, "llada", dtype, theirs, config) == 0


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("changes", DREAMS, ids=str)
def test_dream_itself(changes: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    parts = load_package("UNMASK_DREAM_CODE", "configuration_dream", "generation_utils", "modeling_dream")
    modelling = parts["modeling_dream"]

    def rope(config: Any, device: Any = None, **_: Any) -> tuple[Tensor, float]:  # transformers 5 has it no more
        width = config.hidden_size // config.num_attention_heads
        return 1.0 / config.rope_theta ** (torch.arange(0, width, 2, dtype=torch.float32) / width), 1.0

    modelling.ROPE_INIT_FUNCTIONS = {"default": rope}
    config = {**DREAM, **changes}
    hidden = ("architectures", "auto_map", "model_type")
    made = parts["configuration_dream"].DreamConfig(**{k: v for k, v in config.items() if k not in hidden})
    made._attn_implementation, made.rope_theta, made.rope_scaling = "sdpa", config["rope_theta"], None
    assert largest_difference(tmp_path, "dream", dtype, modelling.DreamModel(made), config) == 0


def test_a_norm_in_bfloat16_rounds_as_llamas_code() -> None:
    """What is normalised is rounded, then multiplied by the weight and rounded again; in float32 both norms are the same."""
    config = TransformerConfig(vocab_size=4, width=64, n_layers=1, n_heads=1, ffn=4, mask_id=0, norm_rounds_first=True)
    drawn = torch.Generator().manual_seed(0)
    x, weight = torch.randn(500, 64, generator=drawn), 1 + 0.4 * torch.randn(64, generator=drawn)
    norm, once = RMSNorm(config), nn.RMSNorm(64, eps=config.norm_eps)
    for one in (norm, once):
        one.weight.data = weight
    assert torch.equal(norm(x), once(x))
    x, norm, once = x.bfloat16(), norm.bfloat16(), once.bfloat16()
    wide = x.float()
    normalised = (wide * torch.rsqrt((wide**2).mean(-1, keepdim=True) + config.norm_eps)).bfloat16()
    assert torch.equal(norm(x), norm.weight * normalised)
    assert not torch.equal(norm(x), once(x))


@pytest.mark.parametrize(("name", "first"), [("llada", True), ("dream", True), ("illada", True), ("smdm", False)])
def test_which_families_round_first(name: str, first: bool, tmp_path: Path) -> None:
    """SMDM's fused kernel rounds once."""
    assert load_denoiser(write(tmp_path, name)).config.norm_rounds_first == first  # pyright: ignore
