"""Public masked diffusion language models on our own transformer: their configuration and the names of their tensors.

LLaDA, iLLaDA, Dream (with DiffuCoder) and SMDM are bidirectional Llama blocks that differ in names and in a few switches, so a
table of names and a function from their ``config.json`` to ours is all it takes. Their own code is never run. What this transformer
cannot do (another norm, an activation, a bias where it has none) is refused, never ignored.

A family is an entry point of the group ``unmask.denoisers``, named for the ``architectures`` of its ``config.json``. A plug-in
registers a :class:`Family`, or a function with the signature of :data:`LoadDenoiser` where this transformer does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from unmask.denoisers.checkpoint import Shape
from unmask.denoisers.transformer import TransformerConfig
from unmask.runs.names import EntryPoints

MOST_PADDING = 2**16
"""Rows of an embedding beyond its vocabulary."""


@dataclass(frozen=True)
class Published:
    """A published checkpoint: its ``config.json``, the shapes of its tensors, the ids of its tokenizer's added tokens."""

    stored: Mapping[str, Any]
    shapes: Mapping[str, Shape]
    added: Mapping[str, int]

    def whole(self, key: str) -> int:
        value = self.stored.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"config.json must give a whole number for {key!r}, got {value!r}")
        return value

    def demand(self, **switches: tuple[Any, Any]) -> None:
        """``switch=(what the published code assumes if it is absent, what this transformer does)``."""
        for key, (default, needed) in switches.items():
            value = self.stored.get(key, default)
            if value != needed:
                raise ValueError(f"config.json has {key} = {value!r}: this transformer has only {needed!r}")

    def rope_theta(self) -> float:
        """The base of the rotation; transformers 5 writes it into ``rope_parameters``."""
        rope = {**(self.stored.get("rope_scaling") or {}), **(self.stored.get("rope_parameters") or {})}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default" or rope.get("factor", 1.0) != 1.0:
            raise ValueError(f"config.json scales the rotary positions ({kind}): this transformer does not")
        return float(rope.get("rope_theta", self.stored.get("rope_theta", 10_000.0)))

    def ids(self, *end_names: str) -> dict[str, Any]:
        """Padding and end tokens: the configuration's, and those that end a turn by their name in the tokenizer's files."""
        ends = self.stored.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        named = [self.added[name] for name in end_names if name in self.added]
        pad = self.stored.get("pad_token_id")
        pad = ends[0] if pad is None and ends else pad
        return {"pad_id": pad, "end_ids": tuple(dict.fromkeys([*ends, *named]))}


def llada(p: Published) -> TransformerConfig:
    """LLaDA-8B and 1.5 (``modeling_llada.py``). Its rows beyond ``vocab_size`` are padding, which may not be revealed."""
    p.demand(
        block_type=("sequential", "llama"),
        activation_type=("swiglu", "silu"),
        layer_norm_type=("default", "rms"),
        layer_norm_with_affine=(True, True),
        attention_layer_norm=(False, False),
        input_emb_norm=(False, False),
        include_bias=(False, False),
        alibi=(False, False),
        rope=(False, True),
        scale_logits=(False, False),
        block_group_size=(1, 1),
    )
    if p.stored.get("bias_for_layer_norm"):
        raise ValueError("config.json has bias_for_layer_norm = True: this transformer's norms have none")
    width, heads, vocabulary = p.whole("d_model"), p.whole("n_heads"), p.whole("vocab_size")
    rows = p.whole("embedding_size") if p.stored.get("embedding_size") else vocabulary
    if rows - vocabulary > MOST_PADDING:
        raise ValueError(f"config.json has {rows} rows for {vocabulary} tokens: expected at most {MOST_PADDING} more")
    alone = 1 if p.stored.get("multi_query_attention") else heads
    return TransformerConfig(
        vocab_size=rows,
        width=width,
        n_layers=p.whole("n_layers"),
        n_heads=heads,
        n_kv_heads=p.stored.get("n_kv_heads") or alone,
        ffn=p.stored.get("mlp_hidden_size") or int(p.stored.get("mlp_ratio", 4)) * width,
        mask_id=p.whole("mask_token_id"),
        max_length=p.whole("max_sequence_length"),
        rope_theta=p.rope_theta(),
        rope_float32=p.stored.get("rope_full_precision", True),
        qkv_bias=bool(p.stored.get("include_qkv_bias", False)),
        norm_eps=p.stored.get("rms_norm_eps", 1e-5),
        norm_rounds_first=True,
        tied_head=p.stored.get("weight_tying", True),
        forbidden_ids=tuple(range(vocabulary, rows)),
        **p.ids("<|eot_id|>"),
    )


