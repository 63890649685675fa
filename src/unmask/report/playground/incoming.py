"""What a request must be before anybody acts on it: for this host, from its own page, small, whole, and of the expected types."""

from __future__ import annotations

import ipaddress
import json
import time
from email.message import Message
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

BODY_BYTES = 64 * 1024
IDLE_SECONDS = 15.0
JSON = "application/json"


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

    A site can have its name point to this machine, and then its pages ask as if they were ours; but the header still holds that
    name. Addresses cannot be pointed elsewhere, so a server that is open to others also answers to any of its addresses.
    """
    try:
        parts = urlsplit(f"//{header or ''}")
        name, asked = parts.hostname or "", parts.port or 80
    except ValueError:
        return False
    if asked != port or parts.username is not None or parts.path or parts.query or parts.fragment:
        return False
    if name in (host.lower(), "localhost"):
        return True
    return is_loopback(name) if is_loopback(host) else _is_address(name)


def require_own_page(headers: Message) -> None:
    """Browsers say which page asks. Programs that are none say nothing, and may ask."""
    origin, site = headers["Origin"], headers["Sec-Fetch-Site"]
    foreign = origin is not None and origin.lower() != f"http://{headers['Host']}".lower()
    if foreign or site not in (None, "same-origin", "none"):
        raise Refused(HTTPStatus.FORBIDDEN, "expected a request from the playground's own page")


def read_body(headers: Message, stream: Any) -> bytes:
    """The body, of a stated length within the limit, as long as it comes within the time."""
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


def read_json(headers: Message, body: bytes, fields: dict[str, type]) -> dict[str, Any]:
    """The fields, each of its type and no other. Pages of other sites cannot send this content type unasked."""
    if headers.get_content_type() != JSON:
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"expected {JSON}, got {headers.get_content_type()}")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(HTTPStatus.BAD_REQUEST, "expected JSON, got something else") from None
    if not isinstance(asked, dict) or set(asked) != set(fields):
        raise Refused(HTTPStatus.BAD_REQUEST, f"expected an object with {', '.join(fields)}")
    for name, kind in fields.items():
        if type(asked[name]) is not kind:
            got = type(asked[name]).__name__
            raise Refused(HTTPStatus.BAD_REQUEST, f"{name}: expected {kind.__name__}, got {got}")
    return asked


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
