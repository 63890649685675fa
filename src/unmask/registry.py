"""Names to things: denoisers and schedulers by shipped name, folder or hub id."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from unmask.denoisers.adapters import base_of, has_adapter, load_adapter
from unmask.denoisers.checkpoint import Checkpoint, enough, has_weights, read_json
from unmask.denoisers.loading import load_checkpoint
from unmask.denoisers.masked_lm import MaskedLM
from unmask.denoisers.placement import DeviceMap
from unmask.denoisers.transformer import LARGEST_GRID, Transformer
from unmask.oracles import ORACLES
from unmask.pace import PACES
from unmask.policies.policy import OrderPolicy, PolicyConfig
from unmask.presets import fill, list_presets
from unmask.protocols import Denoiser, Pace, Scheduler
from unmask.schedulers import SCHEDULERS
from unmask.tasks.sudoku.task import expert

SHIPPED = Path(__file__).parent / "shipped"
SHIPPED_POLICIES = SHIPPED / "policies"
HUB_FILES = ["*.json", "model*.safetensors", "vocab.txt", "merges.txt", "*.model", "README.md"]
ALL_SCHEDULERS: dict[str, Callable[..., Scheduler]] = {**SCHEDULERS, "expert": lambda: expert, **ORACLES}


def shipped() -> list[str]:
    """The denoisers inside the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/model.safetensors"))


def load_denoiser(
    name: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    device_map: DeviceMap | None = None,
) -> Transformer | MaskedLM:
    """A frozen denoiser by its shipped name, its folder (or the run that trained it), its safetensors file, or its id on the hub.

    A file in a repository of several is ``owner/name/path/to/file.safetensors``. ``device_map="auto"`` spreads a denoiser that is
    larger than one device. An adapter's folder gives its base with the adapter on it. What loads, and from what, is in
    ``docs/backbones.md``. The published code of a model is never run.
    """
    path = Path(name)
    if path.suffix == ".safetensors" and path.is_file():
        return load_checkpoint(path, dtype, device, device_map)
    for folder in (SHIPPED / name, path / "denoiser", path):
        if has_adapter(folder):
            return load_adapter(load_denoiser(base_of(folder), dtype, device, device_map), folder)
        if has_weights(folder):
            return load_checkpoint(folder, dtype, device, device_map)
    if isinstance(name, Path) or path.exists():
        raise ValueError(
            f"expected a denoiser's folder with config.json and model.safetensors, got {name}{made_by(name)}"
        )
    on_hub = name.count("/") == 1 or (name.count("/") > 1 and name.endswith(".safetensors"))
    if on_hub and not name.startswith((".", "/", "~")):
        return load_checkpoint(_download(name), dtype, device, device_map)
    raise ValueError(
        f"no denoiser {name!r}: expected a folder, a hub id, or one of {', '.join(shipped())}"
        f"{did_you_mean(name, shipped())}{made_by(name)}"
    )


def shipped_policies() -> list[str]:
    """The learned orders inside the package."""
    return sorted(path.parent.name for path in SHIPPED_POLICIES.glob("*/model.safetensors"))


def load_scheduler(spec: str, denoiser: Denoiser | None = None, denoiser_name: str = "") -> Scheduler:
    """A scheduler by name, with options after colons: ``confidence``, ``pc_sampler:decay=0:cap=10``.

    A learned order by its shipped name, its folder (or the run that trained it), or ``sas``: the shipped one of the denoiser.
    With ``denoiser``, a policy that was trained for another is refused, and one that fits stands on the same device.
    """
    name = f"sas-{denoiser_name}" if spec == "sas" and denoiser_name else spec
    for folder in (SHIPPED_POLICIES / name, Path(name) / "policy", Path(name)):
        if (folder / "model.safetensors").exists() and (folder / "config.json").exists():
            return _load_policy(folder, denoiser)
    if spec == "sas":
        known = ", ".join(shipped_policies()) or "none"
        raise ValueError(
            f"no policy ships for the denoiser {denoiser_name!r}: learn one with unmask train; shipped are {known}"
        )
    return _build(spec, ALL_SCHEDULERS, "scheduler")


