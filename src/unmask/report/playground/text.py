"""Text races: a prompt, or a text with holes, decoded up to four times side by side by ``generate()`` and ``infill()``."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from unmask.decoding.options import Decoding
from unmask.generation.generate import Watch, generate, infill
from unmask.generation.text_canvas import GAP, as_turns, gap_canvas, prompt_canvas
from unmask.report import templates
from unmask.report.playground.models import Held, Models
from unmask.report.playground.options import form_fields, read_decoding
from unmask.report.playground.race import MOST_LANES, Event, Lane, race
from unmask.report.stored import STRICT
from unmask.report.traces.format import Trace
from unmask.report.traces.recording import RecordingScheduler
from unmask.report.traces.text import trace_texts
from unmask.runs.names import did_you_mean
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.text_problems import Problem, text_problem_kinds

MOST_TOKENS = 1024
"""Hidden positions of a race, and tokens of its canvas where the denoiser has no lower limit."""
Mode = Literal["plain", "chat", "holes"]


@dataclass(frozen=True, config=STRICT)
class Entry:
    """One decoding: a scheduler that the page offers, and the options that differ from their defaults."""

    scheduler: str
    options: dict[str, Any]


@dataclass(frozen=True, config=STRICT)
class TextRequest:
    """``mode``: continue the text, answer it as a conversation's only turn, or fill its holes. ``length`` is for the first two."""

    denoiser: str
    mode: Mode
    text: Annotated[str, Field(min_length=1)]
    length: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    seed: Annotated[int, Field(ge=0, lt=2**31)]
    entries: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=MOST_LANES)]


def text_choices(models: Models) -> dict[str, Any]:
    """What the page offers for text. Examples are those of a shipped denoiser, or general ones."""
    examples = _read_examples()
    denoisers = [
        {
            "name": name,
            "schedulers": models.text_schedulers(name),
            "learned": models.shipped_policy(name),
            "examples": examples.get(name, examples["any"]),
        }
        for name in models.text_denoisers
    ]
    return {"denoisers": denoisers, "options": form_fields(), "settings": models.settings, "mostTokens": MOST_TOKENS}


@cache
def _read_examples() -> dict[str, Any]:
    """Denoiser → its examples; those of ``any`` are for others. ``answer`` is what a right text says, behind the ``prompt``."""
    return json.loads((templates.HERE / "playground" / "examples.json").read_text(encoding="utf-8"))


def check_text(request: TextRequest, models: Models) -> list[Decoding]:
    """The decodings of a request; a ValueError for what the page does not offer."""
    decodings = check_entries(request.denoiser, models.text_denoisers, request.entries, models)
    if request.mode == "holes" and (hidden := _count_holes(request.text)) > MOST_TOKENS:
        raise ValueError(f"too long: expected holes of at most {MOST_TOKENS} tokens together, got {hidden}")
    return decodings


def check_entries(denoiser: str, denoisers: Sequence[str], entries: Sequence[Entry], models: Models) -> list[Decoding]:
    """The decodings of entries; a ValueError for what is not offered. A name is never a path or a hub id of its own."""
    if denoiser not in denoisers:
        raise ValueError(f"expected a denoiser among {', '.join(denoisers)}, got {denoiser[:60]!r}")
    offered = models.text_schedulers(denoiser)
    for entry in entries:
        if entry.scheduler not in offered:
            near = did_you_mean(entry.scheduler[:60], offered)
            raise ValueError(f"expected schedulers among {', '.join(offered)}, got {entry.scheduler[:60]!r}{near}")
    decodings = [read_decoding(entry.options, f"decoding {n}") for n, entry in enumerate(entries, 1)]
    if len({name_entry(entry) for entry in entries}) < len(entries):
        raise ValueError("the same decoding is there twice: change its scheduler or an option")
    return decodings


