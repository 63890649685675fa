"""The HTML pages of this package: jinja templates, with scripts and styles from ``.js`` and ``.css`` files put inline.

Every value is escaped. What is not: figures (:func:`~unmask.report.svg.inline_svg`), JSON for a script element (``| embed``),
and the package's own sources (``source``, ``script``). ``policy`` lets a page run the named scripts alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

HERE = Path(__file__).parent


def render(template: str, **values: Any) -> str:
    """The page ``template``, a path in this folder."""
    return _environment().get_template(template).render(**values)


def embed_json(value: Any) -> Markup:
    """JSON for a script element: no ``</script>``, ``<!--`` or entity can be in it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@cache
def _source(name: str) -> Markup:
    return Markup((HERE / name).read_text(encoding="utf-8"))


@cache
def _script(name: str) -> Markup:
    return Markup(f"<script>\n{_source(name)}</script>")


@cache
def _policy(*names: str) -> Markup:
    """A Content-Security-Policy under which these scripts run and no others, neither inline nor in attributes."""
    hashes = (hashlib.sha256(f"\n{_source(name)}".encode()).digest() for name in names)
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)
    return Markup(f"default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; img-src data:")


@cache
def _environment() -> Environment:
    loader = FileSystemLoader(HERE)
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["embed"] = embed_json
    templates.globals |= {"source": _source, "script": _script, "policy": _policy}
    return templates
