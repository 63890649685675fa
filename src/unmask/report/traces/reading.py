"""Reading a trace from a file that may come from anywhere.

``StoredTrace`` declares the types and ranges of docs/trace.md; the functions below it check how the fields fit each other, sizes
before memory is spent on them. A file that does not fit is one ValueError: the field, what was expected, what it holds.
``L`` positions, ``S`` steps, ``N`` candidates of all steps together, ``A`` tokens kept per candidate.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from unmask.report.stored import STRICT, parse, shorten, validate
from unmask.report.traces.format import FORMAT, VERSION, Candidates, Trace, TracedTrajectory, index_type, probability_of
from unmask.runs.bounded import read_bounded
from unmask.tasks.kinds import Drawing
from unmask.tasks.sudoku.grid import BOXES, Grid, grid

MOST_BITS = 2**27  # steps × positions
MOST_ALTERNATIVES = 32
MOST_SVG = 2**20

Name = Annotated[str, Field(min_length=1)]
Index = Annotated[int, Field(ge=0, lt=2**31)]
TokenId = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, config=STRICT)
class StoredGrid:
    size: Index
    box_rows: Index
    box_cols: Index


@dataclass(frozen=True, config=STRICT)
class StoredCandidates:
    """Packed numbers: base64 of zlib."""

    alternatives: Annotated[int, Field(ge=1, le=MOST_ALTERNATIVES)]
    eligible: str
    score: str
    token: str
    probability: str
    truth: str | None


@dataclass(frozen=True, config=STRICT)
class StoredDrawing:
    svg: Annotated[str, Field(max_length=MOST_SVG)]
    parts: tuple[tuple[Index, Index], ...]


@dataclass(frozen=True, config=STRICT)
class StoredTrajectory:
    scheduler: Name
    tokens: tuple[Index, ...]
    order: tuple[Index, ...]
    step: tuple[Index, ...]
    logp: tuple[Finite, ...]
    total_logp: Finite | None
    denoiser_calls: Annotated[int, Field(ge=0, lt=2**53)]
    first_wrong: Index | None
    others: dict[str, tuple[Index, ...]]
    candidates: StoredCandidates | None
    drawing: StoredDrawing | None = None
    taken_back: tuple[tuple[Index, Index, Index], ...] = ()


@dataclass(frozen=True, config=STRICT)
class StoredTrace:
    format: Literal["unmask-trace"]
    version: Literal[1]
    kind: Literal["grid", "text"]
    task: Name
    problem: Name
    denoiser: Name
    decoding: Name
    grid: StoredGrid | None
    prompt: Annotated[tuple[Index, ...], Field(min_length=1)]
    target: tuple[Index, ...] | None
    mask_id: Index
    end_ids: tuple[Index, ...]
    block: tuple[Annotated[int, Field(ge=-1, lt=2**31)], ...]
    labels: dict[TokenId, str]
    trajectories: Annotated[tuple[StoredTrajectory, ...], Field(min_length=1)]


SAME_FIELDS = ("task", "problem", "denoiser", "decoding", "prompt", "target", "mask_id", "end_ids", "block")
"""Fields of a trace that are stored as they are."""


def read(path: str | Path) -> Trace:
    """A trace from a file; ValueError says what is wrong with it."""
    content = read_bounded(Path(path))
    try:
        return from_json(parse(content))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def from_json(value: Any) -> Trace:
    """The inverse of ``as_json``. Every field is checked: type, range, and how it fits the others."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f'expected a trace, a JSON object with "format": "{FORMAT}"')
    if value.get("version") != VERSION:
        raise ValueError(
            f"expected version {VERSION} of the trace format, got {shorten(value.get('version'))}; "
            "record the trace again with this version of unmask"
        )
    stored = validate(StoredTrace, value)
    length = len(stored.prompt)
    _require_length(stored.block, length, "block")
    if stored.target is not None:
        _require_length(stored.target, length, "target")
    labels = {int(token): text for token, text in stored.labels.items()}
    trajectories = [
        _trajectory(one, f"trajectory {n}", stored, sorted(labels)) for n, one in enumerate(stored.trajectories)
    ]
    same = {name: getattr(stored, name) for name in SAME_FIELDS}
    trace = Trace(**same, grid=_grid(stored), labels=labels, trajectories=tuple(trajectories))
    _require_consistency(trace, stored)
    return trace


def _require_consistency(trace: Trace, stored: StoredTrace) -> None:
    """What the trajectories must have in common with the problem."""
    names = [trajectory.scheduler for trajectory in trace.trajectories]
    if len(set(names)) < len(names):
        raise ValueError(f"trajectories: expected one per scheduler, got {shorten(', '.join(names))}")
    shown = {trace.mask_id, *trace.prompt, *(trace.target or ())}.union(*(one.tokens for one in trace.trajectories))
    shown |= {token for one in trace.trajectories for _, _, token in one.taken_back}
    if shown - trace.labels.keys():
        raise ValueError(f"labels: expected one for every token, got none for {min(shown - trace.labels.keys())}")
    for given, trajectory in zip(stored.trajectories, trace.trajectories, strict=True):
        name = shorten(trajectory.scheduler)
        if any(trace.prompt[position] != trace.mask_id for position in trajectory.order):
            raise ValueError(f"{name}, order: expected hidden positions, got one that the prompt gives")
        first = trace.first_wrong(trajectory)
        if given.first_wrong != first:
            raise ValueError(f"{name}, first_wrong: expected {first}, got {given.first_wrong}")


