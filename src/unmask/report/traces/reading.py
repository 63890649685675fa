"""Reading a trace: everything in the file is checked, type by type and field against field, sizes before memory is spent on them.

A trace comes from anywhere. What does not fit docs/trace.md is one ValueError: the field, what was expected, what came.
``L`` positions, ``S`` steps, ``N`` candidates of all steps together, ``A`` tokens kept per candidate.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.report.traces.format import FORMAT, VERSION, Candidates, Trace, TracedPath, index_type, probability_of
from unmask.tasks.sudoku.grid import BOXES, Grid, grid

MOST_BITS = 2**27  # steps × positions
MOST_ALTERNATIVES = 32
TRACE_KEYS = (
    *("format", "version", "kind", "task", "problem", "denoiser", "decoding", "grid"),
    *("prompt", "target", "mask_id", "end_ids", "block", "labels", "paths"),
)
PATH_KEYS = (
    *("scheduler", "tokens", "order", "step", "logp", "total_logp"),
    *("denoiser_calls", "first_wrong", "others", "candidates"),
)


def read(path: str | Path) -> Trace:
    """A trace from a file; ValueError says what is wrong with it."""
    try:
        return from_json(parse(Path(path).read_bytes()))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parse(content: bytes) -> Any:
    """JSON as the standard has it: no NaN, nothing nested beyond reason."""

    def refuse(word: str) -> float:
        raise ValueError(f"expected JSON, got the word {word}")

    try:
        return json.loads(content, parse_constant=refuse)
    except RecursionError:
        raise ValueError("expected JSON, got brackets nested beyond reason") from None
    except UnicodeDecodeError:
        raise ValueError("expected JSON in UTF-8, got other bytes") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"expected JSON: {error}") from None


def _unpack(value: Any, name: str, dtype: str, count: int) -> NDArray:
    expected = count * np.dtype(dtype).itemsize
    try:
        raw = base64.b64decode(_text(value, name), validate=True)
        inflate = zlib.decompressobj()
        # One byte more than expected, and no further: a small file must not fill the memory.
        content = inflate.decompress(raw, expected + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"{name}: expected base64 of zlib data, got: {error}") from None
    if len(content) != expected or not inflate.eof:
        raise ValueError(f"{name}: expected {expected} bytes, got {'more' if len(content) > expected else 'fewer'}")
    return np.frombuffer(content, dtype)


def from_json(value: Any) -> Trace:
    """The inverse of ``as_json``. Every field is checked: type, range, and how it fits the others."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f'expected a trace, a JSON object with "format": "{FORMAT}"')
    if value.get("version") != VERSION:
        raise ValueError(
            f"expected version {VERSION} of the trace format, got {_short(value.get('version'))}; "
            "record the trace again with this version of unmask"
        )
    _keys(value, "the trace", *TRACE_KEYS)
    prompt = _ids(value["prompt"], "prompt")
    length = len(prompt)
    if not length:
        raise ValueError("prompt: expected at least one position, got none")
    labels: dict[int, str] = {}
    for key, text in _mapping(value["labels"], "labels").items():
        if not (key.isascii() and key.isdigit()) or len(key) > 10 or str(int(key)) != key:
            raise ValueError(f"labels: expected token ids as keys, got {_short(key)}")
        labels[int(key)] = _text(text, f"labels, {key}", empty=True)
    target = None if value["target"] is None else _ids(value["target"], "target", length)
    paths = value["paths"]
    if not isinstance(paths, list) or not paths:
        raise ValueError(f"paths: expected a list of at least one path, got {_short(paths)}")
    trace = Trace(
        task=_text(value["task"], "task"),
        problem=_text(value["problem"], "problem"),
        denoiser=_text(value["denoiser"], "denoiser"),
        decoding=_text(value["decoding"], "decoding"),
        grid=_grid(value, length),
        prompt=prompt,
        target=target,
        mask_id=_whole(value["mask_id"], "mask_id", 0, 2**31),
        end_ids=_ids(value["end_ids"], "end_ids"),
        block=_ids(value["block"], "block", length, low=-1),
        labels=labels,
        paths=tuple(_path(path, f"path {n}", prompt, labels, target is not None) for n, path in enumerate(paths)),
    )
    names = [path.scheduler for path in trace.paths]
    if len(set(names)) < len(names):
        raise ValueError(f"paths: expected one per scheduler, got {', '.join(names)}")
    shown = {trace.mask_id, *prompt, *(target or ()), *(token for path in trace.paths for token in path.tokens)}
    if shown - labels.keys():
        raise ValueError(f"labels: expected one for every token, got none for {min(shown - labels.keys())}")
    for stored, path in zip(paths, trace.paths, strict=True):
        if any(trace.prompt[position] != trace.mask_id for position in path.order):
            raise ValueError(f"{path.scheduler}: order: expected hidden positions, got one that the prompt gives")
        if stored["first_wrong"] != trace.first_wrong(path):
            raise ValueError(
                f"{path.scheduler}: first_wrong: expected {trace.first_wrong(path)}, got {_short(stored['first_wrong'])}"
            )
    return trace


