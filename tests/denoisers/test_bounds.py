"""Configurations that name more than their weights hold are refused before anything is built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from support.families import LLADA
from unmask.assets import MODELS, POLICIES
from unmask.denoisers import lora, masked_lm
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.schedulers import loading as scheduler_loading
from unmask.schedulers.loading import load_scheduler


def rewritten(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refuse_building(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    def build(*_: Any, **__: Any) -> None:
        pytest.fail(f"{name} was called")  # no Exception, so that no reader makes it an error of the file

    monkeypatch.setattr(owner, name, build)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 60_000, "width": 1, "n_heads": 1, "ffn": 1, "positions": "none", "grid": None},
        {"n_layers": 60_000},
        {"vocab_size": 2 * 10**9},
        {"ffn": 2 * 10**9},
        {"head_width": 2 * 10**9},
        {"head_rows": 2 * 10**9},
    ],
)
def test_own_denoisers(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(MODELS / "sudoku-4x4", tmp_path / "d")
    rewritten(tmp_path / "d" / "config.json", **changes)
    refuse_building(monkeypatch, Transformer, "__init__")
    with pytest.raises(ValueError, match="does not fit its configuration"):
        load_denoiser(tmp_path / "d")


@pytest.mark.parametrize(
    "changes",
    [
        {"n_layers": 60_000, "d_model": 2, "n_heads": 1, "n_kv_heads": 1, "mlp_hidden_size": 1},
        {"vocab_size": 2 * 10**9},
    ],
)
def test_families(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLADA, **changes}))
    save_file({"model.transformer.wte.weight": torch.zeros(32, 16)}, tmp_path / "model.safetensors")
    refuse_building(monkeypatch, Transformer, "__init__")
    with pytest.raises(ValueError, match="does not fit its configuration"):
        load_denoiser(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 60_000},
        {"hidden_size": 10**6, "num_attention_heads": 1},
        {"vocab_size": 2 * 10**9},
        {"intermediate_size": 10**9},
        {"max_position_embeddings": 10**9},
        {"type_vocab_size": 2 * 10**9, "hidden_size": 2 * 10**9},
    ],
)
def test_masked_language_models(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    size = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    made = transformers.AutoModelForMaskedLM.from_config(transformers.BertConfig(**size))
    with masked_lm.silence_transformers():
        made.save_pretrained(tmp_path)
    rewritten(tmp_path / "config.json", **changes)
    refuse_building(monkeypatch, transformers.AutoModelForMaskedLM, "from_pretrained")
    with pytest.raises(ValueError) as refused:
        load_denoiser(tmp_path)
    assert len(str(refused.value).splitlines()) == 1 and str(tmp_path) in str(refused.value)


@pytest.mark.parametrize(
    "changes", [{"r": 10**9}, {"r": 10**30}, {"r": -1}, {"lora_alpha": 1e400}, {"target_modules": [["q"]]}, {"r": True}]
)
def test_adapters(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("peft")
    base = load_denoiser("sudoku-4x4")
    assert isinstance(base, Transformer)
    folder = lora.save_adapter(lora.add_lora(base, 2, 4.0), tmp_path, "sudoku-4x4", 2, 4.0, ())
    load_denoiser(folder)
    rewritten(folder / lora.CONFIG, **changes)
    refuse_building(monkeypatch, lora, "add_lora")
    with pytest.raises(ValueError, match=r"adapter_config\.json"):
        load_denoiser(folder)


@pytest.mark.parametrize("changes", [{"n_layers": 60_000, "width": 3}, {"width": 10**9}, {"n_layers": 2 * 10**9}])
def test_policies(changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(POLICIES / "sas-sudoku-4x4", tmp_path / "p")
    rewritten(tmp_path / "p" / "config.json", **changes)
    refuse_building(monkeypatch, scheduler_loading.OrderPolicy, "from_pretrained")
    with pytest.raises(ValueError, match="does not fit its configuration"):
        load_scheduler(str(tmp_path / "p"))


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ("sas-rxnmapper", {"num_hidden_layers": 60_000}),  # which share their weights: no more memory, and no end
        ("sas-rxnmapper", {"inner_group_num": 10**6}),
        ("sas-rxnmapper", {"vocab_size": 10**9}),
        ("sas-rxnmapper", {"embedding_size": 10**8}),
        ("sas-rxnmapper", {"max_position_embeddings": 10**8}),
        ("sas-rxnmapper", {"hidden_size": "wide"}),
        ("sas-rxnmapper", {"model_type": ["albert"]}),
        ("sas-rxnmapper", {"model_type": "gpt2"}),
        ("sas-general-sudoku-9x9-imperfect", {"n_layers": 60_000}),
        ("sas-general-sudoku-9x9-imperfect", {"width": 3 * 10**6}),
    ],
)
def test_copies_inside_policies(
    policy: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if policy == "sas-rxnmapper":
        pytest.importorskip("transformers")
    shutil.copytree(POLICIES / policy, tmp_path / "p")
    blocks = json.loads((tmp_path / "p" / "config.json").read_text())["blocks"]
    rewritten(tmp_path / "p" / "config.json", blocks=blocks | changes)
    refuse_building(monkeypatch, scheduler_loading.OrderPolicy, "from_pretrained")
    with pytest.raises(ValueError, match=r"does not fit its configuration|has no copy of") as refused:
        load_scheduler(str(tmp_path / "p"))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("policy", "changes", "blocks"),
    [
        ("sas-rxnmapper", {}, {"vocab_size": 20}),  # fewer than the tokens that its probe shows it
        ("sas-rxnmapper", {"mask_id": 10**9}, {}),
        ("sas-rxnmapper", {"mask_id": -5}, {}),
        ("sas-general-sudoku-9x9-imperfect", {}, {"grid": 3}),
    ],
)
def test_copies_that_do_not_fit(policy: str, changes: dict, blocks: dict, tmp_path: Path) -> None:
    if policy == "sas-rxnmapper":
        pytest.importorskip("transformers")
    shutil.copytree(POLICIES / policy, tmp_path / "p")
    stored = json.loads((tmp_path / "p" / "config.json").read_text())["blocks"]
    rewritten(tmp_path / "p" / "config.json", **changes, blocks=stored | blocks)
    with pytest.raises(ValueError, match=r"is not an order policy|which the denoiser has not") as refused:
        load_scheduler(str(tmp_path / "p"), load_denoiser("sudoku-9x9-imperfect"))
    assert len(str(refused.value).splitlines()) == 1
