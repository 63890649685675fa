"""Vocabularies of small text tasks, and the one of characters: a token per character, and one for each of three pieces of Python.

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
from dataclasses import dataclass
from functools import cached_property

MASK, PAD, END = 0, 1, 2
SPECIAL = ("_", "·", ".")
"""Of the three, as a tokenizer writes them."""
NUMERALS = ("12345", "ⅠⅡⅢⅣⅤ", "①②③④⑤", "一二三四五")
"""Notations of the numbers from 1 to 5."""
SHOWN = {MASK: "_", PAD: "", END: "."}
"""Text of the special tokens."""


@dataclass(frozen=True)
class Vocabulary:
    """The texts of the tokens behind the three special ones."""

    pieces: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(SPECIAL) + len(self.pieces)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(self.pieces, len(SPECIAL))}

    @cached_property
    def _longest_first(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(piece) for piece in sorted(self.pieces, key=len, reverse=True)))

    def encode(self, text: str) -> list[int]:
        """The ids of a text, the longest piece first."""
        ids, place = [], 0
        while place < len(text):
            match = self._longest_first.match(text, place)
            if match is None:
                characters = "".join(piece for piece in self.pieces if len(piece) == 1)
                words = ", ".join(repr(piece) for piece in self.pieces if len(piece) > 1)
                raise ValueError(
                    f"no token for {text[place]!r} in {text!r}: expected the characters {characters} and the pieces {words}"
                )
            ids.append(self._ids[match.group()])
            place = match.end()
        return ids

    def decode(self, ids: Sequence[int]) -> str | None:
        """The text before the first end token; None where it does not end, or holds padding or a mask."""
        if END not in ids:
            return None
        text = ids[: list(ids).index(END)]
        return "".join(self.pieces[i - len(SPECIAL)] for i in text) if all(i > END for i in text) else None

    def draw(self, ids: Sequence[int]) -> str:
        """All tokens as one line of text: ``_`` is hidden, ``.`` the end, ``↵`` a new line; padding is omitted."""
        texts = (SHOWN[i] if i in SHOWN else self.pieces[i - len(SPECIAL)] for i in ids)
        return "".join(text.replace("\n ", "↵") for text in texts)


CHARACTERS = Vocabulary(
    (
        *"0123456789",
        *"abcdefgh",
        *"+-*/=;,?:>()#",
        *"".join(NUMERALS[1:]),
        "def f(a):",
        "\n ",
        "\n return b,c,d,e",
    )
)
