"""Published families with attention in blocks, norms on queries and keys, or mixtures of experts.

Tiny-A2D, SDAR, Fast-dLLM v2, Stable-DiffCoder and Nemotron-Labs-Diffusion are Qwen, Llama or Ministral blocks under another mask;
LLaDA-MoE and LLaDA 2 have experts. Where a ``config.json`` does not name the mask, the tokenizer's files do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unmask.denoisers.experts import ExpertsConfig
from unmask.denoisers.families import ATTENTION, HUGGINGFACE, SWIGLU, Family, Published, llama_config, tensor_names
from unmask.denoisers.rotary import Yarn
from unmask.denoisers.transformer import TransformerConfig

MASK_NAMES = ("<|mask|>", "<|MASK|>", "<[MASK_TOKEN]>")


def a2d(p: Published) -> TransformerConfig:
    """Tiny-A2D (dllm ``pipelines/a2d``): Qwen3, Qwen2 or Llama with full attention, or in blocks where ``block_size`` is given."""
    named = f"{p.stored.get('architectures')} {p.stored.get('model_type')}".lower()
    kind = next((kind for kind in ("qwen3", "qwen2") if kind in named), "llama")
    p.demand(use_sliding_window=(False, False), mlp_bias=(False, False))
    if kind != "qwen2":
        p.demand(attention_bias=(False, False))
    return replace(
        llama_config(p),
        mask_id=_mask(p),
        qk_norm=kind == "qwen3",
        qkv_bias=kind == "qwen2",
        **_blocks(p.stored.get("block_size")),
        **p.ids("<|im_end|>"),
    )


def sdar(p: Published) -> TransformerConfig:
    """SDAR, TraDo (``modeling_sdar.py``): Qwen3, its norms computed by flash-attn's kernel, which rounds once."""
    p.demand(use_sliding_window=(False, False), attention_bias=(False, False))
    base = replace(llama_config(p), norm_rounds_first=False)
    return replace(
        base, mask_id=_mask(p), qk_norm=True, **_blocks(p.stored.get("block_size", 4)), **p.ids("<|im_end|>")
    )


def fast_dllm(p: Published) -> TransformerConfig:
    """Fast-dLLM v2 (``Fast_dLLM_QwenForCausalLM``): Qwen2.5, shifted; the first token of a block comes from the block before."""
    p.demand(use_sliding_window=(False, False))
    mask = p.stored.get("mask_token_id", p.added.get("|<MASK>|", 151_665))
    blocks = _blocks(p.stored.get("bd_size", 32), seeded=True)
    return replace(llama_config(p), mask_id=mask, qkv_bias=True, logit_shift=True, **blocks, **p.ids("<|im_end|>"))


def diffcoder(p: Published) -> TransformerConfig:
    """Stable-DiffCoder, whose ``config.json`` names it Llama: only its tokenizer, which has a mask, tells the two apart."""
    if "mask_token_id" not in p.stored and not any(name in p.added for name in MASK_NAMES):
        raise ValueError(
            "LlamaForCausalLM without a mask token is an autoregressive model: expected Stable-DiffCoder, whose tokenizer has "
            "<[MASK_TOKEN]>"
        )
    p.demand(attention_bias=(False, False), mlp_bias=(False, False))
    return replace(llama_config(p), mask_id=_mask(p), **_blocks(p.stored.get("block_size", 4)), **p.ids("<|im_end|>"))


def nemotron(p: Published) -> TransformerConfig:
    """Nemotron-Labs-Diffusion: Ministral 3 with YaRN. What is decoded already is seen causally, as its ``generate`` does."""
    p.demand(attention_bias=(False, False), mlp_bias=(False, False), sliding_window=(None, None))
    if p.stored.get("dlm_paradigm", "bidirectional") == "autoregressive":
        raise ValueError("config.json has dlm_paradigm = 'autoregressive': it denoises nothing")
    rope = {**(p.stored.get("rope_scaling") or {}), **(p.stored.get("rope_parameters") or {})}
    yarn = _yarn(rope, p) if rope.get("rope_type") == "yarn" else None
    given = {**p.stored, "rope_theta": rope.get("rope_theta", p.stored.get("rope_theta", 1e6))}
    plain = replace(p, stored={**given, "rope_scaling": None, "rope_parameters": None} if yarn else given)
    return replace(
        llama_config(plain),
        norm_eps=p.stored.get("rms_norm_eps", 1e-5),
        mask_id=p.whole("mask_token_id"),
        yarn=yarn,
        attention="causal_prefix",
        attention_block=p.stored.get("block_size", 32),
        seeded=True,
        **p.ids(),
    )


def llada_moe(p: Published) -> TransformerConfig:
    """LLaDA-MoE-7B-A1B (``modeling_lladamoe.py``): full attention, softmax experts. Its mask is 156895 on its card."""
    p.demand(attention_bias=(False, False), clip_qkv=(None, None))
    layers = p.stored.get("moe_layer_freq") or []
    experts = ExpertsConfig(
        count=p.whole("num_experts"),
        top=p.whole("num_experts_per_tok"),
        ffn=p.whole("expert_intermediate_size"),
        shared_ffn=max(p.stored.get("shared_expert_intermediate_size") or 0, 0),
        bias=bool(p.stored.get("moe_router_enable_expert_bias")),
        dense=tuple(n for n in range(p.whole("num_hidden_layers")) if n < len(layers) and layers[n] == 0),
    )
    mask = p.stored.get("mask_token_id", p.added.get("<|mask|>", 156_895))
    given = {**p.stored, "intermediate_size": p.stored.get("dense_intermediate_size") or experts.ffn}
    rotated = p.stored.get("partial_rotary_factor") or 1.0
    base = llama_config(replace(p, stored=given))
    return replace(
        base,
        norm_eps=p.stored.get("rms_norm_eps", 1e-5),
        mask_id=mask,
        qk_norm=bool(p.stored.get("qk_layernorm")),
        rotary_width=int(base.inner_width * rotated) if 0 < rotated < 1 else None,
        experts=experts,
        **p.ids("<|role_end|>"),
    )


