"""A console that no text can steer: what files and models hold is shown without control characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

REPLACED = "\ufffd"


def printable(text: str) -> str:
    """Without control characters, changes of direction and line separators; carriage returns are dropped."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or _is_shown(c) else REPLACED for c in text.replace("\r", ""))


def _is_shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


class SafeConsole(Console):
    """rich's console, which cleans every text that it renders; its own colours and movements are not text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control or text.isprintable() else Segment(printable(text), style)
