"""The file behind the viewer: one problem, decoded by one or several schedulers, as versioned JSON (docs/trace.md).

``L`` positions, ``S`` steps, ``N`` candidates of all steps together, ``A`` tokens kept per candidate. Candidates lie flat, in the
order of (step, position): the ``S × L`` bits of ``eligible`` say which they are. What grows with ``S × L`` is packed: little-endian
numbers, zlib, base64.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt16
from numpy.typing import NDArray

from unmask.runs.atomic import atomic_write
from unmask.tasks.kinds import Drawing
from unmask.tasks.sudoku.grid import Grid

FORMAT, VERSION = "unmask-trace", 1
LOGIT = 16.0  # probabilities are kept between 1.1e-7 and 1 − 1.1e-7; beyond, they are 0 and 1
LEVELS = 65533


@dataclass(frozen=True, eq=False)
class Candidates:
    """What could have been revealed at each step. ``token[:, 0]`` is the likeliest token, ``probability[:, 0]`` the confidence.

    ``truth`` is the probability of the true token, where that is known.
    """

    eligible: Bool[np.ndarray, "S L"]
    score: Float[np.ndarray, "N"]
    token: Int64[np.ndarray, "N A"]
    probability: Float[np.ndarray, "N A"]
    truth: Float[np.ndarray, "N"] | None = None

    def at(self, step: int) -> slice:
        """Where the candidates of a step lie in the flat arrays."""
        counts = self.eligible.sum(1)
        start = int(counts[:step].sum())
        return slice(start, start + int(counts[step]))


@dataclass(frozen=True)
class TracedTrajectory:
    """The decoding by one scheduler: ``order[k]`` is revealed k-th, at ``step[k]``, with log-probability ``logp[k]``.

    ``others`` has, for each step, the position that another scheduler scores best in the same state. ``drawing`` is a picture of
    the answer, where the task has one. ``taken_back`` has a (step, position, token) for each token that a revision hid or
    replaced: such a position is in ``order`` more than once, and there is no ``total_logp``.
    """

    scheduler: str
    tokens: tuple[int, ...]
    order: tuple[int, ...]
    step: tuple[int, ...]
    logp: tuple[float, ...]
    total_logp: float | None
    denoiser_calls: int
    candidates: Candidates | None = None
    others: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    drawing: Drawing | None = None
    taken_back: tuple[tuple[int, int, int], ...] = ()

    @property
    def steps(self) -> int:
        return self.step[-1] + 1 if self.step else 0


@dataclass(frozen=True)
class Trace:
    """A problem and its trajectories. ``prompt`` has ``mask_id`` where something was hidden; ``block`` is −1 outside the region."""

    task: str
    problem: str
    denoiser: str
    decoding: str
    grid: Grid | None
    prompt: tuple[int, ...]
    target: tuple[int, ...] | None
    mask_id: int
    end_ids: tuple[int, ...]
    block: tuple[int, ...]
    labels: Mapping[int, str]
    trajectories: tuple[TracedTrajectory, ...]

    @property
    def kind(self) -> str:
        return "text" if self.grid is None else "grid"

    def trajectory(self, scheduler: str) -> TracedTrajectory:
        for trajectory in self.trajectories:
            if trajectory.scheduler == scheduler:
                return trajectory
        raise ValueError(
            f"no trajectory of {scheduler!r}: the trace has {', '.join(p.scheduler for p in self.trajectories)}"
        )

    def wrong(self, trajectory: TracedTrajectory) -> NDArray[np.bool_]:
        """``[L]`` where a reveal differs from the target; nowhere if that is unknown."""
        wrong = np.zeros(len(self.prompt), bool)
        if self.target is not None:
            where = list(trajectory.order)
            wrong[where] = np.array(trajectory.tokens)[where] != np.array(self.target)[where]
        return wrong

    def first_wrong(self, trajectory: TracedTrajectory) -> int | None:
        """The place in the order of the first reveal that differs from the target."""
        wrong = self.wrong(trajectory)
        return next((k for k, position in enumerate(trajectory.order) if wrong[position]), None)

    def solved(self, trajectory: TracedTrajectory) -> bool | None:
        return None if self.target is None else trajectory.tokens == self.target


def write(trace: Trace, path: str | Path) -> None:
    """The trace as a file of JSON."""
    atomic_write(path, (json.dumps(as_json(trace), separators=(",", ":"), allow_nan=False) + "\n").encode())


def as_json(trace: Trace) -> dict[str, Any]:
    """The content of the file, which the viewer embeds as it is."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": trace.kind,
        **vars(trace),
        "grid": trace.grid and {name: getattr(trace.grid, name) for name in ("size", "box_rows", "box_cols")},
        "labels": {str(token): trace.labels[token] for token in sorted(trace.labels)},
        "trajectories": [_trajectory_json(trace, trajectory) for trajectory in trace.trajectories],
    }


def _trajectory_json(trace: Trace, trajectory: TracedTrajectory) -> dict[str, Any]:
    c = trajectory.candidates
    return {
        **{name: value for name, value in vars(trajectory).items() if name != "drawing"},
        **({"drawing": vars(trajectory.drawing)} if trajectory.drawing else {}),
        "logp": [round(value, 6) for value in trajectory.logp],
        "total_logp": None if trajectory.total_logp is None else round(trajectory.total_logp, 6),
        "first_wrong": trace.first_wrong(trajectory),
        "others": dict(trajectory.others),
        "candidates": c
        and {
            "alternatives": c.token.shape[1],
            "eligible": _pack(np.packbits(c.eligible, axis=1, bitorder="little")),
            "score": _pack(_round_mantissa(c.score)),
            "token": _pack(np.searchsorted(sorted(trace.labels), c.token).astype(index_type(len(trace.labels)))),
            "probability": _pack(probability_code(c.probability)),
            "truth": None if c.truth is None else _pack(probability_code(c.truth)),
        },
    }


def probability_code(p: Float[np.ndarray, "..."]) -> NDArray[np.uint16]:
    """Two bytes for a probability: its logit in −16 … 16, evenly; 0 and 65535 stand for 0 and 1."""
    with np.errstate(divide="ignore"):
        logit = np.log(p.astype(np.float64)) - np.log1p(-p.astype(np.float64))
    code = 1 + (np.clip(logit, -LOGIT, LOGIT) + LOGIT) / (2 * LOGIT) * LEVELS
    return np.where(logit < -LOGIT, 0, np.where(logit > LOGIT, LEVELS + 2, np.rint(code))).astype("<u2")


def probability_of(code: UInt16[np.ndarray, "..."]) -> NDArray[np.float64]:
    """The inverse of ``probability_code``, to within 6.2e-5."""
    p = 1 / (1 + np.exp(LOGIT - (code.astype(np.float64) - 1) / LEVELS * 2 * LOGIT))
    return np.where(code == 0, 0.0, np.where(code == LEVELS + 2, 1.0, p))


def _round_mantissa(score: Float[np.ndarray, "N"]) -> NDArray[np.float32]:
    """float32 with 12 bits of mantissa: the zeros behind them compress."""
    bits = np.ascontiguousarray(score, "<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x400) & 0xFFFFF800).astype("<u4").view("<f4")


def index_type(labels: int) -> str:
    """Tokens are indices into the labels' ids in ascending order, in as few bytes as so many need."""
    return "<u1" if labels <= 2**8 else "<u2" if labels <= 2**16 else "<u4"


def _pack(array: NDArray) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()
