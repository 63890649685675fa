"""Weights on disk by name: one safetensors file or several, mapped into memory and read when asked. Nothing is unpickled.

A tensor that is asked for in the type it is stored in, on the CPU, *is* the file: no copy is made until somebody writes to it.
Do not overwrite a file that is mapped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHOWN = 4
"""How many of the tensors that do not fit an error names."""
SMALL = 2**24
"""Numbers that cost nothing to make room for."""
Shape = tuple[int, ...]


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


def fit(expected: Mapping[str, Shape], found: Mapping[str, Shape], where: Path, optional: Collection[str] = ()) -> None:
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


def enough(least: int, found: Mapping[str, Shape], where: Path) -> None:
    """Refuse weights that are far fewer than the configuration asks for, before memory is spent on what it asks for."""
    held = sum(math.prod(shape) for shape in found.values())
    if least > 2 * held + SMALL:  # what is nearer is looked at tensor by tensor
        raise ValueError(
            f"{where} does not fit its configuration: it holds {held:,} numbers, the configuration asks for {least:,} or more"
        )


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
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
