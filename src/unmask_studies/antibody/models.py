"""AntiBERTy and Sapiens: pretrained masked language models of antibodies, by the files of their wheels."""

from __future__ import annotations

from typing import Any

import torch

from unmask_studies.installer import PublishedModel, Weights, Wheel

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
ONE_RESIDUE = "."
"""The pattern of a token."""


def _antiberty(stored: Any) -> Weights:
    """The weights of BertForMaskedLM: without the pooler and the heads for species, chain and graft. The decoder is tied."""
    other = ("bert.pooler.", "bert.embeddings.position_ids", "cls.species.", "cls.chain.", "cls.graft.")
    other += ("cls.predictions.decoder.",)
    return {name: tensor for name, tensor in stored.items() if not name.startswith(other)}


LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
"""Names inside a layer: fairseq → RoBERTa in transformers."""
OUTSIDE = {
    "decoder.sentence_encoder.embed_tokens.weight": "roberta.embeddings.word_embeddings.weight",
    "decoder.sentence_encoder.embed_positions.weight": "roberta.embeddings.position_embeddings.weight",
    "decoder.sentence_encoder.emb_layer_norm.weight": "roberta.embeddings.LayerNorm.weight",
    "decoder.sentence_encoder.emb_layer_norm.bias": "roberta.embeddings.LayerNorm.bias",
    "decoder.lm_head.dense.weight": "lm_head.dense.weight",
    "decoder.lm_head.dense.bias": "lm_head.dense.bias",
    "decoder.lm_head.layer_norm.weight": "lm_head.layer_norm.weight",
    "decoder.lm_head.layer_norm.bias": "lm_head.layer_norm.bias",
    "decoder.lm_head.bias": "lm_head.bias",
}


def _sapiens(stored: Any) -> Weights:
    """fairseq's RoBERTa to transformers', which has token types (one, zero) and ties the head to the embedding."""
    weights: Weights = {}
    for name, tensor in stored["model"].items():
        if name == "decoder.lm_head.weight":
            continue
        before, inside, rest = name.partition("decoder.sentence_encoder.layers.")
        if not inside:
            weights[OUTSIDE[before]] = tensor
            continue
        number, _, part = rest.partition(".")
        module, _, kind = part.rpartition(".")
        weights[f"roberta.encoder.layer.{number}.{LAYER[module]}.{kind}"] = tensor
    width = weights["roberta.embeddings.LayerNorm.weight"].shape[0]
    weights["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, width)
    return weights


_ANTIBERTY = Wheel("antiberty==0.1.3", "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a")
_SAPIENS = Wheel("sapiens==1.0.5", "af1a8d445e9d7ab9f5f04512cf325acdfd9dd0930eb957b63ec234df1f141a8b")
_ROBERTA = {
    "architectures": ["RobertaForMaskedLM"],
    "model_type": "roberta",
    "vocab_size": 25,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 256,
    "hidden_act": "gelu",
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}


def _sapiens_model(chain: str, longest: int) -> PublishedModel:
    """RoBERTa counts positions from its padding id on: the table has two rows more than a canvas has positions."""
    return PublishedModel(
        wheel=_SAPIENS,
        member=f"sapiens/models/v1/checkpoint_v{chain}.pt",
        config={**_ROBERTA, "max_position_embeddings": longest + 2},
        vocabulary=("<s>", "<pad>", "</s>", "<unk>", *RESIDUES, "<mask>"),
        roles={"cls": "<s>", "sep": "</s>", "mask": "<mask>", "pad": "<pad>", "unk": "<unk>"},
        pattern=ONE_RESIDUE,
        longest=longest,
        rename=_sapiens,
    )


antiberty = PublishedModel(
    wheel=_ANTIBERTY,
    member="antiberty/trained_models/AntiBERTy_md_smooth/pytorch_model.bin",
    config={
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": 25,
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "hidden_act": "gelu",
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    },
    vocabulary=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *RESIDUES),
    roles={"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "pad": "[PAD]", "unk": "[UNK]"},
    pattern=ONE_RESIDUE,
    longest=512,
    rename=_antiberty,
)
sapiens_vh, sapiens_vl = _sapiens_model("h", 144), _sapiens_model("l", 128)
