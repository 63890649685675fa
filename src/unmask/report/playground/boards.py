"""Board races: a Sudoku puzzle, one of the shipped denoisers, up to four schedulers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from pydantic.dataclasses import dataclass

from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas, Trajectory
from unmask.report.playground.models import Models
from unmask.report.playground.puzzles import DIFFICULTIES, EXAMPLES, Puzzle
from unmask.report.playground.race import MOST_LANES, Event, Lane, race
from unmask.report.stored import STRICT
from unmask.report.traces import record as trace
from unmask.report.traces.recording import RecordingScheduler
from unmask.schedulers.loading import load_scheduler

DENOISERS = {
    "sudoku-9x9-imperfect": (9, "9×9, imperfect: here the order matters"),
    "sudoku-9x9": (9, "9×9, the best one"),
    "sudoku-4x4-imperfect": (4, "4×4, imperfect"),
    "sudoku-4x4": (4, "4×4, the best one"),
}
SCHEDULERS = {
    "sas": "learned order (SAS)",
    "confidence": "confidence",
    "margin": "margin",
    "entropy": "entropy",
    "expert": "human expert",
    "left_to_right": "left to right",
    "random": "random",
    "gt_logp": "oracle: knows the solution",
}


@dataclass(frozen=True, config=STRICT)
class BoardRequest:
    puzzle: str
    denoiser: str
    schedulers: tuple[str, ...]


@dataclass(frozen=True, config=STRICT)
class RandomRequest:
    size: int
    difficulty: str


def board_choices() -> dict[str, Any]:
    """What the page offers for boards."""
    return {
        "denoisers": [{"name": name, "size": size, "label": label} for name, (size, label) in DENOISERS.items()],
        "schedulers": [{"name": name, "label": label} for name, label in SCHEDULERS.items()],
        "examples": [asdict(example) for example in EXAMPLES],
        "difficulties": DIFFICULTIES,
    }


def check_board(request: BoardRequest, size: int) -> None:
    """Refuse what is not on the lists above: a name from the page is never a path or a hub id."""
    denoiser, schedulers = request.denoiser, request.schedulers
    if denoiser not in DENOISERS:
        raise ValueError(f"expected a denoiser among {', '.join(DENOISERS)}, got {denoiser[:60]!r}")
    unknown = [name for name in schedulers if name not in SCHEDULERS]
    if unknown:
        raise ValueError(f"expected schedulers among {', '.join(SCHEDULERS)}, got {unknown[0][:60]!r}")
    if not 1 <= len(schedulers) <= MOST_LANES:
        raise ValueError(f"expected 1 to {MOST_LANES} schedulers, got {len(schedulers)}")
    if len(set(schedulers)) < len(schedulers):
        raise ValueError("the same scheduler is named twice: choose another one")
    if DENOISERS[denoiser][0] != size:
        fits = DENOISERS[denoiser][0]
        raise ValueError(f"{denoiser} fills {fits}×{fits} boards, but the puzzle is {size}×{size}: choose another")


def board_race(
    puzzle: Puzzle, request: BoardRequest, models: Models, stop: threading.Event, seconds: float
) -> Iterator[Event]:
    """The events of a race: loading, start, reveals and verdicts in turn, end with its trace."""
    yield from models.load(request.denoiser, text=False)
    model = models.require(request.denoiser).denoiser
    schedulers = {name: load_scheduler(name, model, request.denoiser) for name in request.schedulers}
    tokens, target = (torch.from_numpy(board.astype("int64"))[None] for board in (puzzle.board, puzzle.solution))
    canvas = Canvas(tokens, target, torch.ones_like(tokens, dtype=torch.bool), seeds=torch.tensor([0]))

    def decode(recorder: RecordingScheduler, on_step: Callable[..., None]) -> tuple[Trajectory, dict[str, Any]]:
        # The copy shares the weights; its count of canvases is its own.
        done = unmask(copy.copy(model), recorder, canvas, observe=recorder.observe, on_step=on_step)
        wrong = done.tokens[0] != target[0]
        first = next((k for k, cell in enumerate(done.order[0].tolist()) if cell >= 0 and wrong[cell]), None)
        return done, {"solved": not bool(wrong.any()), "wrong": int(wrong.sum()), "first_wrong": first}

    lanes = [Lane(RecordingScheduler(name, schedulers), decode, str, target[0]) for name in schedulers]
    hidden = int((tokens == 0).sum())
    yield "start", {"puzzle": puzzle.text, "size": puzzle.size, "hidden": hidden, "lanes": list(schedulers)}
    yield from race(lanes, stop, seconds)
    trajectories = {name: lane.trajectory for name, lane in zip(schedulers, lanes, strict=True) if lane.trajectory}
    about = trace.about_boards(puzzle.size, request.denoiser)
    yield "end", {"traces": [trace.make_trace(model, trajectories, canvas, about, problem=puzzle.text)]}
