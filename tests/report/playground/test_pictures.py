"""The pictures of docs/playground.md that the shipped denoisers race in.

``UNMASK_ARTIFACTS=docs/figures pytest -m slow tests/report/playground/test_pictures.py`` takes them again.
The numerals 一 to 五 need a font.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow


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
    assert race(page, example).endswith(
        "texts; the model finds that of learned order (SAS) most probable along its path."
    )
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
