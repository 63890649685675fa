"""A browser and its pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.viewer import FLAGS, PATIENCE, chromium, listen, new_page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One per file, since its event loop blocks others in this process while it runs."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on the PATH, and UNMASK_CHROMIUM names none")
    with playwright.sync_playwright() as started:
        playwright.expect.set_options(timeout=PATIENCE)
        running = started.chromium.launch(executable_path=path, args=FLAGS, timeout=PATIENCE)
        yield running
        running.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page and waits until it is ready. No page may log an error or send a request."""
    contexts, heard = [], []

    def open_page(html: str, width: int = 1200, height: int = 900, clock: bool = False, **options: Any) -> Any:
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        page = new_page(browser, width, height, **options)
        contexts.append(page.context)
        listen(page, heard, lambda url: url == file.as_uri())
        if clock:  # time passes only by the test's clock
            page.clock.install()
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [line for line in heard if not line.startswith("request: data:")] == []


@pytest.fixture(scope="session")
def shot(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., None]:
    """Screenshots, in UNMASK_ARTIFACTS or in pytest's own folder; of the whole page, or of what the window shows."""
    folder = Path(os.environ.get("UNMASK_ARTIFACTS") or tmp_path_factory.mktemp("pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    return lambda page, name, full_page=True: page.screenshot(path=folder / f"{name}.png", full_page=full_page)
