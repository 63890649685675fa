"""The playground's page and the policy it is served under: nothing from elsewhere, no script or style but those in the page.

It shares the viewer's style and elements. The policy names each script and style by its hash, so the page is
the same for every request.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import asdict
from functools import cache

from unmask.report import templates
from unmask.report.playground.puzzles import DIFFICULTIES, EXAMPLES
from unmask.report.playground.race import DENOISERS, MOST_SCHEDULERS, SCHEDULERS

VIEWER_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)


@cache
def page() -> str:
    """The whole page, with what can be chosen inside it."""
    choices = {
        "denoisers": [{"name": name, "size": size, "label": label} for name, (size, label) in DENOISERS.items()],
        "schedulers": [{"name": name, "label": label} for name, label in SCHEDULERS.items()],
        "examples": [asdict(example) for example in EXAMPLES],
        "difficulties": DIFFICULTIES,
        "mostSchedulers": MOST_SCHEDULERS,
    }
    return templates.render("playground/playground.html", choices=choices)


@cache
def policy() -> str:
    """The page's Content-Security-Policy."""
    scripts, styles = (
        " ".join(map(_hash, re.findall(rf"<{tag}>(.*?)</{tag}>", page(), re.DOTALL))) for tag in ("script", "style")
    )
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; img-src data:; connect-src 'self'; "
        "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