def _trajectory(stored: StoredTrajectory, place: str, problem: StoredTrace, ids: list[int]) -> TracedTrajectory:
    length, order, step = len(problem.prompt), stored.order, stored.step
    _require_length(stored.tokens, length, f"{place}, tokens")
    _require_positions(order, length, f"{place}, order")
    _require_length(step, len(order), f"{place}, step")
    _require_length(stored.logp, len(order), f"{place}, logp")
    steps = _require_steps(stored, length, place)
    for name, choices in stored.others.items():
        _require_length(choices, steps, f"{place}, others, {shorten(name)}")
        _require_positions(choices, length, f"{place}, others, {shorten(name)}")
    candidates = None
    if stored.candidates is not None:
        candidates = _candidates(stored.candidates, f"{place}, candidates", steps, problem, ids)
        replaced = {(when, position) for when, position, _ in stored.taken_back}
        reveals = set(zip(step, order, strict=True)) - replaced
        if not all(candidates.eligible[at, position] for at, position in reveals):
            raise ValueError(f"{place}, candidates: expected every reveal among the candidates of its step")
    same = {name: value for name, value in vars(stored).items() if name not in ("first_wrong", "candidates", "drawing")}
    drawing = _drawing(stored.drawing, length, f"{place}, drawing")
    return TracedTrajectory(**same, candidates=candidates, drawing=drawing)


def _drawing(stored: StoredDrawing | None, length: int, place: str) -> Drawing | None:
    if stored is None:
        return None
    _require_positions([position for position, _ in stored.parts], length, place)
    return Drawing(stored.svg, stored.parts)


def _require_steps(stored: StoredTrajectory, length: int, place: str) -> int:
    """The number of steps. What is taken back is revealed once more, and a step may do nothing else."""
    order, step = stored.order, stored.step
    _require_positions([position for _, position, _ in stored.taken_back], length, f"{place}, taken_back")
    again = Counter(order) - Counter(position for _, position, _ in stored.taken_back)
    if max(again.values(), default=1) > 1:
        raise ValueError(f"{place}, order: expected each position once, and once more whenever it was taken back")
    gaps = [after - before for before, after in pairwise((0, *step))]
    if gaps and (gaps[0] or min(gaps) < 0 or (max(gaps) > 1 and not stored.taken_back)):
        raise ValueError(f"{place}, step: expected 0, then the same or the next step at each reveal")
    if (stored.total_logp is None) != bool(stored.taken_back):
        raise ValueError(f"{place}, total_logp: expected a number, or null where something was taken back")
    steps = step[-1] + 1 if step else 0
    if any(when >= steps for when, _, _ in stored.taken_back):
        raise ValueError(f"{place}, taken_back: expected steps before the last reveal")
    return steps


def _candidates(stored: StoredCandidates, place: str, steps: int, problem: StoredTrace, ids: list[int]) -> Candidates:
    length, width = len(problem.prompt), stored.alternatives
    if steps * length > MOST_BITS:
        raise ValueError(f"{place}: expected at most {MOST_BITS} steps × positions, got {steps} × {length}")
    if stored.truth is not None and problem.target is None:
        raise ValueError(f"{place}, truth: expected null, as the trace has no target")
    bits = _unpack(stored.eligible, f"{place}, eligible", "<u1", steps * math.ceil(length / 8))
    eligible = np.unpackbits(bits.reshape(steps, -1), axis=1, count=length, bitorder="little").astype(bool)
    n = int(eligible.sum())
    token = _unpack(stored.token, f"{place}, token", index_type(len(ids)), n * width)
    if n and int(token.max()) >= len(ids):
        raise ValueError(f"{place}, token: expected indices below the {len(ids)} labels, got {int(token.max())}")
    score = _unpack(stored.score, f"{place}, score", "<f4", n)
    if not np.isfinite(score).all():
        raise ValueError(f"{place}, score: expected finite numbers")
    probability = probability_of(_unpack(stored.probability, f"{place}, probability", "<u2", n * width))
    truth = None if stored.truth is None else _unpack(stored.truth, f"{place}, truth", "<u2", n)
    return Candidates(
        eligible=eligible,
        score=score,
        token=np.array(ids, np.int64)[token].reshape(n, width),
        probability=probability.reshape(n, width),
        truth=None if truth is None else probability_of(truth),
    )


def _unpack(text: str, place: str, dtype: str, count: int) -> NDArray:
    expected = count * np.dtype(dtype).itemsize
    try:
        raw = base64.b64decode(text, validate=True)
        inflate = zlib.decompressobj()
        # One byte more than expected, and no further: a small file must not fill the memory.
        content = inflate.decompress(raw, expected + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(f"{place}: expected base64 of zlib data, got: {error}") from None
    if len(content) != expected or not inflate.eof:
        raise ValueError(f"{place}: expected {expected} bytes, got {'more' if len(content) > expected else 'fewer'}")
    return np.frombuffer(content, dtype)


def _grid(stored: StoredTrace) -> Grid | None:
    given, length = stored.grid, len(stored.prompt)
    if (given is None) != (stored.kind == "text"):
        raise ValueError(f"grid: expected {'null' if given else 'a JSON object'} in a trace of kind {stored.kind}")
    if given is None:
        return None
    shape = grid(given.size) if given.size in BOXES and given.size**2 == length else None
    if shape is None or (given.box_rows, given.box_cols) != (shape.box_rows, shape.box_cols):
        raise ValueError(
            f"grid: expected the shape of a board of {length} cells, got {given.size} with boxes of "
            f"{given.box_rows} × {given.box_cols}"
        )
    return shape


def _require_length(values: Sequence[Any], count: int, place: str) -> None:
    if len(values) != count:
        raise ValueError(f"{place}: expected a list of {count}, got one of {len(values)}")


def _require_positions(values: Sequence[int], length: int, place: str) -> None:
    if values and max(values) >= length:
        raise ValueError(f"{place}: expected positions from 0 to {length - 1}, got {max(values)}")
