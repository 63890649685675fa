"""Small denoisers with random weights: this library's transformer, and masked language models of transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from unmask.denoisers.masked_lm import MaskedLM
from unmask.denoisers.transformer import Transformer, TransformerConfig

MASK = 9
TEXT = TransformerConfig(
    vocab_size=70, width=16, n_layers=3, n_heads=4, ffn=24, mask_id=MASK, n_kv_heads=2, qkv_bias=True
)
LAYERS: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 24}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", LAYERS),
    "albert": ("AlbertConfig", {**LAYERS, "embedding_size": 8}),
    "esm": ("EsmConfig", {**LAYERS, "mask_token_id": MASK, "position_embedding_type": "rotary"}),
}
ROW = torch.tensor([[1, 7, MASK, 4, MASK, MASK, 30, 2]])


def text_denoiser(**changes: Any) -> Transformer:
    config = dataclasses.replace(TEXT, **changes)
    return Transformer(config).initialise(torch.Generator().manual_seed(0)).requires_grad_(False).eval()


def masked_lm(name: str) -> MaskedLM:
    transformers = pytest.importorskip("transformers", reason="masked language models come from transformers")
    kind, settings = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(vocab_size=70, max_position_embeddings=40, pad_token_id=0, **settings)
    return MaskedLM(transformers.AutoModelForMaskedLM.from_config(config).eval(), mask_id=MASK)
