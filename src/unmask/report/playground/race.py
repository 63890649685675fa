"""A race: several schedulers fill the same puzzle with the same denoiser, reveal by reveal, in turn.

Each scheduler decodes in its own thread, with ``unmask()``, and passes on one reveal at a time; none gets more than two steps
ahead of the events that were consumed. The trace for the viewer is recorded on the way.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from unmask.decoding.loop import Step, unmask
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler, Trajectory
from unmask.denoisers.loading import load_denoiser
from unmask.report.playground.puzzles import Puzzle
from unmask.report.traces import record as trace
from unmask.report.traces.record import Trace
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
MOST_SCHEDULERS = 4
SECONDS = 120.0


@dataclass(frozen=True)
class Reveal:
    """The ``nth`` reveal (from 0) of a scheduler: which cell, which digit, the model's probability of it, whether it is right."""

    scheduler: str
    nth: int
    cell: int
    digit: int
    p: float
    right: bool


@dataclass(frozen=True)
class Verdict:
    """How a scheduler ended. ``first_wrong`` is the reveal, from 0, that was its first mistake."""

    scheduler: str
    solved: bool
    wrong: int
    first_wrong: int | None
    total_logp: float
    denoiser_calls: int


@dataclass(frozen=True)
class Finish:
    """The end of a race, with everything that happened."""

    trace: Trace


class Stopped(Exception):
    """Raised inside a decoding whose race is over."""


class TooSlow(RuntimeError):
    """The race was not over in time."""


def check_entry(denoiser: str, schedulers: tuple[str, ...], size: int) -> None:
    """Refuse what is not on the lists above: a name from the page is never a path or a hub id."""
    if denoiser not in DENOISERS:
        raise ValueError(f"expected a denoiser among {', '.join(DENOISERS)}, got {denoiser[:60]!r}")
    unknown = [name for name in schedulers if name not in SCHEDULERS]
    if unknown:
        raise ValueError(f"expected schedulers among {', '.join(SCHEDULERS)}, got {unknown[0][:60]!r}")
    if not 1 <= len(schedulers) <= MOST_SCHEDULERS:
        raise ValueError(f"expected 1 to {MOST_SCHEDULERS} schedulers, got {len(schedulers)}")
    if len(set(schedulers)) < len(schedulers):
        raise ValueError("the same scheduler is named twice: choose another one")
    if DENOISERS[denoiser][0] != size:
        fits = DENOISERS[denoiser][0]
        raise ValueError(f"{denoiser} fills {fits}×{fits} boards, but the puzzle is {size}×{size}: choose another")


def race(
    puzzle: Puzzle,
    denoiser: str,
    names: tuple[str, ...],
    *,
    seed: int = 0,
    stop: threading.Event | None = None,
    seconds: float = SECONDS,
) -> Iterator[Reveal | Verdict | Finish]:
    """Run the race and yield its events. Closing the iterator, or ``stop``, ends the decodings at their next step."""
    check_entry(denoiser, names, puzzle.size)
    model = _denoiser(denoiser)
    schedulers = {name: _scheduler(name, denoiser) for name in names}
    tokens, target = (torch.from_numpy(board.astype("int64"))[None] for board in (puzzle.board, puzzle.solution))
    region, seeds = torch.ones_like(tokens, dtype=torch.bool), torch.tensor([seed])
    canvas = Canvas(tokens, target, region, seeds=seeds)
    over = threading.Event()
    runners = [_Runner(name, schedulers, model, canvas, over, stop) for name in names]
    deadline = time.monotonic() + seconds
    try:
        for runner in runners:
            runner.start()
        running = list(runners)
        while running:
            for runner in list(running):
                event = runner.next(deadline)
                if isinstance(event, Verdict):
                    running.remove(runner)
                yield event
        trajectories = {runner.name: runner.trajectory for runner in runners}
        about = trace.about_boards(puzzle.size, denoiser)
        yield Finish(trace.make_trace(model, trajectories, canvas, about, problem=puzzle.text))  # pyright: ignore[reportArgumentType]
    finally:
        over.set()
        for runner in runners:
            runner.join(5)


@cache
def _denoiser(name: str) -> Any:
    return load_denoiser(name)


@cache
def _scheduler(name: str, denoiser: str) -> Scheduler:
    return load_scheduler(name, _denoiser(denoiser), denoiser)


class _Runner(threading.Thread):
    """The decoding of one scheduler. Its queue holds one event: the thread waits until that one is consumed."""

    def __init__(
        self,
        name: str,
        schedulers: Mapping[str, Scheduler],
        denoiser: Denoiser,
        canvas: Canvas,
        over: threading.Event,
        stop: threading.Event | None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        # The copy shares the weights; its count of canvases is its own.
        self.denoiser, self.canvas = copy.copy(denoiser), canvas
        self.over, self.stop = over, stop
        self.scheduler = RecordingScheduler(name, schedulers)
        self.events: queue.Queue[Reveal | Verdict | Exception] = queue.Queue(maxsize=1)
        self.trajectory: Trajectory | None = None
        self.nth = 0

    def next(self, deadline: float) -> Reveal | Verdict:
        """The next event. Raises the error of the decoding, TooSlow at the deadline, Stopped when the server stops."""
        while True:
            if self._ended():
                raise Stopped
            if time.monotonic() > deadline:
                raise TooSlow("the race took too long and was stopped")
            try:
                event = self.events.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(event, Exception):
                raise event
            return event

    def run(self) -> None:
        try:
            trajectory = unmask(
                self.denoiser,
                self.scheduler,
                self.canvas,
                observe=self.scheduler.observe,
                on_step=self._on_step,
            )
            self.trajectory = trajectory
            self._put(self._verdict(trajectory))
        except Stopped:
            return
        except Exception as error:  # a thread cannot raise to its caller: the consumer of the events raises it
            self._put_error(error)

    def _ended(self) -> bool:
        return self.over.is_set() or (self.stop is not None and self.stop.is_set())

    def _on_step(self, step: Step) -> None:
        for cell in torch.nonzero(step.revealed[0])[:, 0].tolist():
            digit = int(step.tokens[0, cell])
            right = digit == int(self.canvas.truth[0, cell])
            p = float(step.view.confidence[0, cell].exp())
            self._put(Reveal(self.name, self.nth, cell, digit, p, right))
            self.nth += 1

    def _verdict(self, trajectory: Trajectory) -> Verdict:
        wrong = trajectory.tokens[0] != self.canvas.truth[0]
        first = next((k for k, cell in enumerate(trajectory.order[0].tolist()) if cell >= 0 and wrong[cell]), None)
        number = int(wrong.sum())
        return Verdict(
            self.name, number == 0, number, first, trajectory.total_logp[0].item(), trajectory.denoiser_calls
        )

    def _put(self, event: Reveal | Verdict | Exception) -> None:
        while not self._ended():
            try:
                return self.events.put(event, timeout=0.1)
            except queue.Full:
                continue
        raise Stopped

    def _put_error(self, error: Exception) -> None:
        try:
            self._put(error)
        except Stopped:
            return
