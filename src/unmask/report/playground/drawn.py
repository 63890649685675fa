"""Races of a plug-in's tab: one text, up to four decodings, each with a picture of what is revealed and guessed so far."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Trajectory
from unmask.report.playground.models import Held, Models
from unmask.report.playground.options import form_fields
from unmask.report.playground.pictures import describe_picture
from unmask.report.playground.race import MOST_LANES, Event, Lane, Stopped, TooSlow, race
from unmask.report.playground.tabs import OpenTab, Recipe, Tab
from unmask.report.playground.text import Entry, check_entries, name_entry
from unmask.report.stored import STRICT
from unmask.report.traces.record import About, make_trace
from unmask.report.traces.recording import RecordingScheduler
from unmask.schedulers.loading import load_scheduler


@dataclass(frozen=True, config=STRICT)
class DrawnRequest:
    denoiser: str
    text: Annotated[str, Field(min_length=1, max_length=4000)]
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    entries: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=MOST_LANES)]


class Problem(NamedTuple):
    """The text that the race runs on, of those that the request stands for."""

    text: str
    canvas: Canvas


def drawn_choices(models: Models) -> dict[str, Any] | None:
    """What the page offers in the plug-in's tab; None without one."""
    if models.tab is None:
        return None
    name, tab, denoisers = models.tab
    examples = [
        {"name": one.name, "text": one.text, "entries": [[name, {}] for name in one.schedulers]} for one in tab.examples
    ]
    return {
        "name": name,
        "title": tab.title,
        "heading": tab.heading,
        "caption": tab.caption,
        "missing": tab.missing(),
        "denoisers": [
            {
                "name": one,
                "schedulers": models.text_schedulers(one),
                "learned": models.shipped_policy(one),
                "examples": examples,
            }
            for one in denoisers
        ],
        "options": form_fields(),
    }


def check_drawn(request: DrawnRequest, models: Models) -> list[Decoding]:
    """The decodings of a request; a ValueError for what the page does not offer."""
    tab = _require(models)
    if missing := tab.tab.missing():
        raise ValueError(missing)
    decodings = check_entries(request.denoiser, tab.denoisers, request.entries, models)
    tab.tab.alternatives(request.text)
    return decodings


def drawn_race(
    request: DrawnRequest, decodings: list[Decoding], models: Models, stop: threading.Event, seconds: float
) -> Iterator[Event]:
    """The events of a race: loading, lengths that are tried, start, reveals and verdicts in turn, end with its traces."""
    tab, deadline = _require(models).tab, time.monotonic() + seconds
    yield from models.load(request.denoiser, text=True)
    held = models.require(request.denoiser)
    assert held.tokenizer is not None
    label, draw = tab.label_tokens(held.tokenizer), tab.draw_tokens(held.tokenizer)
    problem = yield from _choose(request, decodings[0], tab, held, _until(deadline, stop))
    hidden = problem.canvas.tokens[0] == held.denoiser.mask_id
    places = [place for place, masked in enumerate(hidden.tolist()) if masked]

    def sketch(tokens: list[int], when: dict[int, float]) -> dict[str, Any]:
        return {"picture": describe_picture(draw(tokens, when, places))}

    names = [name_entry(entry) for entry in request.entries]
    lanes = []
    for name, entry, decoding in zip(names, request.entries, decodings, strict=True):
        scheduler = load_scheduler(entry.scheduler, held.denoiser, held.name)
        decode = _decoder(problem.canvas, held, decoding, tab, label)
        lanes.append(Lane(RecordingScheduler(name, {name: scheduler}), decode, label, sketch=sketch))
    recipes = [
        Recipe(request.denoiser, problem.text, entry.scheduler, decoding, request.seed, models.settings)
        for entry, decoding in zip(request.entries, decodings, strict=True)
    ]
    yield (
        "start",
        {
            "tokens": [
                None if masked else label(token)
                for token, masked in zip(problem.canvas.tokens[0].tolist(), hidden.tolist(), strict=True)
            ],
            "begin": 0,
            "lanes": names,
            "lines": [{"Python": tab.as_python(one), "command": tab.as_command(one)} for one in recipes],
        },
    )
    yield from race(lanes, stop, max(0.0, deadline - time.monotonic()))
    about = About(
        tab.title.lower(),
        held.name,
        label,
        decoding="side by side",
        draw=lambda tokens, when: draw(tokens, when, places),
    )
    paths = [{name: lane.trajectory} for name, lane in zip(names, lanes, strict=True) if lane.trajectory]
    traces = [make_trace(held.denoiser, one, problem.canvas, about, problem=problem.text) for one in paths]
    yield "end", {"traces": traces}


def _require(models: Models) -> OpenTab:
    if models.tab is None:
        raise ValueError("this playground has no such tab: start it with a denoiser that has one")
    return models.tab


def _until(deadline: float, stop: threading.Event) -> Callable[..., None]:
    """Raises when the time is over or the server stops; called after every step of a decoding that no lane runs."""

    def check(step: Any = None) -> None:
        if stop.is_set():
            raise Stopped
        if time.monotonic() > deadline:
            raise TooSlow("the race took too long and was stopped")

    return check


def _choose(
    request: DrawnRequest, decoding: Decoding, tab: Tab, held: Held, check: Callable[..., None]
) -> Generator[Event, None, Problem]:
    """The best of the texts that the request stands for, by its first decoding: the best judged, then the likeliest per token."""
    assert held.tokenizer is not None
    texts: Sequence[str] = tab.alternatives(request.text)
    label, found = tab.label_tokens(held.tokenizer), []
    device = getattr(held.denoiser, "device", "cpu")
    for number, text in enumerate(texts):
        canvas = tab.canvas(held.denoiser, held.tokenizer, text).seeded(row_seeds(request.seed, [0])).to(device)
        if len(texts) == 1:
            return Problem(text, canvas)
        yield "trying", {"text": f"length {number + 1} of {len(texts)}"}
        scheduler = load_scheduler(request.entries[0].scheduler, held.denoiser, held.name)
        done = unmask(copy.copy(held.denoiser), scheduler, canvas, decoding, record=False, on_step=check)
        judged = tab.judge("".join(map(label, done.tokens[0].tolist())))
        logp = done.total_logp.item() / max(1, int(done.reveals[0]))
        found.append((judged.rank, logp if math.isfinite(logp) else -math.inf, -number, Problem(text, canvas)))
    return max(found)[-1]


def _decoder(canvas: Canvas, held: Held, decoding: Decoding, tab: Tab, label: Callable[[int], str]) -> Callable:
    def decode(recorder: RecordingScheduler, on_step: Callable[..., None]) -> tuple[Trajectory, dict[str, Any]]:
        # The copy shares the weights; its count of canvases is its own.
        model = copy.copy(held.denoiser)
        done = unmask(model, recorder, canvas, decoding, observe=recorder.observe, on_step=on_step)
        text = "".join(map(label, done.tokens[0].tolist()))
        judged = tab.judge(text)
        return done, {"text": text, "end": None, "judged": {"line": judged.line, "good": judged.good}}

    return decode
