"""A tokenizer of a few characters, for the small text denoisers of this package: one JSON file, nothing to install."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from unmask.runs.atomic import atomic_write
from unmask.runs.config import Count, config, read

FILE = "characters.json"


@config
class CharacterTokenizer:
    """``pieces[i]`` is the text of token ``i``; the first ``special`` ones are the mask, padding and ends. The longest piece wins.

    Its chat template pads a problem to ``prompt_width`` tokens with token ``pad``: the answer then begins where it did in training.
    """

    pieces: tuple[str, ...]
    special: Count
    pad: int
    prompt_width: Count

    chat_template: ClassVar[str] = "a problem, padded to the width of the training prompts"

    @classmethod
    def load(cls, folder: Path) -> CharacterTokenizer:
        return read(cls, json.loads((folder / FILE).read_text(encoding="utf-8")), str(folder / FILE))

    def save(self, folder: Path) -> None:
        names = ("pieces", "special", "pad", "prompt_width")
        text = json.dumps({name: getattr(self, name) for name in names}, ensure_ascii=False, indent=1)
        atomic_write(folder / FILE, (text + "\n").encode())

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(self.pieces)}

    @cached_property
    def _longest_first(self) -> re.Pattern[str]:
        return re.compile("|".join(re.escape(piece) for piece in sorted(self.pieces, key=len, reverse=True)))

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; ``add_special_tokens`` changes nothing."""
        ids, place = [], 0
        while place < len(text):
            match = self._longest_first.match(text, place)
            if match is None:
                known = " ".join(map(repr, self.pieces[self.special :])).replace("'", "")
                raise ValueError(f"this denoiser has no token for {text[place]!r}: expected only {known}")
            ids.append(self._ids[match.group()])
            place = match.end()
        return ids

    def decode(self, ids: Iterable[int], /, *, skip_special_tokens: bool = False, **_: Any) -> str:
        return "".join(self.pieces[i] for i in ids if not skip_special_tokens or i >= self.special)

    def apply_chat_template(self, conversation: Sequence[Mapping[str, str]], /, **_: Any) -> str:
        """The last turn, padded. Each problem stands by itself: earlier turns are not part of it."""
        text = conversation[-1]["content"].strip()
        return text + self.pieces[self.pad] * (self.prompt_width - len(self.encode(text)))
