"""rxnmapper and rxnfp (Schwaller et al., MIT): masked language models of reaction SMILES, by the files of their wheels."""

from __future__ import annotations

from typing import Any

from unmask_studies.installer import PublishedModel, Weights, Wheel
from unmask_studies.reactions.smiles import TOKEN

_ROLES = {"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "pad": "[PAD]", "unk": "[UNK]"}
_SHAPE = {
    "vocab_size": 591,
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "intermediate_size": 512,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


def _masked_lm(stored: Any) -> Weights:
    """The part of ``…ForMaskedLM``: not the pooler. The decoder is tied to the embedding."""
    other = ("albert.pooler", "bert.pooler", "bert.embeddings.position_ids", "albert.embeddings.position_ids")
    other += ("cls.predictions.decoder.", "predictions.decoder.", "cls.seq_relationship.")
    return {name: tensor for name, tensor in stored.items() if not name.startswith(other)}


_RXNMAPPER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
rxnmapper = PublishedModel(
    wheel=Wheel("rxnmapper==0.4.3", "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"),
    member=f"{_RXNMAPPER}/pytorch_model.bin",
    config={
        **_SHAPE,
        "architectures": ["AlbertForMaskedLM"],
        "model_type": "albert",
        "embedding_size": 128,
        "num_attention_heads": 8,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    },
    vocabulary=f"{_RXNMAPPER}/vocab.txt",
    roles=_ROLES,
    pattern=TOKEN.pattern,
    longest=512,
    rename=_masked_lm,
)

_RXNFP = "rxnfp/models/transformers/bert_pretrained"
rxnfp = PublishedModel(
    wheel=Wheel("rxnfp==0.1.0", "c5c1e818add6f34539a6b29bc680c47c9e7311e9383d1b34ce901481e34b58cf"),
    member=f"{_RXNFP}/pytorch_model.bin",
    config={**_SHAPE, "architectures": ["BertForMaskedLM"], "model_type": "bert", "num_attention_heads": 4},
    vocabulary=f"{_RXNFP}/vocab.txt",
    roles=_ROLES,
    pattern=TOKEN.pattern,
    longest=512,
    rename=_masked_lm,
)
