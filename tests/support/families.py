"""Tiny checkpoints in the exact layout of each family: their names, their shapes, their configuration files.

The weights are a function of the tensor's name alone, drawn from numpy's frozen legacy generator, so that a stored logit can be
checked on any machine. ``CONFIGS`` are the published ``config.json`` files with small numbers in them; SMDM publishes none.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

MASK = 29
LLADA = {
    "activation_type": "silu",
    "alibi": False,
    "architectures": ["LLaDAModelLM"],
    "attention_layer_norm": False,
    "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig", "AutoModel": "modeling_llada.LLaDAModelLM"},
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 16,
    "embedding_size": 32,
    "eos_token_id": 27,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": MASK,
    "max_sequence_length": 24,
    "mlp_hidden_size": 24,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_heads": 4,
    "n_kv_heads": 4,
    "n_layers": 2,
    "pad_token_id": 27,
    "rms_norm_eps": 1e-5,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "use_cache": False,
    "vocab_size": 31,
    "weight_tying": False,
}
DREAM = {
    "architectures": ["DreamModel"],
    "auto_map": {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"},
    "bos_token_id": 26,
    "eos_token_id": 26,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "mask_token_id": MASK,
    "max_position_embeddings": 24,
    "model_type": "Dream",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 26,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 32,
}
ILLADA = {
    "architectures": ["ILLaDAForCausalLM"],
    "attention_bias": False,
    "auto_map": {"AutoModelForCausalLM": "modeling_illada.ILLaDAForCausalLM"},
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "layer_norm_eps": None,
    "max_position_embeddings": 24,
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": 32,
}
CONFIGS: dict[str, dict[str, Any] | None] = {"llada": LLADA, "illada": ILLADA, "dream": DREAM, "smdm": None}
MASKS = {"llada": MASK, "illada": 5, "dream": MASK, "smdm": 31}
SMDM = {"width": 128, "ffn": 40, "layers": 2, "rows": 32}
"""The smallest width whose heads (of 64) are inferred from the shapes."""


def shapes(family: str, config: dict[str, Any] | None = None) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint by its published name."""
    c: dict[str, Any] = config or CONFIGS[family] or SMDM
    if family == "llada":
        d, f, rows = c["d_model"], c["mlp_hidden_size"], c["embedding_size"] or c["vocab_size"]
        kv = d // c["n_heads"] * c["n_kv_heads"]
        found: dict[str, tuple[int, ...]] = {
            "model.transformer.wte.weight": (rows, d),
            "model.transformer.ln_f.weight": (d,),
            "model.transformer.ff_out.weight": (rows, d),
        }
        for i in range(c["n_layers"]):
            block = f"model.transformer.blocks.{i}."
            found |= {
                block + "attn_norm.weight": (d,),
                block + "q_proj.weight": (d, d),
                block + "k_proj.weight": (kv, d),
                block + "v_proj.weight": (kv, d),
                block + "attn_out.weight": (d, d),
                block + "ff_norm.weight": (d,),
                block + "ff_proj.weight": (f, d),
                block + "up_proj.weight": (f, d),
                block + "ff_out.weight": (d, f),
            }
        return found
    if family == "smdm":
        d, f, rows = c["width"], c["ffn"], c["rows"]
        found = {"transformer.wte.weight": (rows, d), "transformer.ln_f.weight": (d,), "lm_head.weight": (rows - 1, d)}
        for i in range(c["layers"]):
            block = f"transformer.h.{i}."
            found |= {
                block + "norm_1.weight": (d,),
                block + "attn.attn.weight": (3 * d, d),
                block + "attn.proj.weight": (d, d),
                block + "norm_2.weight": (d,),
                block + "mlp.swiglu.w1.weight": (f, d),
                block + "mlp.swiglu.w2.weight": (f, d),
                block + "mlp.swiglu.w3.weight": (d, f),
            }
        return found
    d, f, rows = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    kv = d // c["num_attention_heads"] * c["num_key_value_heads"]
    found = {"model.embed_tokens.weight": (rows, d), "model.norm.weight": (d,)}
    if not c["tie_word_embeddings"]:
        found["lm_head.weight"] = (rows, d)
    for i in range(c["num_hidden_layers"]):
        block = f"model.layers.{i}."
        found |= {
            block + "input_layernorm.weight": (d,),
            block + "self_attn.q_proj.weight": (d, d),
            block + "self_attn.k_proj.weight": (kv, d),
            block + "self_attn.v_proj.weight": (kv, d),
            block + "self_attn.o_proj.weight": (d, d),
            block + "post_attention_layernorm.weight": (d,),
            block + "mlp.gate_proj.weight": (f, d),
            block + "mlp.up_proj.weight": (f, d),
            block + "mlp.down_proj.weight": (d, f),
        }
        if family == "dream":
            found |= {block + f"self_attn.{a}_proj.bias": (d if a == "q" else kv,) for a in "qkv"}
    return found


def weights(family: str, config: dict[str, Any] | None = None) -> dict[str, Tensor]:
    """Numbers of a size that moves logits: norms around 1, everything else around 0."""
    made = {}
    for name, shape in shapes(family, config).items():
        norm = "norm" in name or "ln_f" in name
        # Wide layers get smaller numbers, lest every attention become a choice of one.
        scale = 0.4 if len(shape) == 1 else 1.6 / shape[-1] ** 0.5
        drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
        made[name] = torch.from_numpy((1.0 * norm + scale * drawn).astype(np.float32))
    return made


def write(folder: Path, family: str, shards: int = 1, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """A checkpoint on disk: a folder as the hub has it; for SMDM, which has no configuration, the file itself."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = CONFIGS[family]
    config = None if stored is None else {**stored, **changes}
    tensors = {name: tensor.to(dtype) for name, tensor in weights(family, config).items()}
    if config is None:
        file = folder / "mdm-1M-1e18.safetensors"
        save_file(tensors, file)
        return file
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    files = [f"model-{n + 1:05d}-of-{shards:05d}.safetensors" for n in range(shards)]
    place = {name: files[n % shards] for n, name in enumerate(names)}
    for file in files:
        save_file({name: tensors[name] for name in names if place[name] == file}, folder / file)
    index = {"metadata": {"total_size": 0}, "weight_map": place}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
