"""A vocabulary of characters for small text tasks: one token per character, and one for each of three pieces of Python.

=======  ===============================================================================================================
id       token
=======  ===============================================================================================================
0        the mask
1        padding, behind a prompt and behind an answer's end; an ordinary token, which may be revealed
2        the end of an answer
3 … 12   ``0`` … ``9``
13 … 20  ``a`` … ``h``
21 … 33  ``+ - * / = ; , ? : > ( ) #``
34 … 48  1 to 5 in three other notations: ``Ⅰ`` … ``Ⅴ``, ``①`` … ``⑤``, ``一`` … ``五``
49       ``def f(a):``
50       a new line, indented by a space
51       a new line, indented, and ``return b,c,d,e``
=======  ===============================================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MASK, PAD, END = 0, 1, 2
SPECIAL = ("_", "·", ".")
"""Of the three, as a tokenizer writes them."""
NUMERALS = ("12345", "ⅠⅡⅢⅣⅤ", "①②③④⑤", "一二三四五")
"""Notations of the numbers from 1 to 5."""
PIECES = (
    *"0123456789",
    *"abcdefgh",
    *"+-*/=;,?:>()#",
    *"".join(NUMERALS[1:]),
    "def f(a):",
    "\n ",
    "\n return b,c,d,e",
)
VOCABULARY = END + 1 + len(PIECES)
SHOWN = {MASK: "_", PAD: "", END: "."}
"""Text of the special tokens."""

_ID = {piece: number for number, piece in enumerate(PIECES, END + 1)}
_LONGEST_FIRST = re.compile("|".join(re.escape(piece) for piece in sorted(PIECES, key=len, reverse=True)))


def encode(text: str) -> list[int]:
    """The ids of a text, the longest piece first."""
    ids, place = [], 0
    while place < len(text):
        match = _LONGEST_FIRST.match(text, place)
        if match is None:
            raise ValueError(
                f"no token for {text[place]!r} in {text!r}: expected the characters {''.join(PIECES[:-3])} "
                f"and the pieces {', '.join(map(repr, PIECES[-3:]))}"
            )
        ids.append(_ID[match.group()])
        place = match.end()
    return ids


def decode(ids: Sequence[int]) -> str | None:
    """The text before the first end token; None where it does not end, or holds padding or a mask."""
    if END not in ids:
        return None
    text = ids[: list(ids).index(END)]
    return "".join(PIECES[i - END - 1] for i in text) if all(i > END for i in text) else None


def draw_tokens(ids: Sequence[int]) -> str:
    """All tokens as one line of text: ``_`` is hidden, ``.`` the end, ``↵`` a new line; padding is omitted."""
    return "".join(SHOWN[i] if i in SHOWN else PIECES[i - END - 1].replace("\n ", "↵") for i in ids)
