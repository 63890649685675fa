"""The playground's server: seven answers, no files. Starlette and uvicorn, for use on one's own machine.

| | |
|---|---|
| ``GET /`` | the page |
| ``POST /text`` | JSON ``{denoiser, mode, text, length, seed, entries}`` → the events of a race |
| ``POST /race`` | JSON ``{puzzle, denoiser, schedulers}`` → the events of a race |
| ``POST /drawn`` | JSON ``{denoiser, text, seed, entries}`` → the events of a race in a plug-in's tab |
| ``POST /random`` | JSON ``{size, difficulty}`` → ``{puzzle}`` |
| ``POST /file`` | the text of a file → its first puzzles |
| ``GET /view/<key>`` | the viewer with a race that was run |

Events are server-sent: waiting with the place in line, loading, trying, start, reveal, verdict, and end or failed. A client
that leaves ends its race. One race runs at a time, and one denoiser is in memory.
"""

from __future__ import annotations

import errno
import json
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from unmask.report.playground.boards import BoardRequest, RandomRequest, board_race, check_board
from unmask.report.playground.drawn import DrawnRequest, check_drawn, drawn_race
from unmask.report.playground.limits import Connection, Guard, Line, Refused, explain, is_loopback, read_body, read_json
from unmask.report.playground.models import Models
from unmask.report.playground.page import VIEWER_POLICY, page, policy
from unmask.report.playground.puzzles import BadPuzzle, random_puzzle, read_puzzle, read_rows
from unmask.report.playground.race import STOPPED, Event
from unmask.report.playground.text import TextRequest, check_text, text_race
from unmask.report.traces.record import Trace
from unmask.report.viewer import page as viewer

T = TypeVar("T")
WAITING = 63  # behind the race that runs
CONNECTIONS = 512
HEADER_BYTES = 16 * 1024
TRACES_KEPT = 8
SECONDS = 600.0


class EventStream(StreamingResponse):
    """Closes its iterator when the client leaves, before anything else happens."""

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):  # pyright: ignore[reportArgumentType]
            await super().stream_response(send)


