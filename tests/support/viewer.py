"""A browser for the tests of the viewer and of reports, and traces of which a test knows everything."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from support.denoisers import Fixed, text_denoiser
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.report.traces import record as trace
from unmask.report.traces.record import Candidates, Trace, TracedTrajectory
from unmask.schedulers.loading import load_scheduler

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
PATIENCE = 180_000  # milliseconds: a busy machine is slow, not wrong
SOLUTION = [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]
HACK = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
WORDS = ["<pad>", "<end>", " the", HACK, "\n", " order", " of", " thought", " is", ".", " learned", " <b>", "[mask]"]


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("UNMASK_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def new_page(browser: Any, width: int, height: int, **options: Any) -> Any:
    """A page in a context of its own. Every wait of every browser test has the patience that is set here."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(PATIENCE)
    context.set_default_navigation_timeout(PATIENCE)
    return context.new_page()


def expect(what: Any) -> Any:
    """Playwright's assertions, which wait for what a page does asynchronously."""
    from playwright.sync_api import expect as expected

    return expected(what)


def listen(page: Any, heard: list[str], allowed: Callable[[str], bool]) -> None:
    """Collect the page's console messages, errors, and requests that are not allowed."""
    page.on("console", lambda message: heard.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: heard.append(f"error: {error}"))
    page.on("request", lambda request: None if allowed(request.url) else heard.append(f"request: {request.url[:80]}"))


def board() -> Trace:
    """A 4×4 puzzle with 10 blanks in three orders: left to right goes wrong at its fourth reveal and again, the others do not."""
    logits = torch.zeros(16, 5)
    logits[range(16), SOLUTION] = torch.linspace(2, 6, 16)
    target = torch.tensor([SOLUTION])
    given = torch.tensor([[1, 0, 0, 4, 0, 0, 1, 0, 0, 1, 0, 0, 4, 0, 0, 1]])
    schedulers = {name: load_scheduler(name) for name in ("left_to_right", "confidence", "random")}
    one = trace.record(Fixed(logits, 0), schedulers, Canvas(given, target), trace.about_boards(4, "fixed"))[0]
    tokens = list(one.trajectories[0].tokens)
    for place in (3, 7):
        tokens[one.trajectories[0].order[place]] = SOLUTION[one.trajectories[0].order[place]] % 4 + 1
    return replace(
        one,
        problem="a puzzle",
        trajectories=(replace(one.trajectories[0], tokens=tuple(tokens)), *one.trajectories[1:]),
    )


def words(stop: bool = False) -> Trace:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(2, 12, (1, 24), generator=generator)
    tokens[0, 3], tokens[0, 4] = 3, 4
    tokens[:, 8:] = 12
    schedulers = {name: load_scheduler(name) for name in ("confidence", "left_to_right")}
    about = trace.About("text", "tiny", WORDS.__getitem__)
    decoding = Decoding(block=8, stop_at_end=stop)
    one = trace.record(text_denoiser(), schedulers, Canvas(tokens), about, decoding)[0]
    # The tiny model never predicts the end token.
    ended = tuple(1 if place == 20 else token for place, token in enumerate(one.trajectories[0].tokens))
    return replace(
        one, problem="a text", trajectories=(replace(one.trajectories[0], tokens=ended), one.trajectories[1])
    )


def large(length: int = 512) -> Trace:
    """As large as answers get: 512 positions in 512 steps, two orders, four alternatives out of 5,000 tokens, all of it noise."""
    generator = np.random.default_rng(0)
    ids = np.sort(generator.choice(126_000, 5000, replace=False))
    paths = []
    for name in ("confidence", "sas"):
        order = generator.permutation(length)
        rank = np.empty(length, np.int64)
        rank[order] = np.arange(length)
        eligible = rank[None] >= np.arange(length)[:, None]
        n = int(eligible.sum())
        p = np.sort(generator.dirichlet([0.3] * 5, n)[:, :4], axis=1)[:, ::-1]
        found = Candidates(
            eligible, generator.normal(size=n).astype(np.float32), ids[generator.integers(0, 5000, (n, 4))], p
        )
        tokens = tuple(ids[generator.integers(0, 5000, length)].tolist())
        logp = tuple(np.log(generator.uniform(0.05, 1, length)).tolist())
        choice = tuple(int(np.flatnonzero(row)[0]) for row in eligible)
        other = "sas" if name == "confidence" else "confidence"
        paths.append(
            TracedTrajectory(
                name,
                tokens,
                tuple(order.tolist()),
                tuple(range(length)),
                logp,
                sum(logp),
                length,
                found,
                {other: choice},
            )
        )
    labels = {int(token): f" word{token}" for token in ids} | {126_336: "[mask]"}
    block = tuple(place // 64 for place in range(length))
    return Trace(
        *(
            "text",
            "long",
            "noise",
            "any order",
            None,
            (126_336,) * length,
            None,
            126_336,
            (),
            block,
            labels,
            tuple(paths),
        )
    )
