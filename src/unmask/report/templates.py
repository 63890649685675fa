"""The HTML pages of this package: jinja templates, with scripts and styles from ``.js`` and ``.css`` files put inline.

Every value is escaped. What is not: figures that this package draws (``| svg``), JSON for a script element (``| embed``), and the
package's own sources (``source``).
"""

from __future__ import annotations

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
def _environment() -> Environment:
    loader = FileSystemLoader(HERE)
    templates = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters |= {"svg": Markup, "embed": embed_json}
    templates.globals["source"] = _source
    return templates
