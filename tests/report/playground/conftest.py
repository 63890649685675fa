"""One playground per file, with a tiny text denoiser of LLaDA's layout, and pages of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.playground import free, serving, until
from support.text import tiny_llada
from support.viewer import listen, new_page
from unmask.report.playground.models import Models
from unmask.report.playground.server import Playground


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llada(tmp_path_factory.mktemp("llada"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Playground]:
    with serving(Models(("arithmetic", str(folder)))) as running:
        yield running


@pytest.fixture
def opened(browser: Any, server: Playground) -> Iterator[Callable[..., Any]]:
    """Opens the playground at full speed. No page may log an error or send a request elsewhere."""
    contexts, heard = [], []

    def open_page(
        tab: str = "boards", width: int = 1200, height: int = 900, clock: bool = False, **options: Any
    ) -> Any:
        page = new_page(browser, width, height, **options)
        contexts.append(page.context)
        listen(page, heard, lambda url: url.startswith((server.url, "data:")))
        if clock:  # time passes as usual until the test pauses it
            page.clock.install()
        page.goto(f"{server.url}#{tab}")
        page.wait_for_selector("html[data-ready]")
        page.select_option("#speed", "0")
        return page

    yield open_page
    for context in contexts:
        context.close()
    # A race that still runs would count among those of the next test.
    assert until(lambda: free(server), 120)
    # A refusal is an answer here, which the browser logs as an error.
    refusal = re.compile(r"error: Failed to load resource: the server responded with a status of 4(00|29)")
    assert [line for line in heard if not refusal.match(line)] == []