def _path(value: Any, place: str, prompt: tuple[int, ...], labels: dict[int, str], known: bool) -> TracedPath:
    _keys(value, place, *PATH_KEYS)
    length = len(prompt)
    order = _ids(value["order"], f"{place}, order", high=length)
    step = _ids(value["step"], f"{place}, step", len(order), high=length)
    if len(set(order)) < len(order):
        raise ValueError(f"{place}, order: expected each position once")
    if step and (step[0] != 0 or any(b - a not in (0, 1) for a, b in pairwise(step))):
        raise ValueError(f"{place}, step: expected 0, then the same or the next step at each reveal")
    steps = step[-1] + 1 if step else 0
    logp = value["logp"]
    if not isinstance(logp, list) or len(logp) != len(order):
        raise ValueError(f"{place}, logp: expected a number per reveal, got {_short(logp)}")
    found = None
    if value["candidates"] is not None:
        found = _candidates(value["candidates"], f"{place}, candidates", steps, length, sorted(labels), known)
        if not all(found.eligible[s, position] for s, position in zip(step, order, strict=True)):
            raise ValueError(f"{place}, candidates: expected every reveal among the candidates of its step")
    others = _mapping(value["others"], f"{place}, others")
    return TracedPath(
        scheduler=_text(value["scheduler"], f"{place}, scheduler"),
        tokens=_ids(value["tokens"], f"{place}, tokens", length),
        order=order,
        step=step,
        logp=tuple(_number(p, f"{place}, logp") for p in logp),
        total_logp=_number(value["total_logp"], f"{place}, total_logp"),
        denoiser_calls=_whole(value["denoiser_calls"], f"{place}, denoiser_calls", 0, 2**53),
        candidates=found,
        others={n: _ids(others[n], f"{place}, others, {_short(n)}", steps, high=length) for n in others},
    )


def _candidates(value: Any, place: str, steps: int, length: int, ids: list[int], known: bool) -> Candidates:
    _keys(value, place, "alternatives", "eligible", "score", "token", "probability", "truth")
    width = _whole(value["alternatives"], f"{place}, alternatives", 1, MOST_ALTERNATIVES + 1)
    if steps * length > MOST_BITS:
        raise ValueError(f"{place}: expected at most {MOST_BITS} steps × positions, got {steps} × {length}")
    bits = _unpack(value["eligible"], f"{place}, eligible", "<u1", steps * math.ceil(length / 8))
    eligible = np.unpackbits(bits.reshape(steps, -1), axis=1, count=length, bitorder="little").astype(bool)
    n = int(eligible.sum())
    token = _unpack(value["token"], f"{place}, token", index_type(len(ids)), n * width)
    if n and int(token.max()) >= len(ids):
        raise ValueError(f"{place}, token: expected indices below the {len(ids)} labels, got {int(token.max())}")
    score = _unpack(value["score"], f"{place}, score", "<f4", n)
    if not np.isfinite(score).all():
        raise ValueError(f"{place}, score: expected finite numbers")
    truth = None if value["truth"] is None else _unpack(value["truth"], f"{place}, truth", "<u2", n)
    if truth is not None and not known:
        raise ValueError(f"{place}, truth: expected none, as the trace has no target")
    return Candidates(
        eligible=eligible,
        score=score,
        token=np.array(ids, np.int64)[token].reshape(n, width),
        probability=probability_of(_unpack(value["probability"], f"{place}, probability", "<u2", n * width)).reshape(
            n, width
        ),
        truth=None if truth is None else probability_of(truth),
    )


def _grid(value: dict[str, Any], length: int) -> Grid | None:
    if value["kind"] not in ("grid", "text"):
        raise ValueError(f"kind: expected grid or text, got {_short(value['kind'])}")
    if value["kind"] == "text":
        if value["grid"] is not None:
            raise ValueError("grid: expected null in a trace of text")
        return None
    _keys(value["grid"], "grid", "size", "box_rows", "box_cols")
    size = _whole(value["grid"]["size"], "grid, size", 1, 65)
    shape = grid(size) if size in BOXES and size * size == length else None
    if shape is None or value["grid"] != {"size": size, "box_rows": shape.box_rows, "box_cols": shape.box_cols}:
        raise ValueError(f"grid: expected the shape of a board of {length} cells, got {_short(value['grid'])}")
    return shape


def _keys(value: Any, place: str, *keys: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected a JSON object, got {_short(value)}")
    if missing := [key for key in keys if key not in value]:
        raise ValueError(f"{place}: {missing[0]} is missing")
    if unknown := [key for key in value if key not in keys]:
        raise ValueError(f"{place}: {_short(unknown[0])} is not a field of version {VERSION}")


def _mapping(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: expected a JSON object, got {_short(value)}")
    return value


def _text(value: Any, place: str, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise ValueError(f"{place}: expected text, got {_short(value)}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{place}: expected text, got half of a surrogate pair, which no encoding has")
    return value


def _whole(value: Any, place: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value < high:
        raise ValueError(f"{place}: expected a whole number from {low} to {high - 1}, got {_short(value)}")
    return value


def _number(value: Any, place: str) -> float:
    if type(value) not in (int, float) or not -1e300 < value < 1e300:
        raise ValueError(f"{place}: expected a finite number, got {_short(value)}")
    return float(value)


def _ids(value: Any, place: str, count: int | None = None, low: int = 0, high: int = 2**31) -> tuple[int, ...]:
    if not isinstance(value, list) or (count is not None and len(value) != count):
        many = "" if count is None else f"{count} "
        raise ValueError(f"{place}: expected a list of {many}whole numbers, got {_short(value)}")
    return tuple(_whole(item, place, low, high) for item in value)


def _short(value: Any) -> str:
    """A value in a message: an error must not be as long as the file."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
