"""The playground's server: five answers, no files. Built on ``http.server``, for use on one's own machine.

| | |
|---|---|
| ``GET /`` | the page |
| ``POST /race`` | JSON ``{puzzle, denoiser, schedulers}`` → server-sent events start, reveal, verdict, and end or failed |
| ``POST /random`` | JSON ``{size, difficulty}`` → ``{puzzle}`` |
| ``POST /file`` | the text of a file → its first puzzles |
| ``GET /view/<key>`` | the viewer with a race that was run |

A request must name this server as the host, which a page of another site whose name was pointed here cannot. A POST must come
from the page itself or from no page at all. Bodies, races, connections and waiting times are limited.
"""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from unmask.report.playground.incoming import (
    IDLE_SECONDS,
    JSON,
    RaceRequest,
    RandomRequest,
    Refused,
    is_loopback,
    names_server,
    read_body,
    read_json,
    require_own_page,
)
from unmask.report.playground.page import VIEWER_POLICY, page, policy
from unmask.report.playground.puzzles import BadPuzzle, random_puzzle, read_puzzle, read_rows
from unmask.report.playground.race import MOST_SCHEDULERS, Finish, Stopped, Verdict, check_entry, race
from unmask.report.traces.record import Trace
from unmask.report.viewer import page as viewer

RACES = 2
CONNECTIONS = 32
TRACES_KEPT = 8
DRAINED_BYTES = 1024 * 1024


class Playground(ThreadingHTTPServer):
    """``Playground(host, port)`` is bound when it is made; ``serve_forever()`` serves, ``close()`` ends it and its races."""

    daemon_threads = True
    block_on_close = False
    # Elsewhere than on Windows this only skips the wait after a server that has ended; a port in use is still refused.
    allow_reuse_address = True

    def __init__(self, host: str = "127.0.0.1", port: int = 8321, races: int = RACES) -> None:
        if not 0 <= port <= 65535:
            raise ValueError(f"expected a port in 0 .. 65535, got {port}")
        self.host = host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.races = threading.BoundedSemaphore(races)
        self.connections = threading.BoundedSemaphore(CONNECTIONS)
        self.stopping = threading.Event()
        self.traces: OrderedDict[str, Trace] = OrderedDict()
        self.lock = threading.Lock()
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                other = port + 1 if port < 65535 else port - 1
                raise ValueError(f"port {port} of {host} is in use: name another one, such as --port {other}") from None
            raise ValueError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        named = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{f'[{named}]' if ':' in named and '[' not in named else named}:{self.port}/"

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)

    def keep(self, trace: Trace) -> str:
        """A key for the viewer. The latest few are kept."""
        key = secrets.token_urlsafe(12)
        with self.lock:
            self.traces[key] = trace
            while len(self.traces) > TRACES_KEPT:
                self.traces.popitem(last=False)
        return key

    def close(self) -> None:
        self.stopping.set()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.acquire(blocking=False):
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left gets no answer, and the library does not print."""


class Handler(BaseHTTPRequestHandler):
    """One request per connection."""

    server: Playground  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "unmask", ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        with self._answering():
            self._check()
            kind, _, key = self.path.removeprefix("/").partition("/")
            with self.server.lock:
                trace = self.server.traces.get(key) if kind == "view" else None
            if self.path == "/":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", page().encode(), policy())
            elif trace is not None:
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", viewer.page([trace]).encode(), VIEWER_POLICY)
            elif kind == "view":
                raise Refused(HTTPStatus.NOT_FOUND, "this race is no longer kept: run it again")
            else:
                raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")

    def do_POST(self) -> None:
        answers = {"/race": self._race, "/random": self._random, "/file": self._file}
        with self._answering():
            self._check()
            require_own_page(self.headers)
            if self.path not in answers:
                raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
            answers[self.path](read_body(self.headers, self.rfile))

    def _race(self, body: bytes) -> None:
        request = read_json(self.headers, body, RaceRequest)
        if len(request.schedulers) > MOST_SCHEDULERS:
            raise Refused(HTTPStatus.BAD_REQUEST, f"expected a list of at most {MOST_SCHEDULERS} schedulers")
        puzzle, schedulers = read_puzzle(request.puzzle), tuple(request.schedulers)
        check_entry(request.denoiser, schedulers, puzzle.size)
        if not self.server.races.acquire(blocking=False):
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS, "other races are running: wait until one has ended, then try again"
            )
        try:
            self._head(HTTPStatus.OK, "text/event-stream; charset=utf-8", "default-src 'none'")
            self._send_event(
                "start", {"puzzle": puzzle.text, "size": puzzle.size, "hidden": int((puzzle.board == 0).sum())}
            )
            events = race(puzzle, request.denoiser, schedulers, stop=self.server.stopping)
            with contextlib.closing(events):  # pyright: ignore[reportArgumentType]
                try:
                    for event in events:
                        if isinstance(event, Finish):
                            self._send_event("end", {"view": f"/view/{self.server.keep(event.trace)}"})
                        else:
                            self._send_event("verdict" if isinstance(event, Verdict) else "reveal", asdict(event))
                except Stopped:
                    self._send_event("failed", {"error": "the playground was stopped"})
                except OSError:
                    raise  # the client has left: closing the iterator ends the race
                except Exception as error:
                    self._send_event("failed", {"error": str(error) or type(error).__name__})
        finally:
            self.server.races.release()

    def _random(self, body: bytes) -> None:
        request = read_json(self.headers, body, RandomRequest)
        self._send_json({"puzzle": random_puzzle(request.size, request.difficulty, secrets.randbits(31)).text})

    def _file(self, body: bytes) -> None:
        rows = read_rows(body)
        self._send_json(
            {
                "rows": [{"line": line, "puzzle": puzzle} for line, puzzle in rows.rows],
                "skipped": rows.skipped,
                "reason": rows.reason,
            }
        )

    def _check(self) -> None:
        if not names_server(self.headers["Host"], self.server.host, self.server.port):
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, f"expected a request for this host: open {self.server.url}")

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        self.close_connection = True
        self.answered = False
        try:
            yield
        except Refused as error:
            self._refuse(error.status, str(error))
        except BadPuzzle as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error), error.cells)
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
        except OSError:
            return  # the client has left, or is too slow
        except Exception as error:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, f"the playground failed on this: {type(error).__name__}")

    def _head(self, status: HTTPStatus, kind: str, content_policy: str, length: int | None = None) -> None:
        self.answered = True
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self.send_header("Retry-After", "5")
        for name, value in (
            ("Content-Security-Policy", content_policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ):
            self.send_header(name, value)
        self.end_headers()

    def _send(self, status: HTTPStatus, kind: str, content: bytes, content_policy: str) -> None:
        self._head(status, kind, content_policy, len(content))
        self.wfile.write(content)

    def _send_json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, JSON, json.dumps(value).encode(), "default-src 'none'")

    def _refuse(self, status: HTTPStatus, message: str, cells: tuple[int, ...] = ()) -> None:
        if self.answered:
            return
        with contextlib.suppress(OSError):
            self._send_json({"error": message, "cells": cells}, status)
            if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                # Closing on what is still being sent would take the answer away with it.
                self.connection.settimeout(1)
                for _ in range(DRAINED_BYTES // 65536):
                    if not self.rfile.read1(65536):  # pyright: ignore[reportAttributeAccessIssue]
                        break

    def _send_event(self, event: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """The library does not print."""
