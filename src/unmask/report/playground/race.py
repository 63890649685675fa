"""A race: several schedulers fill the same puzzle with the same denoiser, reveal by reveal, in turn.

Each order decodes in a thread of its own, with ``unmask()`` and nothing else, and hands over one reveal at a time; none gets more
than two steps ahead of what has been told. What the viewer needs is recorded on the way.
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
from unmask.report.traces.watch import Watched
from unmask.schedulers.loading import load_scheduler

DENOISERS = {
    "sudoku-9x9-imperfect": (9, "9×9, imperfect: here the order matters"),
    "sudoku-9x9": (9, "9×9, the best one"),
    "sudoku-4x4-imperfect": (4, "4×4, imperfect"),
    "sudoku-4x4": (4, "4×4, the best one"),
}
ORDERS = {
    "sas": "learned order (SAS)",
    "confidence": "confidence",
    "margin": "margin",
    "entropy": "entropy",
    "expert": "human expert",
    "left_to_right": "left to right",
    "random": "random",
    "gt_logp": "oracle: knows the solution",
}
MOST_ORDERS = 4
SECONDS = 120.0


@dataclass(frozen=True)
class Reveal:
    """The ``nth`` reveal (from 0) of an order: which cell, which digit, the model's probability of it, whether it is right."""

    order: str
    nth: int
    cell: int
    digit: int
    p: float
    right: bool


@dataclass(frozen=True)
class Verdict:
    """How an order ended. ``first_wrong`` is the reveal, from 0, that was its first mistake."""

    order: str
    solved: bool
    wrong: int
    first_wrong: int | None
    trajectory_logp: float
    denoiser_calls: int


@dataclass(frozen=True)
class Finish:
    """The end of a race, with everything that happened."""

    trace: Trace


class Stopped(Exception):
    """Raised inside a decoding whose race is over."""


class TooSlow(RuntimeError):
    """The race was not over in time."""


def check_entry(denoiser: str, orders: tuple[str, ...], size: int) -> None:
    """Refuse what is not on the lists above: a name from the page is never a path or a hub id."""
    if denoiser not in DENOISERS:
        raise ValueError(f"expected a denoiser among {', '.join(DENOISERS)}, got {denoiser[:60]!r}")
    unknown = [order for order in orders if order not in ORDERS]
    if unknown:
        raise ValueError(f"expected orders among {', '.join(ORDERS)}, got {unknown[0][:60]!r}")
    if not 1 <= len(orders) <= MOST_ORDERS:
        raise ValueError(f"expected 1 to {MOST_ORDERS} orders, got {len(orders)}")
    if len(set(orders)) < len(orders):
        raise ValueError("the same order is named twice: choose another one")
    if DENOISERS[denoiser][0] != size:
        fits = DENOISERS[denoiser][0]
        raise ValueError(f"{denoiser} fills {fits}×{fits} boards, but the puzzle is {size}×{size}: choose another")


def race(
    puzzle: Puzzle,
    denoiser: str,
    orders: tuple[str, ...],
    *,
    seed: int = 0,
    stop: threading.Event | None = None,
    seconds: float = SECONDS,
) -> Iterator[Reveal | Verdict | Finish]:
    """Run the race and tell it. Closing the iterator, or ``stop``, ends the decodings at their next step."""
    check_entry(denoiser, orders, puzzle.size)
    model = _denoiser(denoiser)
    schedulers = {order: _scheduler(order, denoiser) for order in orders}
    tokens, target = (torch.from_numpy(board.astype("int64"))[None] for board in (puzzle.board, puzzle.solution))
    canvas = Canvas(tokens=tokens, target=target, region=torch.ones_like(tokens, dtype=torch.bool))
    over = threading.Event()
    runners = [_Runner(order, schedulers, model, canvas, seed, over, stop) for order in orders]
    deadline = time.monotonic() + seconds
    try:
        for runner in runners:
            runner.start()
        running = list(runners)
        while running:
            for runner in list(running):
                told = runner.next(deadline)
                if isinstance(told, Verdict):
                    running.remove(runner)
                yield told
        paths = {runner.name: runner.path for runner in runners}
        about = trace.about_boards(puzzle.size, denoiser)
        yield Finish(trace.of(model, paths, canvas, about, problem=puzzle.text))  # pyright: ignore[reportArgumentType]
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
    """One order's decoding. Its queue holds one reveal: the thread waits until that one has been told."""

    def __init__(
        self,
        name: str,
        schedulers: Mapping[str, Scheduler],
        denoiser: Denoiser,
        canvas: Canvas,
        seed: int,
        over: threading.Event,
        stop: threading.Event | None,
    ) -> None:
        super().__init__(name=name, daemon=True)
        # The copy shares the weights; its count of canvases is its own.
        self.denoiser, self.canvas, self.seed = copy.copy(denoiser), canvas, seed
        self.over, self.stop = over, stop
        self.watched = Watched(name, schedulers)
        self.told: queue.Queue[Reveal | Verdict | Exception] = queue.Queue(maxsize=1)
        self.path: Trajectory | None = None
        self.nth = 0

    def next(self, deadline: float) -> Reveal | Verdict:
        """What comes next. Raises what the decoding raised, TooSlow at the deadline, Stopped when the server stops."""
        while True:
            if self._ended():
                raise Stopped
            if time.monotonic() > deadline:
                raise TooSlow("the race took too long and was stopped")
            try:
                told = self.told.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(told, Exception):
                raise told
            return told

    def run(self) -> None:
        try:
            path = unmask(
                self.denoiser,
                self.watched,
                Canvas(
                    self.canvas.tokens,
                    target=self.canvas.target,
                    region=self.canvas.region,
                    seeds=torch.tensor([self.seed]),
                ),
                observe=self.watched.observe,
                on_step=self._on_step,
            )
            self.path = path
            self._tell(self._verdict(path))
        except Stopped:
            return
        except Exception as error:  # told to whoever listens: a thread has nobody to raise to
            self._tell_quietly(error)

    def _ended(self) -> bool:
        return self.over.is_set() or (self.stop is not None and self.stop.is_set())

    def _on_step(self, step: Step) -> None:
        for cell in torch.nonzero(step.revealed[0])[:, 0].tolist():
            digit = int(step.tokens[0, cell])
            right = digit == int(self.canvas.truth[0, cell])
            p = float(step.view.confidence[0, cell].exp())
            self._tell(Reveal(self.name, self.nth, cell, digit, p, right))
            self.nth += 1

    def _verdict(self, path: Trajectory) -> Verdict:
        wrong = path.tokens[0] != self.canvas.truth[0]
        first = next((k for k, cell in enumerate(path.order[0].tolist()) if cell >= 0 and wrong[cell]), None)
        number = int(wrong.sum())
        return Verdict(self.name, number == 0, number, first, path.total_logp[0].item(), path.denoiser_calls)

    def _tell(self, told: Reveal | Verdict | Exception) -> None:
        while not self._ended():
            try:
                return self.told.put(told, timeout=0.1)
            except queue.Full:
                continue
        raise Stopped

    def _tell_quietly(self, error: Exception) -> None:
        try:
            self._tell(error)
        except Stopped:
            return