def dream(p: Published) -> TransformerConfig:
    """Dream-7B, Dream-Coder, DiffuCoder (``modeling_dream.py``): Qwen2.5, predicting a token from its left neighbour's state."""
    p.demand(use_sliding_window=(False, False), use_mrope=(False, False))
    ids = p.ids("<|im_end|>", "<|dlm_pad|>")
    return replace(llama_config(p), mask_id=p.whole("mask_token_id"), qkv_bias=True, logit_shift=True, **ids)


def illada(p: Published) -> TransformerConfig:
    """iLLaDA-8B (``ILLaDAForCausalLM``). Its configuration names no mask: the tokenizer's ``<[MASK]>``, 5 by its README."""
    p.demand(attention_bias=(False, False), mlp_bias=(False, False), layer_norm_eps=(None, None))
    given = {**p.stored, **(p.stored.get("rope_parameters") or {})}
    if missing := [key for key in ("rms_norm_eps", "rope_theta") if given.get(key) is None]:
        raise ValueError(f"config.json must give {' and '.join(missing)}: what iLLaDA's code assumes is not known here")
    mask = p.stored.get("mask_token_id")
    return replace(llama_config(p), mask_id=p.added.get("<[MASK]>", 5) if mask is None else mask, **p.ids("<|im_end|>"))


def llama_config(p: Published) -> TransformerConfig:
    """What configurations written in transformers' own words have in common."""
    p.demand(hidden_act=("silu", "silu"))
    heads = p.whole("num_attention_heads")
    return TransformerConfig(
        vocab_size=p.whole("vocab_size"),
        width=p.whole("hidden_size"),
        n_layers=p.whole("num_hidden_layers"),
        n_heads=heads,
        n_kv_heads=p.stored.get("num_key_value_heads") or heads,
        head_width=p.stored.get("head_dim"),
        ffn=p.whole("intermediate_size"),
        mask_id=0,
        max_length=p.whole("max_position_embeddings"),
        rope_theta=p.rope_theta(),
        norm_eps=p.stored.get("rms_norm_eps", 1e-6),
        norm_rounds_first=True,
        # transformers leaves the field out of some files where it is its own default; a head of its own then decides.
        tied_head=p.stored.get("tie_word_embeddings", "lm_head.weight" not in p.shapes),
    )


def smdm(p: Published) -> TransformerConfig:
    """SMDM 6M–2121M (``lit_gpt/diffmodel.py``), all from the shapes: the embedding has one row more than the head, the mask's.

    ``lit_gpt/config.py`` gives heads of 64 up to a width of 1024 and of 128 beyond, but 8 heads of 80 to its model of 75M. Its
    constants: 2048 positions, θ = 10⁴, ε = 10⁻⁵. The tokenizer is TinyLlama's, whose end token is 2.
    """
    rows, width = p.shapes["transformer.wte.weight"]
    head_rows = p.shapes["lm_head.weight"][0]
    if rows != head_rows + 1:
        raise ValueError(
            f"expected one row more in transformer.wte.weight than in lm_head.weight, for the mask, got {rows} and {head_rows}: "
            "this is one of SMDM's autoregressive models, or no SMDM at all"
        )
    ffn = p.shapes["transformer.h.0.mlp.swiglu.w1.weight"][0]
    head_width = 80 if (width, ffn) == (640, 1600) else 64 if width <= 1024 else 128
    heads = p.stored.get("n_head") or width // head_width
    layers = len({name.split(".")[2] for name in p.shapes if name.startswith("transformer.h.")})
    qkv_heads = p.shapes["transformer.h.0.attn.attn.weight"][0] * heads // width
    return TransformerConfig(
        vocab_size=rows,
        head_rows=head_rows,
        width=width,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=(qkv_heads - heads) // 2,
        ffn=ffn,
        mask_id=rows - 1,
        max_length=p.stored.get("block_size", 2048),
        norm_eps=1e-5,
        pad_id=2,
        end_ids=(2,),
    )


OURS = (
    "attention_norm",
    *(f"attention.{x}" for x in ("q", "k", "v", "out")),
    "ffn_norm",
    "ffn.gate",
    "ffn.up",
    "ffn.down",
)


def tensor_names(embedding: str, norm: str, head: str, blocks: str, *parts: str) -> dict[str, str]:
    """``parts``: what they call the nine parts of a block, in the order of ``OURS``."""
    named = {part: f"{blocks}.{{}}.{theirs}" for part, theirs in zip(OURS, parts, strict=True)}
    return {"embedding": embedding, "norm": norm, "head": head, **named}


