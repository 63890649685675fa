"""A playground server in a thread, requests to it, and waiting for it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from unmask.report.playground.models import Models
from unmask.report.playground.puzzles import EXAMPLES
from unmask.report.playground.server import Playground

ONLY, WIKIPEDIA, BEYOND, SMALL = EXAMPLES


@contextlib.contextmanager
def serving(models: Models | None = None, seconds: float = 600.0) -> Iterator[Playground]:
    """A playground at a free port."""
    running = Playground(models, port=0, seconds=seconds)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    assert until(lambda: running.started)
    yield running
    running.stop()
    thread.join()


def until(true: Callable[[], bool], seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def free(server: Playground) -> bool:
    """Whether no race is running or waiting."""
    return not server.races.tickets


def ask(
    server: Playground, method: str, path: str, body: Any = None, **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if isinstance(body, dict):
        body, named = json.dumps(body), {"Content-Type": "application/json", **named}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a race, without those that come before its start."""
    lines = [part.split("\n") for part in text.split("\n\n") if part]
    found = [(event.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for event, data in lines]
    return [(event, data) for event, data in found if event not in ("waiting", "loading")]


def refused(server: Playground, path: str, body: Any, status: int, words: str, **headers: str) -> dict[str, Any]:
    response, text = ask(server, "POST", path, body, **headers)
    assert response.status == status, text
    answer = json.loads(text)
    assert words in answer["error"], answer
    return answer


def begun(server: Playground, path: str, request: dict[str, Any]) -> http.client.HTTPResponse:
    """A race that runs or waits: its answer, of which the first line is read."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", path, json.dumps(request), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200 and response.readline().startswith(b"event: ")
    return response
