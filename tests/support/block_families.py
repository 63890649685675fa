"""Tiny checkpoints of the families with blocks or experts, in the layout of their files, and the public code that runs them.

Tiny-A2D, SDAR, Fast-dLLM v2, Stable-DiffCoder and Nemotron are layers that transformers has: its own classes run them here, under
the mask that each family's code builds. LLaDA-MoE and LLaDA 2 exist as remote code alone: with ``UNMASK_DLLM_CODE`` naming a
checkout of ZHZisZZ/dllm that is run, and ``family_logits.json`` holds what it gave.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

MASK, BLOCK = 29, 4
_SHAPE = {
    "eos_token_id": 26,
    "head_dim": 8,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 26,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 32,
}
_YARN = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 16.0,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 1000000.0,
    "rope_type": "yarn",
}
_plain = {key: value for key, value in _SHAPE.items() if key != "head_dim"}
CONFIGS: dict[str, dict[str, Any]] = {
    "a2d": {"architectures": ["A2DQwen3LMHeadModel"], "model_type": "a2d-qwen3", "mask_token_id": MASK, **_SHAPE},
    "a2d-qwen2": {"architectures": ["A2DQwen2LMHeadModel"], "model_type": "a2d-qwen2", "mask_token_id": MASK, **_plain},
    "sdar": {
        "architectures": ["SDARForCausalLM"],
        "attention_bias": False,
        "block_size": BLOCK,
        "model_type": "sdar",
        "mask_token_id": MASK,
        "rope_scaling": None,
        "use_sliding_window": False,
        **_SHAPE,
    },
    "fast_dllm": {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "bd_size": 8,
        "model_type": "Fast_dLLM_Qwen",
        "mask_token_id": MASK,
        "use_sliding_window": False,
        **_plain,
    },
    "diffcoder": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "mask_token_id": MASK,
        "mlp_bias": False,
        "model_type": "llama",
        **_plain,
    },
    "nemotron": {
        "architectures": ["NemotronLabsDiffusionModel"],
        "attention_bias": False,
        "block_size": BLOCK,
        "dlm_paradigm": "bidirectional",
        "mask_token_id": MASK,
        "mlp_bias": False,
        **_SHAPE,
        "model_type": "nemotron_labs_diffusion",
        "rope_parameters": _YARN,
        "sliding_window": None,
    },
    "llada_moe": {
        "architectures": ["LLaDAMoEModelLM"],
        "attention_bias": False,
        "clip_qkv": None,
        "model_type": "llada",
        "dense_intermediate_size": 24,
        "expert_intermediate_size": 12,
        "shared_expert_intermediate_size": None,
        "mask_token_id": MASK,
        "moe_layer_freq": [0, 1, 1],
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "qk_layernorm": True,
        **_plain,
        "num_hidden_layers": 3,
        "partial_rotary_factor": 1,
        "rms_norm_eps": 1e-5,
    },
    "llada2": {
        "architectures": ["LLaDA2MoeModelLM"],
        "first_k_dense_replace": 1,
        "model_type": "llada2_moe",
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "moe_intermediate_size": 12,
        "n_group": 4,
        "norm_head": False,
        "num_experts": 16,
        "num_experts_per_tok": 3,
        "num_shared_experts": 1,
        "partial_rotary_factor": 0.5,
        "routed_scaling_factor": 2.5,
        "topk_group": 2,
        "use_bias": False,
        "use_qk_norm": True,
        "use_qkv_bias": False,
        **_SHAPE,
        "num_hidden_layers": 3,
        "rope_theta": 600000.0,
    },
}
STOCK = {
    "a2d": ("Qwen3Config", "Qwen3ForCausalLM"),
    "a2d-qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "sdar": ("Qwen3Config", "Qwen3ForCausalLM"),
    "fast_dllm": ("Qwen2Config", "Qwen2ForCausalLM"),
    "diffcoder": ("LlamaConfig", "LlamaForCausalLM"),
    "nemotron": ("Ministral3Config", "Ministral3ForCausalLM"),
}
"""Whose layers transformers has."""


def shapes(family: str) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint by its published name."""
    c = CONFIGS[family]
    d, heads, kv_heads, rows = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["vocab_size"]
    wide = c.get("head_dim", d // heads)
    found: dict[str, tuple[int, ...]] = {"model.norm.weight": (d,), "lm_head.weight": (rows, d)}
    found["model.word_embeddings.weight" if family == "llada2" else "model.embed_tokens.weight"] = (rows, d)
    for n in range(c["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        found |= {layer + f"{x}_layernorm.weight": (d,) for x in ("input", "post_attention")}
        if family == "llada2":
            found[layer + "attention.query_key_value.weight"] = ((heads + 2 * kv_heads) * wide, d)
            found[layer + "attention.dense.weight"] = (d, heads * wide)
            found |= {layer + f"attention.{x}_layernorm.weight": (wide,) for x in ("query", "key")}
        else:
            inner = layer + "self_attn."
            sizes = {"q": heads * wide, "k": kv_heads * wide, "v": kv_heads * wide}
            found |= {f"{inner}{x}_proj.weight": (size, d) for x, size in sizes.items()}
            found[inner + "o_proj.weight"] = (d, heads * wide)
            if family in ("a2d-qwen2", "fast_dllm"):
                found |= {f"{inner}{x}_proj.bias": (size,) for x, size in sizes.items()}
            if family in ("a2d", "sdar", "llada_moe"):
                found |= {f"{inner}{x}_norm.weight": (wide,) for x in "qk"}
        found |= _feed_forward(family, c, n, layer)
    if family == "nemotron":
        found = {
            name.replace("model.", "encoder.").replace("lm_head", "diffusion_head"): x for name, x in found.items()
        }
    return found


def _feed_forward(family: str, c: dict[str, Any], n: int, layer: str) -> dict[str, tuple[int, ...]]:
    d = c["hidden_size"]

    def swiglu(prefix: str, ffn: int) -> dict[str, tuple[int, ...]]:
        up = {f"{prefix}.{x}_proj.weight": (ffn, d) for x in ("gate", "up")}
        return {**up, f"{prefix}.down_proj.weight": (d, ffn)}

    dense = {"llada_moe": n in (0,), "llada2": n < c.get("first_k_dense_replace", 0)}.get(family, True)
    if dense:
        return swiglu(layer + "mlp", c.get("dense_intermediate_size", c["intermediate_size"]))
    ffn = c["expert_intermediate_size"] if family == "llada_moe" else c["moe_intermediate_size"]
    found: dict[str, tuple[int, ...]] = {layer + "mlp.gate.weight": (c["num_experts"], d)}
    for e in range(c["num_experts"]):
        found |= swiglu(f"{layer}mlp.experts.{e}", ffn)
    if family == "llada2":
        found[layer + "mlp.gate.expert_bias"] = (c["num_experts"],)
        found |= swiglu(layer + "mlp.shared_experts", ffn * c["num_shared_experts"])
    return found


def weights(family: str) -> dict[str, Tensor]:
    """A function of the tensor's name alone, as in ``support.families``."""
    made = {}
    for name, shape in shapes(family).items():
        scale = 0.4 if len(shape) == 1 else 1.6 / shape[-1] ** 0.5
        drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
        made[name] = torch.from_numpy((1.0 * ("norm" in name) + scale * drawn).astype(np.float32))
    return made


def write(folder: Path, family: str, **changes: Any) -> Path:
    """A checkpoint as the hub has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIGS[family], **changes}))
    save_file(weights(family), folder / "model.safetensors")
    return folder


def public_model(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """The public code with these weights."""
    named = {k: v for k, v in CONFIGS[family].items() if k not in ("architectures", "model_type", "auto_map")}
    if family in STOCK:
        transformers = pytest.importorskip("transformers", reason="the public layers are transformers'")
        config, model = (getattr(transformers, name) for name in STOCK[family])
        made = model(config(**named, attn_implementation="sdpa"))
        tensors = {
            name.replace("encoder.", "model.").replace("diffusion_head", "lm_head"): x
            for name, x in weights(family).items()
        }
    else:
        made, tensors = _remote_model(family, named), weights(family)
    # As from_pretrained does: what is in the file gets the type, the rotary frequencies stay float32.
    made.load_state_dict({name: x.to(dtype) for name, x in tensors.items()}, assign=True)
    return made.eval()


def _remote_model(family: str, named: dict[str, Any]) -> Any:
    """dllm's copy of the remote code. transformers 5 has no rotary function of the name it looks up: it gets the plain one."""
    checkout = os.environ.get("UNMASK_DLLM_CODE")
    if not checkout:
        pytest.skip("UNMASK_DLLM_CODE names no checkout of ZHZisZZ/dllm")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    def plain(config: Any, device: Any = None, **_: Any) -> tuple[Tensor, float]:
        wide = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        rotated = int(wide * (getattr(config, "partial_rotary_factor", None) or 1.0))
        exponent = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
        return 1.0 / (named["rope_theta"] ** exponent), 1.0

    folder, stem, model = {
        "llada_moe": ("llada", "lladamoe", "LLaDAMoEModelLM"),
        "llada2": ("llada21", "llada21_moe", "LLaDA2MoeModelLM"),
    }[family]
    where = Path(checkout) / "dllm" / "pipelines" / folder / "models"
    package = types.ModuleType(f"public_{family}")
    package.__path__ = [str(where)]
    sys.modules[package.__name__] = package
    parts = []
    for part in ("configuration", "modeling"):
        spec = importlib.util.spec_from_file_location(f"{package.__name__}.{part}_{stem}", where / f"{part}_{stem}.py")
        assert spec and spec.loader
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        parts.append(module)
    config = getattr(parts[0], model.removesuffix("ModelLM") + "Config")(**named)
    config._attn_implementation = "sdpa"
    ROPE_INIT_FUNCTIONS["default"] = plain  # pyright: ignore
    try:
        return getattr(parts[1], model)(config)
    finally:
        del ROPE_INIT_FUNCTIONS["default"]  # or transformers' own models would take it


def public_logits(family: str, dtype: torch.dtype = torch.float32) -> Callable[[Tensor, Tensor | None], Tensor]:
    """``logits(tokens, mask [B, 1, L, L] or None)`` of the public code."""
    model = public_model(family, dtype)

    @torch.no_grad()
    def logits(tokens: Tensor, mask: Tensor | None) -> Tensor:
        return model(tokens, attention_mask=mask, use_cache=False).logits

    return logits
