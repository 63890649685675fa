"""A playground server in a thread, and waiting for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from unmask.report.playground.puzzles import EXAMPLES
from unmask.report.playground.server import Playground

ONLY, WIKIPEDIA, BEYOND, SMALL = EXAMPLES


@contextlib.contextmanager
def serving() -> Iterator[Playground]:
    """A playground at a free port."""
    running = Playground(port=0)
    thread = threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.close()
    thread.join()


def until(true: Callable[[], bool], seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def free(server: Playground) -> bool:
    """Whether no race is running."""
    taken = [server.races.acquire(blocking=False) for _ in range(2)]
    for _ in range(sum(taken)):
        server.races.release()
    return all(taken)
