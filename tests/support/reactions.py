"""A tiny masked language model of SMILES, in the layout of the published ones."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from unmask_studies.installer import _write_tokenizer
from unmask_studies.reactions.models import rxnmapper

VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"CONcn()=1.", ">>", "[nH]", "Cl")


def tiny_reactions(folder: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    _write_tokenizer(rxnmapper, VOCABULARY, folder)
    return folder
