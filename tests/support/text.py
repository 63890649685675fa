"""Tiny text denoisers on disk, each with its tokenizer: LLaDA's layout for our own transformer, BERT for transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

from support import families as family_fixtures
from support.tokenizers import wordpieces, words


def tiny_llada(folder: Path) -> Path:
    family_fixtures.write(folder, "llada")
    words(eos=27, chat=True).save_pretrained(folder)
    return folder


def tiny_bert(folder: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=24, initializer_range=0.5,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    wordpieces().save_pretrained(folder)
    return folder


MADE = {"llada": tiny_llada, "bert": tiny_bert}


def examples(file: Path, family: str, count: int = 24) -> str:
    """Answers that follow from their prompts: the same words, turned around."""
    vocabulary = ["the", "cat", "s", "on", "mat"] if family == "bert" else [f"w{n}" for n in range(2, 14)]
    rows = []
    for number in range(count):
        picked = [vocabulary[(number * k + k * k) % len(vocabulary)] for k in range(1, 3 + number % 3)]
        rows.append(
            {"prompt": f"{' '.join(picked)} {vocabulary[number % 5]}", "completion": " ".join(reversed(picked))}
        )
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)