def _load_policy(folder: Path, denoiser: Denoiser | None) -> OrderPolicy:
    _refuse_implausible(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the hub's loader prints, a library does not
            policy = OrderPolicy.from_pretrained(str(folder), strict=True)
    except (OSError, TypeError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{folder} is not an order policy: {str(error).strip().splitlines()[0]}") from error
    policy.requires_grad_(False).eval()
    return policy if denoiser is None else policy.check(denoiser).to(getattr(denoiser, "device", "cpu"))


def _refuse_implausible(folder: Path) -> None:
    """A policy's configuration comes from anywhere: types are checked, and sizes before memory is spent on them."""
    stored = read_json(folder / "config.json")
    try:
        config = fill(PolicyConfig, {key: value for key, value in stored.items() if value is not None})
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    layered = {"transformer": config.n_layers, "grid": config.n_layers}.get(config.kind, 0)
    square = 0 if config.kind == "hidden" else config.width**2
    embedded = (config.vocab_size + (config.length or 0)) * config.width if config.tokens else 0
    least = {"hidden": config.hidden_width * config.width, "grid": 0}.get(config.kind, embedded)
    enough(least + max(1, layered) * square, Checkpoint(folder).shapes, folder / "model.safetensors")
    if config.size is not None and not 1 <= config.size <= LARGEST_GRID:
        raise ValueError(f"{folder / 'config.json'}: size must be in 1 .. {LARGEST_GRID}, got {config.size}")


def load_pace(spec: str) -> Pace:
    """A rule for how many per step, by name, with options after colons: ``threshold:p=0.8``."""
    return _build(spec, PACES, "pace")


def _build(spec: str, table: dict[str, Callable[..., Any]], kind: str) -> Any:
    name, *options = spec.strip().split(":")
    if name not in table:
        raise ValueError(f"no {kind} {name!r}: expected one of {', '.join(table)}{did_you_mean(name, table)}")
    # What is not a number, such as a table of frequencies, can only be given in Python.
    defaults = {p.name: p.default for p in inspect.signature(table[name]).parameters.values()}
    known = {key: value for key, value in defaults.items() if isinstance(value, int | float)}
    given: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key not in known:
            takes = ", ".join(f"{key}={value}" for key, value in known.items()) or "no options"
            near = did_you_mean(key, known)
            raise ValueError(f"{kind} {name!r} has no option {option!r}: it takes {takes}{near}")
        given[key] = _number(value, type(known[key]), f"{kind} {name!r}: {key}")
    return table[name](**given)


def _number(text: str, kind: type, what: str) -> int | float:
    """A count (at least 1) or a finite number (at least 0): no option of a scheduler or a pace is anything else."""
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    least = 1 if kind is int else 0
    if not least <= value < math.inf:
        raise ValueError(f"{what} must be a {'whole ' if kind is int else ''}number of at least {least}, got {text!r}")
    return value


def _download(name: str) -> Path:
    """The configuration, the tokenizer and the safetensors at the top of a repository, or one safetensors file of it."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    owner, repository, *inside = name.split("/")
    try:
        if inside:
            return Path(hf_hub_download(f"{owner}/{repository}", "/".join(inside)))
        folder = Path(snapshot_download(name, allow_patterns=HUB_FILES, ignore_patterns=["*/*"]))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"there is no folder {name!r}, and the hub has not given such a denoiser: {reason}{made_by(name)}"
        ) from error
    if not has_weights(folder):
        raise ValueError(
            f"{name} on the hub has no model.safetensors at its top: name one of its files, {name}/path/to/file.safetensors"
        )
    return folder


def made_by(name: str | Path) -> str:
    """The end of an error message: the command that trains a denoiser of that name, if there is one."""
    preset = Path(name).name
    known = any(preset == entry.name for entry in list_presets("pretrain"))
    return f"; unmask pretrain --preset {preset} --out {name} trains one" if known else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest of the known names, if one is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
