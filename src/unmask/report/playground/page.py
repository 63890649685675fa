"""The playground's page and the policy it is served under: nothing from elsewhere, no script or style but those in the page.

It shares the viewer's style and elements. The policy names each script and style by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache

from unmask.report import templates
from unmask.report.playground.boards import board_choices
from unmask.report.playground.drawn import drawn_choices
from unmask.report.playground.models import Models
from unmask.report.playground.race import MOST_LANES
from unmask.report.playground.text import text_choices

VIEWER_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)


def page(models: Models) -> str:
    """The whole page, with what can be chosen inside it."""
    drawn = drawn_choices(models)
    only = drawn is not None and len(drawn["denoisers"]) == len(models.denoisers)
    choices = {
        "text": text_choices(models),
        "boards": board_choices(),
        "drawn": drawn,
        "first": drawn["name"] if drawn and only else "text",
        "mostLanes": MOST_LANES,
    }
    return templates.render("playground/playground.html", choices=choices)


@cache
def policy(html: str) -> str:
    """The page's Content-Security-Policy."""
    scripts, styles = (
        " ".join(map(_hash, re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL))) for tag in ("script", "style")
    )
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; connect-src 'self'; "
        "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