@dataclass(frozen=True)
class Family:
    """``names``: our module, or parameter, → theirs, ``{}`` standing for the layer and then for the expert.

    ``fused``: q, k and v are one tensor, group by group or one after the other.
    """

    configure: Callable[[Published], TransformerConfig]
    names: Mapping[str, str]
    fused: Literal["groups", "parts"] | None = None

    def theirs(self, ours: str) -> str:
        """``blocks.3.attention.q.weight`` → ``model.layers.3.self_attn.q_proj.weight``."""
        layer, module, leaf = re.fullmatch(r"(?:blocks\.(\d+)\.)?(.+)\.(\w+)", ours).groups()  # pyright: ignore
        numbers, module = re.findall(r"\d+", module), re.sub(r"\d+", "{}", module)
        whole = self.names.get(f"{module}.{leaf}") or f"{self.names[module]}.{leaf}"
        return whole.format(layer, *numbers)


ATTENTION = tuple(f"self_attn.{x}_proj" for x in "qkvo")
SWIGLU = tuple(f"mlp.{x}_proj" for x in ("gate", "up", "down"))
HUGGINGFACE = tensor_names(
    "model.embed_tokens", "model.norm", "lm_head", "model.layers",
    "input_layernorm", *ATTENTION, "post_attention_layernorm", *SWIGLU,
)  # fmt: skip
_olmo = tensor_names(
    "model.transformer.wte", "model.transformer.ln_f", "model.transformer.ff_out", "model.transformer.blocks",
    "attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm", "ff_proj", "up_proj", "ff_out",
)  # fmt: skip
_lit_gpt = tensor_names(
    "transformer.wte", "transformer.ln_f", "lm_head", "transformer.h",
    "norm_1", *["attn.attn"] * 3, "attn.proj", "norm_2", *(f"mlp.swiglu.w{n}" for n in (1, 2, 3)),
)  # fmt: skip

LLADA = Family(llada, _olmo)
ILLADA = Family(illada, HUGGINGFACE)
DREAM = Family(dream, HUGGINGFACE)
SMDM = Family(smdm, _lit_gpt, fused="groups")

LoadDenoiser = Callable[[Path, torch.dtype, torch.device | str | None, Any], Any]
"""``load(folder, dtype, device, device_map)`` → a frozen ``Denoiser``."""
DENOISERS = EntryPoints("unmask.denoisers")
"""Architecture → :class:`Family` or :data:`LoadDenoiser`."""
BY_MODEL_TYPE = {
    "llada": "LLaDAModelLM", "illada": "ILLaDAForCausalLM", "Dream": "DreamModel", "lladamoe": "LLaDAMoEModelLM",
    "llada2_moe": "LLaDA2MoeModelLM", "sdar": "SDARForCausalLM", "nemotron_labs_diffusion": "NemotronLabsDiffusionModel",
    "a2d-qwen3": "A2DQwen3LMHeadModel", "a2d-qwen2": "A2DQwen2LMHeadModel", "a2d-llama": "A2DLlamaLMHeadModel",
}  # fmt: skip
REFUSED = {
    "DreamForCausalLM": "block-causal",
    "SDARMoeForCausalLM": "a mixture of Qwen3 experts",
    "RND1LM": "a mixture of Qwen3 experts",
    "LLaDA2MoeV2ModelLM": "LLaDA 2.2, which routes blocks and changes their length",
    "WeDLMForCausalLM": "a causal model that reorders its tokens",
    "EfficientDLM": "without public code to compare with",
    "DiffEncoderModel": "without public code to compare with",
    "DiffusionGemmaForBlockDiffusion": "trained on uniform noise, without a mask",
}
"""Diffusion language models that are known and not supported. Whatever else names itself diffusion is refused by its name alone."""
DIFFUSION = re.compile("llada|dream|sdar|dllm|diffu|a2d|mdlm", re.IGNORECASE)


def find_family(stored: Mapping[str, Any]) -> Family | LoadDenoiser | None:
    """What is registered for the architecture that a ``config.json`` names, if anything. SMDM's checkpoints have no file."""
    if not stored or ("n_embd" in stored and "architectures" not in stored):
        return SMDM
    architecture = str((stored.get("architectures") or [BY_MODEL_TYPE.get(str(stored.get("model_type")))])[0])
    if architecture in REFUSED:
        raise ValueError(f"{architecture} is {REFUSED[architecture]}: expected one of {', '.join(DENOISERS)}")
    family = DENOISERS.get(architecture)
    if family is None and DIFFUSION.search(f"{architecture} {stored.get('model_type')}"):
        known = ", ".join(DENOISERS)
        raise ValueError(f"{architecture} is a diffusion language model that is not supported: expected one of {known}")
    return family
