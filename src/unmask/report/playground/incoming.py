"""Checks before a request is acted on: for this host, from its own page, small, complete, and of the expected types."""

from __future__ import annotations

import ipaddress
import time
from email.message import Message
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic.dataclasses import dataclass

from unmask.report.stored import STRICT, parse, validate

T = TypeVar("T")
BODY_BYTES = 64 * 1024
IDLE_SECONDS = 15.0
JSON = "application/json"


@dataclass(frozen=True, config=STRICT)
class RaceRequest:
    puzzle: str
    denoiser: str
    schedulers: list[str]


@dataclass(frozen=True, config=STRICT)
class RandomRequest:
    size: int
    difficulty: str


class Refused(Exception):
    """A request that is answered with a status and one line of why."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


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


def require_own_page(headers: Message) -> None:
    """Browsers name the page that sends a request. Other programs send no such headers, and are allowed."""
    origin, site = headers["Origin"], headers["Sec-Fetch-Site"]
    foreign = origin is not None and origin.lower() != f"http://{headers['Host']}".lower()
    if foreign or site not in (None, "same-origin", "none"):
        raise Refused(HTTPStatus.FORBIDDEN, "expected a request from the playground's own page")


def read_body(headers: Message, stream: Any) -> bytes:
    """The body: of a stated length within the limit, and received in time."""
    length = headers["Content-Length"] or ""
    if headers["Transfer-Encoding"] is not None or not (length.isascii() and length.isdecimal()):
        raise Refused(HTTPStatus.LENGTH_REQUIRED, "expected a body with its length")
    if len(length) > 9 or int(length) > BODY_BYTES:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"too large: expected at most {BODY_BYTES // 1024} KB")
    deadline, parts, left = time.monotonic() + IDLE_SECONDS, [], int(length)
    while left:
        part = stream.read1(left)
        if not part or time.monotonic() > deadline:
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "expected the whole body, and sooner")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def read_json(headers: Message, body: bytes, request: type[T]) -> T:
    """The body as the dataclass ``request``, no more and no fewer fields. Pages of other sites cannot send this content type."""
    if headers.get_content_type() != JSON:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected {JSON}, got {headers.get_content_type()}")
    try:
        return validate(request, parse(body))
    except ValueError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
