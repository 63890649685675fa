"""Held-out problems that are decoded a few at a time are judged as they are together, however long the others are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from support.families import write
from support.tokenizers import words
from unmask.decoding.protocols import Verdict
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.heuristics import confidence
from unmask.tasks.jsonl import TextData, TextProblems
from unmask.training.policy.validation import validate_free_running

EXAMPLES = {"w3": "w5 w6", "w3 w4 w8 w9": "w7", "w4 w4": "w9 w5 w6"}


@pytest.mark.parametrize("pads", ["hidden", "left_out"])
def test_rows_are_judged_alike_in_batches_of_any_size(pads: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "llada", "llada", max_sequence_length=64)
    tokenizer = words(31, eos=27)
    tokenizer.save_pretrained(folder)  # pyright: ignore
    file = tmp_path / "valid.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": a, "completion": b}) for a, b in EXAMPLES.items()) + "\n")
    denoiser = load_denoiser(folder)
    data = TextData(file=str(file), length=6, held_out=0.0, pads=pads)  # type: ignore[arg-type]
    task = TextProblems(data, denoiser, tokenizer).held_out(3, str(file))
    shares: dict[int, list[float]] = {}

    for at_once in (3, 1):
        shares[at_once] = []

        def verify(rows: Sequence[int], tokens: torch.Tensor, kept: list[float] = shares[at_once]) -> Verdict:
            verdict = task.verify(rows, tokens)
            kept.extend(verdict.share.tolist())
            return verdict

        canvas = task.canvas(range(len(task)))
        validate_free_running(denoiser, confidence, canvas, at_once, verify=verify)
    assert shares[1] == shares[3]
