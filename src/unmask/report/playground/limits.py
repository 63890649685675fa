"""What a request must be before it is acted on: for this host, from its own page, small, complete, in time, of the expected types.

``Connection`` ends clients that are slow, ``Guard`` refuses requests of other sites, ``Line`` lets few work at once and tells the
others their place.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from unmask.report.stored import parse, validate

T = TypeVar("T")
BODY_BYTES = 64 * 1024
DRAINED_BYTES = 1024 * 1024
IDLE_SECONDS = 15.0
JSON = "application/json"
NOTHING = "default-src 'none'"


class Refused(Exception):
    """A request that is answered with a status and one line of why; ``cells`` of a board may be at fault."""

    def __init__(self, status: int, message: str, cells: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.status, self.cells = status, cells

    @property
    def response(self) -> JSONResponse:
        headers = {"Retry-After": "5"} if self.status == 429 else {}
        return JSONResponse({"error": str(self), "cells": self.cells}, self.status, headers)


class Connection(H11Protocol):
    """One request per connection. A client that does not send its headers, or does not read its answer, in time is cut off."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._timer = self.loop.call_later(IDLE_SECONDS, self._require_request)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel()
        self._timer = self.loop.call_later(IDLE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel()

    def _require_request(self) -> None:
        if self.conn.their_state is h11.IDLE:
            self.transport.abort()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Guard:
    """The outermost layer: who may ask, and the headers of every answer."""

    def __init__(self, app: ASGIApp, host: str, port: int, url: str) -> None:
        self.app, self.host, self.port, self.url = app, host, port, url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", NOTHING)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "no-referrer"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers["Cache-Control"] = "no-store"
                headers["Connection"] = "close"
            await send(message)

        try:
            self._check(Headers(scope=scope), scope["method"])
            app = self.app
        except Refused as error:
            app = error.response
        await app(scope, receive, send_with_headers)

    def _check(self, headers: Headers, method: str) -> None:
        if not names_server(headers.get("host"), self.host, self.port):
            raise Refused(421, f"expected a request for this host: open {self.url}")
        if method in ("GET", "HEAD"):
            return
        # Browsers name the page that sends a request. Other programs send no such headers, and are allowed.
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        foreign = origin is not None and origin.lower() != f"http://{headers['host']}".lower()
        if foreign or site not in (None, "same-origin", "none"):
            raise Refused(403, "expected a request from the playground's own page")


class Line:
    """At most ``running`` at once, and ``waiting`` behind them in their order. Used from one event loop only."""

    def __init__(self, running: int, waiting: int) -> None:
        self.running, self.waiting = running, waiting
        self.tickets: list[object] = []
        self.changed = asyncio.Event()

    def require_room(self) -> None:
        if len(self.tickets) >= self.running + self.waiting:
            raise Refused(429, f"{len(self.tickets)} others are running or waiting: try again in a while")

    @contextmanager
    def join(self) -> Iterator[object]:
        """A ticket. Leaving moves the others on."""
        ticket = object()
        self.tickets.append(ticket)
        try:
            yield ticket
        finally:
            self.tickets.remove(ticket)
            self.move()

    def move(self) -> None:
        """Wake all that wait, to look where they stand."""
        self.changed.set()
        self.changed = asyncio.Event()

    def ahead(self, ticket: object) -> int:
        """How many are before this ticket and not yet running; 0 when it is its turn."""
        return max(0, self.tickets.index(ticket) - self.running + 1)


def is_loopback(name: str) -> bool:
    """Whether only this machine can be reached by that name."""
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def names_server(header: str | None, host: str, port: int) -> bool:
    """Whether a Host header names the server at ``host`` and ``port``.

    A site can have its name point to this machine, and then its pages look like our own; but the header still holds that
    name. Addresses cannot be pointed elsewhere, so a server that is open to others also answers to any of its addresses.
    """
    try:
        parts = urlsplit(f"//{header or ''}")
        name, named_port = parts.hostname or "", parts.port or 80
    except ValueError:
        return False
    if named_port != port or parts.username is not None or parts.path or parts.query or parts.fragment:
        return False
    if name in (host.lower(), "localhost"):
        return True
    return is_loopback(name) if is_loopback(host) else _is_address(name)


async def read_body(request: Request) -> bytes:
    """The body: within the limit, and received in time. What is too large is read on for a while, so that the answer arrives."""
    body, size = bytearray(), int(request.headers.get("content-length", "0"))
    if size > DRAINED_BYTES:
        raise Refused(413, f"too large: expected at most {BODY_BYTES // 1024} KB")
    size = 0
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            async for part in request.stream():
                size += len(part)
                body += part[: BODY_BYTES + 1 - len(body)]
                if size > DRAINED_BYTES:
                    break
    except (TimeoutError, ClientDisconnect):
        raise Refused(408, "expected the whole body, and sooner") from None
    if size > BODY_BYTES:
        raise Refused(413, f"too large: expected at most {BODY_BYTES // 1024} KB")
    return bytes(body)


async def read_json(request: Request, kind: type[T]) -> T:
    """The body as the dataclass ``kind``, no more and no fewer fields. Pages of other sites cannot send this content type."""
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent != JSON:
        raise Refused(415, f"expected {JSON}, got {sent[:60] or 'none'}")
    try:
        return validate(kind, parse(await read_body(request)))
    except ValueError as error:
        raise Refused(400, str(error)) from None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def explain(error: Any) -> str:
    """One line of an error that was not expected."""
    return " ".join(str(error).split()) or type(error).__name__
