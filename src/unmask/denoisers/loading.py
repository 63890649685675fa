"""Names, files and hub ids to frozen denoisers: our own folders, registered families, masked language models of transformers.

``[rows, D]`` are the shapes of weights; ``G`` groups of key/value heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.assets import MODELS
from unmask.denoisers.checkpoint import (
    FAMILY,
    Checkpoint,
    Shape,
    build_empty,
    has_weights,
    load_folder,
    read_json,
    require_matching_shapes,
    require_plausible_size,
)
from unmask.denoisers.families import DENOISERS, Family, Published, find_family
from unmask.denoisers.hub import describe_denoiser, download, parse_hub_id
from unmask.denoisers.lora import base_of, has_adapter, load_adapter
from unmask.denoisers.masked_lm import MaskedLM, load_masked_lm
from unmask.denoisers.placement import DeviceMap, device_of, dispatch, resolve_device_map
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.names import did_you_mean
from unmask.runs.presets import list_presets

HUB_FILES = ["*.json", "model*.safetensors", "vocab.txt", "merges.txt", "*.model", "README.md"]
MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError)
"""The errors that a configuration with values of wrong types leads to."""


def list_denoisers() -> list[str]:
    """The denoisers inside the package."""
    return sorted(path.parent.name for path in MODELS.glob("*/model.safetensors"))


def load_denoiser(
    name: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    device_map: DeviceMap | None = None,
) -> Transformer | MaskedLM:
    """A frozen denoiser by its shipped name, its folder (or the run that trained it), its safetensors file, or its id on the hub.

    A file in a repository of several is ``owner/name/path/to/file.safetensors``; ``owner/name@revision`` is a commit, tag or branch
    of a repository. ``device_map="auto"`` spreads a denoiser that is
    larger than one device. An adapter's folder gives its base with the adapter on it. ``docs/backbones.md`` lists what loads;
    a plug-in adds a family through the entry points ``unmask.denoisers``. The published code of a model is never run.
    """
    require_denoiser(name)
    path = Path(name)
    if path.suffix == ".safetensors" and path.is_file():
        return load_checkpoint(path, dtype, device, device_map)
    for folder in _folders(name):
        if has_adapter(folder):
            return load_adapter(load_denoiser(base_of(folder), dtype, device, device_map), folder)
        if has_weights(folder):
            found = load_checkpoint(folder, dtype, device, device_map)
            found.name = str(name)
            return found
    return load_checkpoint(_download(str(name)), dtype, device, device_map)


def require_denoiser(name: str | Path) -> None:
    """A ValueError for what is neither a shipped name, a file, a folder with weights, nor a hub id. Nothing is loaded."""
    path = Path(name)
    if path.suffix == ".safetensors" and path.is_file():
        return
    if any(has_adapter(folder) or has_weights(folder) for folder in _folders(name)):
        return
    if isinstance(name, Path) or path.exists():
        raise ValueError(
            f"expected a denoiser's folder with config.json and model.safetensors, got {name}{suggest_training(name)}"
        )
    if parse_hub_id(name) is None:
        raise ValueError(
            f"no denoiser {name!r}: expected a folder, a hub id, or one of {', '.join(list_denoisers())}"
            f"{did_you_mean(name, list_denoisers())}{suggest_training(name)}"
        )


def _folders(name: str | Path) -> tuple[Path, Path, Path]:
    """Where the weights of a name can be: in the package, in the run that trained them, in the folder itself."""
    return MODELS / name, Path(name) / "denoiser", Path(name)


def load_checkpoint(
    path: Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    device_map: DeviceMap | None = None,
) -> Transformer | MaskedLM:
    """The denoiser in a folder or in a safetensors file. ``config.json`` says which kind it is; SMDM has none."""
    file = path / "config.json"
    stored = read_json(file) if path.is_dir() and file.exists() else {}
    if "family" in stored:
        if device_map is None:
            return load_folder(path, dtype, device)
        denoiser = load_folder(path, dtype)
        return dispatch(denoiser, resolve_device_map(denoiser, dtype, device, device_map))
    try:
        family = find_family(stored)
    except MALFORMED as error:
        raise ValueError(f"{file}: {_reason(error)}") from error
    if isinstance(family, Family):
        return load_family(family, path, stored, dtype, device, device_map)
    if family is not None:
        return family(path, dtype, device, device_map)
    if "architectures" not in stored and "model_type" not in stored:
        kinds = ", ".join(DENOISERS)
        raise ValueError(
            f'{file} is not a denoiser\'s: expected "family": "{FAMILY}", or architectures such as {kinds} or …ForMaskedLM'
        )
    return load_masked_lm(path, dtype, device, device_map)


def load_family(
    family: Family,
    path: Path,
    stored: Mapping[str, Any],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    device_map: DeviceMap | None = None,
) -> Transformer:
    """A published checkpoint as a frozen denoiser: a module without memory, into which each tensor is read once, where it stays."""
    checkpoint = Checkpoint(path)
    try:
        config = family.configure(Published(stored, checkpoint.shapes, added_tokens(path)))
    except MALFORMED as error:
        raise ValueError(f"{path}: {_reason(error)}") from error
    require_plausible_size(config.least_weights, checkpoint.shapes, path, config.n_layers)
    for name, token in (("mask", config.mask_id), ("padding", config.pad_id), *(("end", i) for i in config.end_ids)):
        if token is not None and (not isinstance(token, int) or not 0 <= token < config.vocab_size):
            raise ValueError(f"{path}: the {name} token is {token}, but the embedding has {config.vocab_size} rows")
    denoiser = build_empty(config)
    shapes = {name: tuple(p.shape) for name, p in denoiser.named_parameters()}
    expected: dict[str, Shape] = {}
    for ours, shape in shapes.items():
        theirs = family.theirs(ours)
        expected[theirs] = (expected.get(theirs, (0,))[0] + shape[0], *shape[1:])
    head = family.theirs("head.weight")
    require_matching_shapes(expected, checkpoint.shapes, path, optional=[head] if config.tied_head else ())
    where = resolve_device_map(denoiser, dtype, device, device_map)

    def read(ours: str) -> Tensor:
        theirs, place = family.theirs(ours), device_of(ours, where)
        part = ours.split(".")[-2]
        if not family.fused or part not in ("q", "k", "v"):
            return checkpoint.read(theirs, dtype, place)
        return split_qkv(checkpoint.read(theirs), config, part, family.fused).to(place, dtype)

    denoiser.load_state_dict({ours: read(ours) for ours in shapes}, strict=False, assign=True)
    if config.tied_head:
        denoiser.head.weight = denoiser.embedding.weight
        if head in checkpoint.shapes and not torch.equal(
            checkpoint.read(head), checkpoint.read(family.theirs("embedding.weight"))
        ):
            raise ValueError(f"{path}: the configuration ties the head to the embedding, but {head} is another tensor")
    return dispatch(denoiser.requires_grad_(False).eval(), where)


def split_qkv(
    fused: Float[Tensor, "rows D"], config: TransformerConfig, part: str, by: str = "groups"
) -> Float[Tensor, "part D"]:
    """lit-gpt's ``attn.attn``: for each of ``G`` groups its queries, then one key head, then one value head.

    By ``parts``: all queries, then all keys, then all values.
    """
    groups = config.n_kv_heads or config.n_heads
    if by == "parts":
        sizes = [heads * config.inner_width for heads in (config.n_heads, groups, groups)]
        return fused.split(sizes)["qkv".index(part)]
    queries = config.n_heads // groups
    heads = fused.unflatten(0, (groups, queries + 2, -1))
    picked = {"q": heads[:, :queries], "k": heads[:, queries], "v": heads[:, queries + 1]}[part]
    return picked.reshape(-1, fused.shape[1])


def added_tokens(path: Path) -> dict[str, int]:
    """Name → id of the tokens that a tokenizer's files list apart from its vocabulary; empty where there are none."""
    found: dict[str, int] = {}
    whole, short = path / "tokenizer.json", path / "tokenizer_config.json"
    try:
        if whole.exists():
            found |= {token["content"]: int(token["id"]) for token in read_json(whole).get("added_tokens") or []}
        if short.exists():
            decoder = read_json(short).get("added_tokens_decoder") or {}
            found |= {token["content"]: int(number) for number, token in decoder.items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: the added tokens of its tokenizer cannot be read: {_reason(error)}") from error
    return found


def _reason(error: Exception) -> str:
    """One line about a file, from an error that reading it raised."""
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing"
    return str(error) if isinstance(error, ValueError) else f"it is malformed: {error}"


def describe_source(name: str | Path) -> dict[str, str]:
    """What a run stores of its denoiser's files: their digest and, of a hub id, the commit."""
    return describe_denoiser(name, _download)


def _download(name: str) -> Path:
    """The configuration, the tokenizer and the safetensors at the top of a repository, or one safetensors file of it."""
    try:
        folder = download(name, HUB_FILES, ignore_patterns=["*/*"])
    except ValueError as error:
        raise ValueError(f"{error}{suggest_training(name)}") from error
    if folder.is_dir() and not has_weights(folder):
        raise ValueError(
            f"{name} on the hub has no model.safetensors at its top: name one of its files, {name}/path/to/file.safetensors"
        )
    return folder


def suggest_training(name: str | Path) -> str:
    """The end of an error message: the command that trains a denoiser of that name, if a preset has it."""
    preset = Path(name).name
    known = any(preset == entry.name for entry in list_presets("pretrain"))
    return f"; unmask pretrain --preset {preset} --out {name} trains one" if known else ""
