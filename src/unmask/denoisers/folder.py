"""A denoiser on disk: ``config.json`` beside ``model.safetensors``. Nothing is ever unpickled."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from unmask.denoisers.checkpoint import enough, fit
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.atomic import write_folder
from unmask.runs.config import read

FAMILY = "unmask"


def save_denoiser(denoiser: Transformer, folder: str | Path, dtype: torch.dtype | None = None) -> Path:
    """Write the configuration and the weights, in ``dtype`` if given (float16 halves the file)."""
    config = {"family": FAMILY, **dataclasses.asdict(denoiser.config)}
    weights = {name: p.detach().to(dtype or p.dtype).contiguous() for name, p in denoiser.named_parameters()}
    with write_folder(folder) as aside:
        save_file(weights, aside / "model.safetensors")
        (aside / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return Path(folder)


def load_folder(
    folder: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Transformer:
    """The denoiser that :func:`save_denoiser` wrote, frozen and ready to decode."""
    folder = Path(folder)
    config = read_config(folder)
    try:
        weights = load_file(folder / "model.safetensors")
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read the weights {folder / 'model.safetensors'}: {error}") from error
    shapes = {name: tuple(w.shape) for name, w in weights.items()}
    enough(config.least_weights, shapes, folder / "model.safetensors")
    denoiser = Transformer(config)
    expected = {name: tuple(p.shape) for name, p in denoiser.named_parameters()}
    fit(expected, shapes, folder / "model.safetensors")
    # Copied, not mapped: training writes its result over the folder it started from. Not strict: a tied head has no tensor of
    # its own, and the names were compared above.
    denoiser.load_state_dict({name: weight.to(dtype) for name, weight in weights.items()}, strict=False)
    return denoiser.to(device=device, dtype=dtype).requires_grad_(False).eval()


def read_config(folder: Path) -> TransformerConfig:
    file = folder / "config.json"
    try:
        stored = json.loads(file.read_text())
    except OSError as error:
        raise ValueError(f"expected a denoiser's folder with a config.json, got {folder}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(stored, dict) or stored.pop("family", None) != FAMILY:
        raise ValueError(f'{file} is not a denoiser of this library: expected "family": "{FAMILY}"')
    config = read(TransformerConfig, {key: value for key, value in stored.items() if value is not None}, str(file))
    tokens = (
        config.mask_id,
        *config.end_ids,
        *config.forbidden_ids,
        *([] if config.pad_id is None else [config.pad_id]),
    )
    if wrong := [token for token in tokens if not 0 <= token < config.vocab_size]:
        raise ValueError(f"{file}: expected tokens below vocab_size, {config.vocab_size}, got {wrong[0]}")
    return config
