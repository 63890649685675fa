"""A tiny masked language model of SMILES, and a file of reactions that it knows the tokens of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from unmask_studies.installer import _write_tokenizer
from unmask_studies.reactions.models import rxnmapper

VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"CONcn()=1.", ">>", "[nH]", "Cl")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In the layout of the published ones."""
    folder = tmp_path_factory.mktemp("model")
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


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "reactions.csv"
    rows = [f"{'C' * n}O.CC(=O)O,{'C' * n}OC(C)=O" for n in range(1, 13)]
    path.write_text("reactants,product\n" + "\n".join(rows) + "\n")
    return str(path)
