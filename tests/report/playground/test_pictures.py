"""The pictures of docs/playground.md.

``UNMASK_ARTIFACTS=docs/figures pytest -m slow tests/report/playground/test_pictures.py`` takes them again, those of molecules with
``UNMASK_RXNMAPPER=models/rxnmapper``, where ``unmask models`` has put the model. The numerals 一 to 五 need a font.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.playground import serving
from unmask.report.playground.models import Models
from unmask.report.playground.server import Playground

pytestmark = pytest.mark.slow


RXNMAPPER = os.environ.get("UNMASK_RXNMAPPER")
needs_rxnmapper = pytest.mark.skipif(not RXNMAPPER, reason="UNMASK_RXNMAPPER names no folder")


@pytest.fixture(scope="module")
def server() -> Iterator[Playground]:
    with serving(Models(("arithmetic", *([RXNMAPPER] if RXNMAPPER else [])))) as running:
        yield running


def race(page: Any, example: int | None = None) -> str:
    """The sentence under a race of the example."""
    if example is not None:
        page.select_option("#text-example", str(example))
    page.click("#race")
    page.wait_for_selector("#after:not([hidden])")
    return page.locator("#result").inner_text()


@pytest.mark.parametrize(("name", "example"), [("play-text", 0), ("play-holes", 1)])
def test_text(opened: Callable, shot: Callable, name: str, example: int) -> None:
    page = opened("text", 1100)
    assert race(page, example) == "Right: learned order (SAS). Wrong: confidence, left to right."
    learned = page.locator(".pane").last
    learned.locator(".token.shown").first.hover()
    assert "with probability" in learned.locator(".details").inner_text()
    shot(page, name)


def test_boards(opened: Callable, shot: Callable) -> None:
    page = opened("boards", 1100)
    assert race(page) == "Learned order (SAS) solves it; confidence fails."
    shot(page, "play-boards")


def test_a_phone_in_the_dark(opened: Callable, shot: Callable) -> None:
    page = opened("text", 390, 980, has_touch=True, is_mobile=True, color_scheme="dark")
    race(page, 0)
    page.locator(".pane .token.shown").nth(1).tap()
    page.locator("#race").evaluate("button => button.scrollIntoView()")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shot(page, "play-phone", full_page=False)


@needs_rxnmapper
def test_molecules(opened: Callable, shot: Callable) -> None:
    page = opened("molecules", 1100)
    assert race(page) == "2 different answers; valid: entropy and learned order (SAS)."
    page.locator(".pane").last.locator(".token.shown").first.hover()
    shot(page, "play-molecules")


@needs_rxnmapper
def test_molecules_on_a_phone_in_the_dark(opened: Callable, shot: Callable) -> None:
    page = opened("molecules", 390, 980, has_touch=True, is_mobile=True, color_scheme="dark")
    page.select_option("#drawn-example", label="The other reactant")
    race(page)
    page.locator("#race").evaluate("button => button.scrollIntoView()")
    shot(page, "play-molecules-dark", full_page=False)
