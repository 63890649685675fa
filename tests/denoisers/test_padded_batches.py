"""Rows of a padded batch in bfloat16 are the rows alone, to the bit: they attend without a mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.families import MASKS, write
from support.tokenizers import words
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.generation.generate import generate

FAMILIES = {"llada": {"max_sequence_length": 80, "n_kv_heads": 4}, "dream": {"max_position_embeddings": 80}}
LENGTHS = [3, 17, 31, 32, 45, 31]


def bfloat16(folder: Path, name: str) -> Transformer:
    return load_denoiser(write(folder / name, name, **FAMILIES[name]), torch.bfloat16)  # pyright: ignore


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("name", FAMILIES)
def test_states_are_those_of_the_row_alone(name: str, side: str, tmp_path: Path) -> None:
    denoiser = bfloat16(tmp_path, name)
    made = torch.Generator().manual_seed(0)
    rows = [torch.randint(25, (count,), generator=made) for count in LENGTHS]
    tokens, attention = torch.full((len(rows), 50), 4), torch.zeros(len(rows), 50, dtype=torch.bool)
    starts = [{"left": 50 - count, "right": 0, "both": (50 - count) // 2}[side] for count in LENGTHS]
    for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
        tokens[number, start : start + len(row)] = row
        attention[number, start : start + len(row)] = True
    states = denoiser.hidden(tokens, attention)
    for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
        assert torch.equal(states[number, start : start + len(row)], denoiser.hidden(row[None])[0])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("decoding", [Decoding(), Decoding(4, 8), Decoding(8, 8, guidance=1.0)], ids=str)
def test_decodings_are_those_of_the_prompt_alone(name: str, decoding: Decoding, tmp_path: Path) -> None:
    denoiser = bfloat16(tmp_path, name)
    prompts = ["w3 w4 w5 w6 w7", "w8", "w10 w11 w12 w13 w14 w15 w16"]
    together = generate(denoiser, words(31), prompts, decoding=decoding, length=16)
    for row, prompt in enumerate(prompts):
        alone = generate(denoiser, words(31), [prompt], decoding=decoding, length=16, seeds=[row])
        assert together.order(row) == alone.order(0)
        assert together.texts[row] == alone.texts[0]
        count = int(alone.trajectory.reveals[0])
        assert torch.equal(together.trajectory.logp[row, :count], alone.trajectory.logp[0])


def test_no_mask_reaches_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask, grouped heads would fall to the slowest kernel on GPUs."""
    denoiser, inner, masks = bfloat16(tmp_path, "dream"), F.scaled_dot_product_attention, []

    def attend(*given: Tensor, attn_mask: Any = None, **options: Any) -> Tensor:
        masks.append(attn_mask)
        return inner(*given, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    tokens = torch.full((3, 9), MASKS["dream"])
    attention = torch.arange(9) >= torch.tensor([[4], [0], [4]])
    denoiser.hidden(tokens, attention)
    assert masks == [None] * 4  # two lengths in two layers
    holes = attention.clone()
    holes[1, 5] = False
    denoiser.hidden(tokens, holes)
    assert all(mask is not None for mask in masks[4:])