def text_race(
    request: TextRequest, decodings: list[Decoding], models: Models, stop: threading.Event, seconds: float
) -> Iterator[Event]:
    """The events of a race: loading, start, reveals and verdicts in turn, end with its traces."""
    yield from models.load(request.denoiser, text=True)
    held = models.require(request.denoiser)
    assert held.tokenizer is not None and held.pieces is not None
    holes, given = request.mode == "holes", _given(request)
    if holes:
        canvas = gap_canvas(held.denoiser, held.tokenizer, [given])
    else:
        canvas = prompt_canvas(held.denoiser, held.tokenizer, [given], request.length)
    limit = min(MOST_TOKENS * 4, getattr(getattr(held.denoiser, "config", None), "max_length", MOST_TOKENS * 4))
    if canvas.tokens.shape[1] > limit:
        raise ValueError(f"too long: {held.name} takes {limit} tokens in all, got {canvas.tokens.shape[1]}")
    lanes = []
    for entry, decoding in zip(request.entries, decodings, strict=True):
        scheduler = load_scheduler(entry.scheduler, held.denoiser, held.name)
        recorder = RecordingScheduler(name_entry(entry), {name_entry(entry): scheduler})
        lanes.append(Lane(recorder, partial(_decode, request, held, decoding), held.pieces))
    ids, hidden = canvas.tokens[0].tolist(), canvas.hidden[0].tolist()
    names = [name_entry(entry) for entry in request.entries]
    yield (
        "start",
        {
            "tokens": [None if masked else held.pieces(token) for token, masked in zip(ids, hidden, strict=True)],
            "begin": canvas.start if not holes else 0,
            "lanes": names,
        },
    )
    yield from race(lanes, stop, seconds)
    traces: list[Trace] = []
    for name, lane, decoding in zip(names, lanes, decodings, strict=True):
        assert lane.trajectory is not None
        paths = {name: lane.trajectory}
        made = trace_texts(held.denoiser, held.pieces, canvas, paths, held.name, decoding, ["the text"])
        traces += [replace(one, decoding="side by side") for one in made]  # the names say how each was decoded
    yield "end", {"traces": traces}


def _decode(
    request: TextRequest, held: Held, decoding: Decoding, recorder: RecordingScheduler, on_step: Callable[..., None]
) -> tuple[Any, dict[str, Any]]:
    # The copy shares the weights; its count of canvases is its own.
    model, watch = copy.copy(held.denoiser), Watch(on_step, record=True, observe=recorder.observe)
    decode: Any = infill
    if request.mode != "holes":
        decode = partial(generate, length=request.length)
    done = decode(model, held.tokenizer, [_given(request)], recorder, decoding, seeds=[_seed(request)], watch=watch)
    ends = [
        n for n, t in enumerate(done.trajectory.tokens[0].tolist()) if t in model.end_ids and n >= done.canvas.start
    ]
    end = ends[0] if ends and request.mode != "holes" else None
    return done.trajectory, {"text": done.texts[0], "end": end, **_judge(request, done.texts[0])}


def _judge(request: TextRequest, text: str) -> dict[str, Any]:
    """Whether a text is right, where the request is an example with a known answer."""
    given = (request.mode, request.text)
    for example in _read_examples().get(request.denoiser, ()):
        if (example["mode"], example["text"]) == given and "answer" in example:
            problem = Problem("", example["answer"], "", "")
            right, _ = text_problem_kinds()[request.denoiser].grade(
                problem, text.removeprefix(example.get("prompt", ""))
            )
            return {"judged": {"line": "✓ right" if right else "✗ wrong", "good": right}}
    return {}


def _given(request: TextRequest) -> Any:
    return as_turns(request.text) if request.mode == "chat" else request.text


def _seed(request: TextRequest) -> int:
    """The seed of ``unmask generate --seed``."""
    return request.seed * 2**32


def _count_holes(text: str) -> int:
    lengths = [match[1] or "1" for match in GAP.finditer(text)]
    return sum(int(length) if len(length) < 10 else 10**9 for length in lengths)


def name_entry(entry: Entry) -> str:
    return ", ".join([entry.scheduler, *(f"{name} {value}" for name, value in entry.options.items())])
