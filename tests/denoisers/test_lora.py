"""Adapters in the second stage: the base stays as it is, an adapter is saved alone, and the path gets likelier."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.stages import stage
from support.text import MADE
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.lora import adapter_weights, add_lora, load_adapter, merge, save_adapter
from unmask.generation.text_canvas import load_tokenizer
from unmask.training.denoiser.second_stage import run_second_stage

TOKENS = torch.tensor([[5, 6, 9, 10, 11, 7]])


def logits(denoiser: Any) -> torch.Tensor:
    with torch.no_grad():
        return denoiser.logits(denoiser.hidden(TOKENS)[0])


@pytest.mark.parametrize("family", MADE)
def test_an_untrained_adapter_changes_nothing(tmp_path: Path, family: str) -> None:
    folder = MADE[family](tmp_path / family)
    denoiser, plain = load_denoiser(folder), load_denoiser(folder)
    before = logits(plain)
    add_lora(denoiser, 4, 8.0)
    assert torch.equal(logits(denoiser), before)
    trainable = [name for name, p in denoiser.named_parameters() if p.requires_grad]
    assert trainable
    assert all(".lora_" in name for name in trainable)
    assert not any(name.startswith(("head", "embedding", "model.cls")) for name in trainable)
    with torch.no_grad():
        for name, p in denoiser.named_parameters():
            if ".lora_B." in name:
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    moved = logits(denoiser)
    assert not torch.allclose(moved, before, atol=1e-2)
    # Saved alone, and read again onto the base.
    saved = save_adapter(denoiser, tmp_path / "adapter", str(folder), 4, 8.0, ())
    assert sum(p.numel() for p in adapter_weights(denoiser).values()) == sum(
        tensor.numel() for tensor in load_file(saved / "adapter_model.safetensors").values()
    )
    assert torch.equal(logits(load_denoiser(saved)), moved)
    assert load_tokenizer(saved).encode("the") == load_tokenizer(folder).encode("the")
    assert torch.allclose(logits(merge(denoiser)), moved, atol=1e-4)
    assert not any(".lora_" in name for name, _ in denoiser.named_parameters())
    assert torch.equal(logits(plain), before)


@pytest.mark.parametrize("family", MADE)
def test_tuning_raises_the_likelihood_and_leaves_base_weights_unchanged(tmp_path: Path, family: str) -> None:
    config = stage(tmp_path, family)
    files = {path.name: path.read_bytes() for path in (tmp_path / family).iterdir()}
    records = list(run_second_stage(config, tmp_path / "run"))
    assert records[-1]["on_path"] < records[0]["on_path"] - 0.1
    assert {path.name: path.read_bytes() for path in (tmp_path / family).iterdir()} == files
    made = {path.name for path in (tmp_path / "run" / "denoiser").iterdir()}
    assert made == {"adapter_config.json", "adapter_model.safetensors"}
    tuned, base = load_denoiser(tmp_path / "run"), load_denoiser(tmp_path / family)
    own = {name.replace(".base_layer", ""): p for name, p in tuned.named_parameters() if ".lora_" not in name}
    assert all(torch.equal(own[name], p) for name, p in base.named_parameters())
    # Checkpoints hold what is trained, not eight thousand million weights beside it.
    checkpoint = next((tmp_path / "run" / "checkpoints").glob("step-*/state.safetensors"))
    assert all(".lora_" in name for name in load_file(checkpoint) if name.startswith("model."))


def test_a_killed_tuning_resumes_bit_for_bit(tmp_path: Path) -> None:
    config = stage(tmp_path, "llada")
    list(run_second_stage(config, tmp_path / "whole"))
    records = run_second_stage(config, tmp_path / "parts")
    for record in records:
        if record["step"] == 20:
            break
    assert isinstance(records, Generator)
    records.close()
    list(run_second_stage(config, tmp_path / "parts", resume=True))
    whole, again = (load_file(tmp_path / n / "denoiser" / "adapter_model.safetensors") for n in ("whole", "parts"))
    assert all(torch.equal(whole[name], again[name]) for name in whole)


@pytest.mark.parametrize("family", MADE)
def test_a_merged_adapter_loads_as_a_denoiser(tmp_path: Path, family: str) -> None:
    config = stage(tmp_path, family, merged=True)
    config = replace(config, training=replace(config.training, samples=80))
    list(run_second_stage(config, tmp_path / "run"))
    assert not (tmp_path / "run" / "denoiser" / "adapter_config.json").exists()
    tuned = load_denoiser(tmp_path / "run")
    assert not any(".lora_" in name for name, _ in tuned.named_parameters())
    assert not torch.allclose(logits(tuned), logits(load_denoiser(tmp_path / family)), atol=1e-3)
    assert load_tokenizer(tmp_path / "run").encode("the")


def test_mismatched_adapters_are_refused(tmp_path: Path) -> None:
    folder = MADE["llada"](tmp_path / "llada")
    with pytest.raises(ValueError, match="no linear layer is called 'query': expected some of down, gate"):
        add_lora(load_denoiser(folder), 4, 8.0, ("query",))
    with pytest.raises(ValueError, match="tune all of its weights, or an adapter with adapter = 'lora'"):
        list(run_second_stage(stage(tmp_path, "bert", adapter="", trained="head"), tmp_path / "run"))
    saved = save_adapter(add_lora(load_denoiser(folder), 4, 8.0), tmp_path / "adapter", str(folder), 2, 8.0, ())
    with pytest.raises(ValueError, match=r"adapter_model.safetensors does not fit its configuration"):
        load_denoiser(saved)
    stored = json.loads((saved / "adapter_config.json").read_text())
    (saved / "adapter_config.json").write_text(json.dumps({**stored, "base_model_name_or_path": str(saved)}))
    with pytest.raises(ValueError, match="is an adapter itself: merge that one first"):
        load_denoiser(saved)
    (saved / "adapter_config.json").write_text(json.dumps({**stored, "r": "4"}))
    with pytest.raises(ValueError, match="expected r, lora_alpha and target_modules"):
        load_adapter(load_denoiser(folder), saved)
    with pytest.raises(ValueError, match="adapter: expected '' or 'lora', got str 'dora'"):
        stage(tmp_path, "llada", adapter="dora")


@pytest.mark.parametrize("family", MADE)
def test_no_update_of_an_adapter_is_lost_in_bfloat16(tmp_path: Path, family: str) -> None:
    """At a learning rate of 3e-5 most updates are smaller than the last digit of a bfloat16 weight."""
    from unmask.decoding.protocols import Canvas
    from unmask.training.denoiser.masked_trainer import MaskedTraining, Masks, masked_loss, train_masked

    denoiser = add_lora(load_denoiser(MADE[family](tmp_path / family), torch.bfloat16), 4, 8.0)
    before = {name: tensor.clone() for name, tensor in adapter_weights(denoiser).items()}
    target = TOKENS.repeat(4, 1)
    hidden = torch.arange(6) > 2
    canvas = Canvas(target.masked_fill(hidden, denoiser.mask_id), target)
    masks = Masks(hidden.expand_as(target), hidden.expand_as(target))
    assert denoiser.logits(denoiser.hidden(target)).dtype == torch.bfloat16
    assert masked_loss(denoiser, canvas, masks)[0].dtype == torch.float32
    training = MaskedTraining(samples=8, batch=4, lr=3e-5, warmup=0.0, weight_decay=0.0)
    list(train_masked(denoiser, lambda step, batch: canvas, training, masking=lambda canvas, step: masks))
    moved = torch.cat([(p != before[name]).flatten() for name, p in adapter_weights(denoiser).items()])
    assert all(p.dtype == torch.float32 for p in adapter_weights(denoiser).values())
    assert moved.float().mean() > 0.99
