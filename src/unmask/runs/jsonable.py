"""Values as JSON data, and JSON files read and written."""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

LONGEST_LINE = 10_000_000
"""Bytes. A longer line is refused before it is parsed."""


def to_jsonable(value: Any, finite: bool | Literal["null"] = False, place: str = "the top") -> Any:
    """`value` as JSON data: dataclasses to dicts, tuples to lists, tensors to (lists of) numbers.

    With `finite`, NaN and the infinities, which JSON lacks, become "NaN", "Infinity" and "-Infinity", which `float()` reads back;
    with "null" they become None.
    """
    value = _unwrap(value)
    if isinstance(value, float) and finite and not math.isfinite(value):
        return None if finite == "null" else json.dumps(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [to_jsonable(item, finite, f"{place}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, Mapping):
        raise ValueError(f"expected JSON data at {place}, got {type(value).__name__}; convert it first")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"expected text as keys at {place}, got {key!r}; use str({key!r})")
    return {key: to_jsonable(item, finite, f"{place}, {key}") for key, item in value.items()}


def _unwrap(value: Any) -> Any:
    """One level: the plain number, text, list or dict that stands for the value."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path | torch.dtype | torch.device):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value


def format_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("brackets nested beyond reason") from None


def parse_json_lines(lines: Iterable[bytes], source: str) -> Iterator[tuple[str, Any]]:
    """Each line that is not empty, as its place, such as "a.jsonl, line 3", and its value."""
    for number, line in enumerate(lines, 1):
        place = f"{source}, line {number}"
        if len(line) > LONGEST_LINE:
            raise ValueError(f"{place}: longer than {LONGEST_LINE} bytes: expected one JSON object a line")
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{place}: not UTF-8 (byte {error.start + 1}): save the file as UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place}: not JSON ({error or 'nested too deep'})") from None
        yield place, value


def read_json_lines(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The lines of a file, one by one."""
    try:
        with open(path, "rb") as file:
            yield from parse_json_lines(iter(lambda: file.readline(LONGEST_LINE + 1), b""), str(path))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error


def flatten(value: Any, place: str = "") -> dict[str, Any]:
    """Nested dicts as one level: {"policy.width": 64}."""
    if not isinstance(value, dict):
        return {place: value}
    nested = [flatten(item, f"{place}.{key}".lstrip(".")) for key, item in value.items()]
    return {key: leaf for part in nested for key, leaf in part.items()}