def llada2(p: Published) -> TransformerConfig:
    """LLaDA 2.0 and 2.1 (``modeling_llada2_moe.py``): sigmoid experts in groups, half of each head rotated, blocks of 32."""
    p.demand(use_qkv_bias=(False, False), use_sliding_window=(False, False), norm_head=(False, False))
    for key in ("expert_capacity", "delete_token_id", "split_token_id"):
        if p.stored.get(key) is not None:
            raise ValueError(
                f"config.json has {key}: LLaDA 2.2 routes blocks and changes their length, which is not supported"
            )
    experts = ExpertsConfig(
        count=p.whole("num_experts"),
        top=p.whole("num_experts_per_tok"),
        ffn=p.whole("moe_intermediate_size"),
        router="sigmoid",
        shared_ffn=(p.stored.get("num_shared_experts") or 0) * p.whole("moe_intermediate_size"),
        groups=p.stored.get("n_group", 8),
        top_groups=p.stored.get("topk_group", 4),
        scale=float(p.stored.get("routed_scaling_factor", 2.5)),
        bias=True,
        dense=tuple(range(p.stored.get("first_k_dense_replace", 0))),
    )
    base = llama_config(p)
    return replace(
        base,
        norm_eps=p.stored.get("rms_norm_eps", 1e-5),
        mask_id=p.stored.get("mask_token_id", p.added.get("<|mask|>", 156_895)),
        qk_norm=p.stored.get("use_qk_norm", True),
        rotary_width=int(base.inner_width * p.stored.get("partial_rotary_factor", 0.5)),
        experts=experts,
        **_blocks(p.stored.get("block_size", 32)),
        **p.ids("<|role_end|>"),
    )


def _mask(p: Published) -> int:
    """The mask: the configuration's, else the token of that name in the tokenizer's files."""
    named = [p.added[name] for name in MASK_NAMES if name in p.added]
    mask = p.stored.get("mask_token_id", named[0] if named else None)
    if mask is None:
        raise ValueError(
            f"neither config.json (mask_token_id) nor the tokenizer ({', '.join(MASK_NAMES)}) names the mask: add it to config.json"
        )
    return mask


def _blocks(size: int | None, seeded: bool = False) -> dict[str, Any]:
    return {"attention": "block_causal", "attention_block": size, "seeded": seeded} if size else {}


def _yarn(rope: dict[str, Any], p: Published) -> Yarn:
    if rope.get("truncate", True) is not True or rope.get("attention_factor") is not None:
        raise ValueError("config.json has YaRN with truncate or attention_factor: this transformer has neither")
    if not rope.get("mscale") or rope.get("mscale") != rope.get("mscale_all_dim"):
        raise ValueError(
            "config.json has YaRN with mscale and mscale_all_dim that differ: this transformer takes equal ones"
        )
    return Yarn(
        factor=float(rope["factor"]),
        original_length=int(rope["original_max_position_embeddings"]),
        beta_fast=float(rope.get("beta_fast") or 32.0),
        beta_slow=float(rope.get("beta_slow") or 1.0),
        query_growth=float(rope.get("llama_4_scaling_beta") or 0.0),
    )


_blocks_of = "model.layers.{}"
_parts = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_qk_norms = {f"attention.{x}_norm": f"{_blocks_of}.self_attn.{x}_norm" for x in "qk"}
_experts = {
    "ffn.router": f"{_blocks_of}.mlp.gate",
    **{f"ffn.experts.{{}}.{ours}": f"{_blocks_of}.mlp.experts.{{}}.{theirs}" for ours, theirs in _parts.items()},
}
_nemotron = tensor_names(
    "encoder.embed_tokens", "encoder.norm", "diffusion_head", "encoder.layers",
    "input_layernorm", *ATTENTION, "post_attention_layernorm", *SWIGLU,
)  # fmt: skip
_llada2 = tensor_names(
    "model.word_embeddings", "model.norm", "lm_head", "model.layers",
    "input_layernorm", *["attention.query_key_value"] * 3, "attention.dense", "post_attention_layernorm", *SWIGLU,
)  # fmt: skip

QWEN3 = {**HUGGINGFACE, **_qk_norms}
A2D = Family(a2d, QWEN3)
SDAR = Family(sdar, QWEN3)
FAST_DLLM = Family(fast_dllm, HUGGINGFACE)
DIFFCODER = Family(diffcoder, HUGGINGFACE)
NEMOTRON = Family(nemotron, _nemotron)
LLADA_MOE = Family(
    llada_moe,
    {
        **QWEN3,
        **_experts,
        "ffn.bias": f"{_blocks_of}.mlp.expert_bias",
        **{f"ffn.shared.{ours}": f"{_blocks_of}.shared_expert.{theirs}" for ours, theirs in _parts.items()},
    },
)
LLADA2 = Family(
    llada2,
    {
        **_llada2,
        **_experts,
        "attention.q_norm": f"{_blocks_of}.attention.query_layernorm",
        "attention.k_norm": f"{_blocks_of}.attention.key_layernorm",
        "ffn.bias": f"{_blocks_of}.mlp.gate.expert_bias",
        **{f"ffn.shared.{ours}": f"{_blocks_of}.mlp.shared_experts.{theirs}" for ours, theirs in _parts.items()},
    },
    fused="parts",
)
