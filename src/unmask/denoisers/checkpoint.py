"""Denoisers on disk: ``config.json`` beside weights in one safetensors file or several. Nothing is unpickled.

Weights are mapped into memory and read when needed. A tensor that is read in the type it is stored in, on the CPU, *is* the file:
it is copied when something writes to it. Do not overwrite a file that is mapped.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.atomic import write_folder
from unmask.runs.config import read

FAMILY = "unmask"
"""The ``family`` in the ``config.json`` of this library's own denoisers."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHOWN = 4
"""How many mismatched tensors an error names."""
UNCHECKED = 2**24
"""Configurations that need fewer weights than this are built without a check of the file's size."""
Shape = tuple[int, ...]


def save_denoiser(denoiser: Transformer, folder: str | Path, dtype: torch.dtype | None = None) -> Path:
    """Write the configuration and the weights, in ``dtype`` if given (float16 halves the file)."""
    config = {"family": FAMILY, **dataclasses.asdict(denoiser.config)}
    weights = {name: p.detach().to(dtype or p.dtype).contiguous() for name, p in denoiser.named_parameters()}
    with write_folder(folder) as aside:
        save_file(weights, aside / SINGLE)
        (aside / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return Path(folder)


def load_folder(
    folder: str | Path, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Transformer:
    """The denoiser that :func:`save_denoiser` wrote, frozen and ready to decode."""
    file = Path(folder) / SINGLE
    config = read_config(Path(folder))
    checkpoint = Checkpoint(file)
    require_plausible_size(config.least_weights, checkpoint.shapes, file, config.n_layers)
    denoiser = build_empty(config)
    expected = {name: tuple(p.shape) for name, p in denoiser.named_parameters()}
    require_matching_shapes(expected, checkpoint.shapes, file)
    # Not strict: a tied head has no tensor of its own, and the names were compared above.
    weights = {name: checkpoint.read(name, dtype, device) for name in checkpoint.shapes}
    denoiser.load_state_dict(weights, strict=False, assign=True)
    if config.tied_head:
        denoiser.head.weight = denoiser.embedding.weight
    return denoiser.to(device=device).requires_grad_(False).eval()


def build_empty(config: TransformerConfig) -> Transformer:
    """A transformer whose weights have no memory: each is to be assigned from where it is stored."""
    with torch.device("meta"), SkipInitialisation():
        return Transformer(config)


class SkipInitialisation(TorchFunctionMode):
    """Skip ``torch.nn.init``: on the meta device there is nothing to fill, and trying imports half of torch's compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


def read_config(folder: Path) -> TransformerConfig:
    """The configuration of one of this library's own denoisers."""
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"expected a denoiser's folder with a config.json, got {folder}")
    stored = read_json(file)
    if stored.pop("family", None) != FAMILY:
        raise ValueError(f'{file} is not a denoiser of this library: expected "family": "{FAMILY}"')
    config = read(TransformerConfig, {key: value for key, value in stored.items() if value is not None}, str(file))
    pad = [] if config.pad_id is None else [config.pad_id]
    tokens = (config.mask_id, *config.end_ids, *config.forbidden_ids, *pad)
    if wrong := [token for token in tokens if not 0 <= token < config.vocab_size]:
        raise ValueError(f"{file}: expected tokens below vocab_size, {config.vocab_size}, got {wrong[0]}")
    return config


class Checkpoint:
    """The tensors of one model. ``path``: a safetensors file, or a folder with ``model.safetensors`` or its index of shards."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: dict[str, Any] = {}
        self.shapes: dict[str, Shape] = {}
        for file in _shards(path):
            try:
                opened = safe_open(file, framework="pt", device="cpu")
                names = opened.keys()
            except (OSError, SafetensorError) as error:
                raise ValueError(f"cannot read the weights {file}: {error}") from error
            for name in names:
                if name in self._files:
                    raise ValueError(f"{path}: two of its files hold {name}; download it again")
                self._files[name] = opened
                self.shapes[name] = tuple(opened.get_slice(name).get_shape())

    def read(
        self, name: str, dtype: torch.dtype | None = None, device: torch.device | str | int | None = None
    ) -> Tensor:
        """One tensor, in ``dtype`` (as stored if None) on ``device`` (the CPU if None)."""
        tensor = self._files[name].get_tensor(name)
        if not tensor.is_floating_point():
            raise ValueError(
                f"{self.path}: {name} is stored as {tensor.dtype}: expected floating point; a quantised checkpoint must be "
                "dequantised first"
            )
        return tensor.to(device=device, dtype=dtype)


def require_matching_shapes(
    expected: Mapping[str, Shape], found: Mapping[str, Shape], where: Path, optional: Collection[str] = ()
) -> None:
    """Refuse weights that are not exactly those of the model, naming the first few that are missing, extra or misshapen."""
    wrong = [f"{name} is missing" for name in expected.keys() - found.keys()]
    wrong += [f"{name} is not in the model" for name in found.keys() - expected.keys() - set(optional)]
    wrong += [
        f"{name} has shape {found[name]}, expected {shape}"
        for name, shape in expected.items()
        if found.get(name, shape) != shape
    ]
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise ValueError(f"{where} does not fit its configuration: {'; '.join(sorted(wrong)[:SHOWN])}{more}")


def require_plausible_size(least: int, found: Mapping[str, Shape], where: Path, layers: int = 0) -> None:
    """Refuse a configuration of far more weights, or of more layers, than the file has tensors, before anything is built."""
    stored = sum(math.prod(shape) for shape in found.values())
    if layers > len(found):
        raise ValueError(
            f"{where} does not fit its configuration: it holds {len(found):,} tensors, the configuration has {layers:,} layers"
        )
    if least > 2 * stored + UNCHECKED:  # smaller differences are found tensor by tensor
        raise ValueError(
            f"{where} does not fit its configuration: it holds {stored:,} numbers, the configuration needs {least:,} or more"
        )


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    if file.exists() and not file.is_file() and not file.is_dir():
        raise ValueError(f"expected a file {file}: it is a pipe or a device")  # which could keep us waiting for ever
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"expected a file {file}: {error.strerror}") from error
    except RecursionError:
        raise ValueError(f"{file} is not valid JSON: brackets nested beyond reason") from None
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, got {type(content).__name__}")
    return content


def has_weights(folder: Path) -> bool:
    return (folder / SINGLE).exists() or (folder / INDEX).exists()


def _shards(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not (path / INDEX).exists():
        return [path / SINGLE]
    index = path / INDEX
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise ValueError(f"{index} has no weight_map: it should say which file holds which tensor")
    files = sorted({str(file) for file in listed.values()})
    for file in files:
        if Path(file).name != file:
            raise ValueError(f"{index} names {file!r}: expected files beside it")
        if not (path / file).exists():
            raise ValueError(f"{index} names {file}, which is not there: the download is not complete")
    return [path / file for file in files]