class Playground(uvicorn.Server):
    """``Playground(models, host, port)`` is bound when it is made; ``serve_forever()`` serves, ``stop()`` ends it and its races."""

    def __init__(
        self, models: Models | None = None, host: str = "127.0.0.1", port: int = 8321, seconds: float = SECONDS
    ) -> None:
        self.models, self.host, self.seconds = models or Models(), host, seconds
        self.socket = _bind(host, port)
        self.port = int(self.socket.getsockname()[1])
        self.stopping = threading.Event()
        self.races, self.puzzles = Line(1, WAITING), Line(1, WAITING)
        self.traces: OrderedDict[str, list[Trace]] = OrderedDict()
        routes = [
            Route("/", self._page),
            Route("/text", self._text, methods=["POST"]),
            Route("/race", self._board, methods=["POST"]),
            Route("/drawn", self._drawn, methods=["POST"]),
            Route("/random", self._random, methods=["POST"]),
            Route("/file", self._file, methods=["POST"]),
            Route("/view/{key}", self._view),
        ]
        handled = dict.fromkeys((Refused, ValueError, HTTPException, Exception), _refuse)
        guarded = Guard(Starlette(routes=routes, exception_handlers=handled), host, self.port, self.url)
        config = uvicorn.Config(
            guarded,
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            h11_max_incomplete_event_size=HEADER_BYTES,
            timeout_graceful_shutdown=5,
        )
        super().__init__(config)

    @property
    def url(self) -> str:
        named = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{f'[{named}]' if ':' in named and '[' not in named else named}:{self.port}/"

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def serve_forever(self) -> None:
        self.run(sockets=[self.socket])

    def stop(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stopping.set()
        self.races.move()
        await super().shutdown(sockets)

    def keep(self, traces: list[Trace]) -> str:
        """A key for the viewer. The latest few are kept."""
        key = secrets.token_urlsafe(12)
        self.traces[key] = traces
        while len(self.traces) > TRACES_KEPT:
            self.traces.popitem(last=False)
        return key

    async def _page(self, request: Request) -> Response:
        html = page(self.models)
        return HTMLResponse(html, headers={"Content-Security-Policy": policy(html)})

    async def _view(self, request: Request) -> Response:
        traces = self.traces.get(request.path_params["key"])
        if traces is None:
            raise Refused(404, "this race is no longer kept: run it again")
        html = await anyio.to_thread.run_sync(viewer.page, traces)
        return HTMLResponse(html, headers={"Content-Security-Policy": VIEWER_POLICY})

    async def _text(self, request: Request) -> Response:
        wanted = await read_json(request, TextRequest)
        decodings = check_text(wanted, self.models)
        return self._stream(lambda: text_race(wanted, decodings, self.models, self.stopping, self.seconds))

    async def _board(self, request: Request) -> Response:
        wanted = await read_json(request, BoardRequest)
        puzzle = await self._in_turn(lambda: read_puzzle(wanted.puzzle))
        check_board(wanted, puzzle.size)
        return self._stream(lambda: board_race(puzzle, wanted, self.models, self.stopping, self.seconds))

    async def _drawn(self, request: Request) -> Response:
        wanted = await read_json(request, DrawnRequest)
        decodings = check_drawn(wanted, self.models)
        return self._stream(lambda: drawn_race(wanted, decodings, self.models, self.stopping, self.seconds))

    async def _random(self, request: Request) -> Response:
        wanted = await read_json(request, RandomRequest)
        make = lambda: random_puzzle(wanted.size, wanted.difficulty, secrets.randbits(31))  # noqa: E731
        return JSONResponse({"puzzle": (await self._in_turn(make)).text})

    async def _file(self, request: Request) -> Response:
        rows = read_rows(await read_body(request))
        found = [{"line": line, "puzzle": puzzle} for line, puzzle in rows.rows]
        return JSONResponse({"rows": found, "skipped": rows.skipped, "reason": rows.reason})

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """Work with puzzles takes a core for a while: one at a time."""
        self.puzzles.require_room()
        with self.puzzles.join() as ticket:
            while self.puzzles.ahead(ticket):
                await self.puzzles.changed.wait()
            return await anyio.to_thread.run_sync(work)

    def _stream(self, start: Callable[[], Iterator[Event]]) -> Response:
        self.races.require_room()
        return EventStream(self._events(start), media_type="text/event-stream")

    async def _events(self, start: Callable[[], Iterator[Event]]) -> AsyncIterator[bytes]:
        with self.races.join() as ticket:
            while (ahead := self.races.ahead(ticket)) and not self.stopping.is_set():
                changed = self.races.changed
                yield _frame("waiting", {"ahead": ahead})
                await changed.wait()
            if self.stopping.is_set():
                yield _frame("failed", {"error": STOPPED})
                return
            running: Any = start()
            try:
                while (event := await anyio.to_thread.run_sync(next, running, None)) is not None:
                    name, data = event
                    yield _frame(name, {"view": f"/view/{self.keep(data['traces'])}"} if name == "end" else data)
            except Exception as error:
                yield _frame("failed", {"error": explain(error)})
            finally:
                # The next race begins when the threads of this one have ended.
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(running.close)


def _frame(event: str, data: dict[str, Any]) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


async def _refuse(request: Request, error: Exception) -> Response:
    """Every refusal is JSON: one sentence, and the cells of a board that are at fault."""
    if isinstance(error, HTTPException):
        error = Refused(error.status_code, "there is no such address" if error.status_code == 404 else error.detail)
    if not isinstance(error, Refused | ValueError):
        error = Refused(500, f"the playground failed on this: {type(error).__name__}")
    if not isinstance(error, Refused):
        error = Refused(400, str(error), error.cells if isinstance(error, BadPuzzle) else ())
    return error.response


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ValueError(f"expected a port in 0 .. 65535, got {port}")
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    # Elsewhere than on Windows this only skips the wait after a server that has ended; a port in use is still refused.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(CONNECTIONS)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            other = port + 1 if port < 65535 else port - 1
            raise ValueError(f"port {port} of {host} is in use: name another one, such as --port {other}") from None
        raise ValueError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None
    return listening
