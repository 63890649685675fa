"""A race: several decodings of one canvas by one denoiser, step by step, in turn.

Each decoding runs in its own thread and passes on one step at a time; none gets more than two steps ahead of the events that were
consumed. What the viewer shows is recorded on the way.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.loop import Step
from unmask.decoding.protocols import Trajectory
from unmask.report.traces.recording import ALTERNATIVES, RecordingScheduler

MOST_LANES = 4
STOPPED = "the playground was stopped"
Event = tuple[str, dict[str, Any]]
"""The name of a server-sent event, and its data."""
OnStep = Callable[[Step], None]
Decode = Callable[[RecordingScheduler, OnStep], tuple[Trajectory, dict[str, Any]]]
"""Decode by a scheduler that records; the trajectory, and what the verdict holds beyond the usual."""
Sketch = Callable[[list[int], dict[int, float]], dict[str, Any]]
"""More about a step: from its tokens, best guesses in place of hidden ones, and {revealed position: 0 (first) to 1 (last)}."""


class Stopped(Exception):
    """Raised inside a decoding whose race is over."""


class TooSlow(RuntimeError):
    """The race was not over in time."""


class Lane:
    """One decoding of a race. ``labels`` gives the text of a token; ``truth`` are the right tokens, where they are known."""

    def __init__(
        self,
        recorder: RecordingScheduler,
        decode: Decode,
        labels: Callable[[int], str],
        truth: Int[Tensor, "L"] | None = None,
        sketch: Sketch | None = None,
    ) -> None:
        self.recorder, self.decode, self.labels, self.truth = recorder, decode, labels, truth
        self.sketch = sketch
        self.trajectory: Trajectory | None = None
        self.guesses: list[tuple[Tensor, Tensor]] = []
        self.shown: dict[int, int] = {}

    def run(self, emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Decode, passing each step to ``emit``; the verdict."""
        done, more = self.decode(self.recorder, lambda step: emit(self._show(step)))
        calls = done.denoiser_calls - self.recorder.foreign_calls
        self.trajectory = replace(done, denoiser_calls=calls)
        revealed, logp = done.rank[0].cpu() >= 0, done.total_logp[0].item()
        return {
            "logp": logp if math.isfinite(logp) else None,  # NaN where tokens were taken back
            "calls": calls,
            "steps": len(self.guesses),
            "reveals": int(done.reveals[0]),
            "decided": decided_at(self.guesses, done.tokens[0].cpu(), revealed),
            **more,
        }

    def _show(self, step: Step) -> dict[str, Any]:
        """A step as the page shows it: what it reveals or replaces, and what it hides again."""
        view, priced, tokens = step.view, step.view.at[1].cpu(), step.tokens[0].tolist()
        self.guesses.append((priced, view.prices.best.cpu()))
        row_of = {position: row for row, position in enumerate(priced.tolist())}
        mask = view.denoiser.mask_id
        again = [place for place in self.shown if bool(view.hidden[0, place]) or tokens[place] == mask]
        for position in again:
            del self.shown[position]
        nth, reveals = len(self.shown), []
        replaced = [position for position, token in self.shown.items() if tokens[position] != token]
        for position in [*replaced, *torch.nonzero(step.revealed[0])[:, 0].tolist()]:
            prices = view.prices.logp[row_of[position]] if position in row_of else None
            reveals.append({"place": position, **self._explain(position, tokens[position], prices)})
            self.shown[position] = tokens[position]
        more = {} if self.sketch is None else self._sketch(self.sketch, step, tokens)
        return {"step": len(self.guesses) - 1, "nth": nth, "reveals": reveals, "hidden": again, **more}

    def _sketch(self, sketch: Sketch, step: Step, tokens: list[int]) -> dict[str, Any]:
        priced, best = (part.tolist() for part in self.guesses[-1])
        hidden = len(self.shown) + sum(token == step.view.denoiser.mask_id for token in tokens)
        guessed = {place: token for place, token in zip(priced, best, strict=True) if place not in self.shown}
        when = {place: nth / max(1, hidden - 1) for nth, place in enumerate(self.shown)}
        return sketch([guessed.get(place, token) for place, token in enumerate(tokens)], when)

    def _explain(self, position: int, token: int, prices: Tensor | None) -> dict[str, Any]:
        """A token with its probability, if it was priced, and the likeliest others."""
        others: list[Any] = []
        if prices is not None:
            top = prices.topk(min(ALTERNATIVES, len(prices)))
            ranked = zip(top.indices.tolist(), top.values.exp().tolist(), strict=True)
            others = [[self.labels(other), p] for other, p in ranked if other != token and p > 0]
        return {
            "text": self.labels(token),
            "p": None if prices is None else float(prices[token].exp()),
            "others": others,
            "right": None if self.truth is None else token == int(self.truth[position]),
        }


def decided_at(guesses: Sequence[tuple[Tensor, Tensor]], tokens: Int[Tensor, "L"], revealed: Tensor) -> int:
    """The first step, from 0, from which on the best guess at every candidate is the token that ends up there."""
    changed = [
        step for step, (place, best) in enumerate(guesses) if bool(((tokens[place] != best) & revealed[place]).any())
    ]
    return changed[-1] + 1 if changed else 0


def race(lanes: Sequence[Lane], stop: threading.Event, seconds: float) -> Iterator[Event]:
    """Run the lanes and yield their events. Closing the iterator, or ``stop``, ends the decodings at their next step."""
    over = threading.Event()
    runners = [_Runner(lane, number, over, stop) for number, lane in enumerate(lanes)]
    deadline = time.monotonic() + seconds
    try:
        for runner in runners:
            runner.start()
        running = list(runners)
        while running:
            for runner in list(running):
                name, data = runner.next(deadline)
                if name == "verdict":
                    running.remove(runner)
                yield name, data
    finally:
        over.set()
        for runner in runners:
            runner.join(5)


class _Runner(threading.Thread):
    """The thread of one lane. Its queue holds one event: the thread waits until that one is consumed."""

    def __init__(self, lane: Lane, number: int, over: threading.Event, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.lane, self.number, self.over, self.stop = lane, number, over, stop
        self.events: queue.Queue[Event | Exception] = queue.Queue(maxsize=1)

    def next(self, deadline: float) -> Event:
        """The next event. Raises the error of the decoding, TooSlow at the deadline, Stopped when the server stops."""
        while not self._ended():
            if time.monotonic() > deadline:
                raise TooSlow("the race took too long and was stopped")
            try:
                event = self.events.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(event, Exception):
                raise event
            return event
        raise Stopped(STOPPED)

    def run(self) -> None:
        try:
            verdict = self.lane.run(lambda data: self._put(("reveal", {"lane": self.number, **data})))
            self._put(("verdict", {"lane": self.number, **verdict}))
        except Stopped:
            return
        except Exception as error:  # a thread cannot raise to its caller: the consumer of the events raises it
            try:
                self._put(error)
            except Stopped:
                return

    def _ended(self) -> bool:
        return self.over.is_set() or self.stop.is_set()

    def _put(self, event: Event | Exception) -> None:
        while not self._ended():
            try:
                return self.events.put(event, timeout=0.1)
            except queue.Full:
                continue
        raise Stopped
