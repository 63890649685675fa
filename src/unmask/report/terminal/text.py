"""Text while it is being revealed, for the terminal: given text plain, reveals coloured from the first (blue) to the last (red).

``[B, L]`` canvases. Nothing here prints: ``LiveText`` takes steps and can be rendered by rich at any time, and its ``line`` is a
step in plain text. Without colours (``NO_COLOR``, a pipe) everything is still readable: hidden text is ``▁``.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from rich.console import Group
from rich.text import Text
from torch import Tensor

from unmask.decoding.loop import Step
from unmask.generation.text_canvas import TextCanvas, Tokenizer
from unmask.report.terminal.console import REPLACED as PARTIAL
from unmask.report.terminal.console import printable
from unmask.report.terminal.tables import heat

HIDDEN = "▁"


class Pieces:
    """Token id → its text inside a sentence, with the space before it, to show tokens one by one.

    Vocabularies mark spaces in their own ways, and decoding a token alone loses its space in some of them: the piece is what the
    token adds behind another one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        self._before = self._text(self._anchor)
        self._known: dict[tuple[int, ...], str] = {}

    def __call__(self, *ids: int) -> str:
        """The text that these tokens add together. A part of a character is U+FFFD."""
        if ids not in self._known:
            self._known[ids] = self._text([*self._anchor, *ids]).removeprefix(self._before)
        return self._known[ids]

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


class LiveText:
    """The canvases of one decoding. Pass ``on_step`` to it, and render the object, or the rows one by one.

    ``end_ids`` end a row: what follows the first of them is not shown. ``prompt`` shows the text before the region.
    """

    def __init__(self, canvas: TextCanvas, pieces: Pieces, end_ids: tuple[int, ...] = (), prompt: bool = True) -> None:
        self.canvas, self.pieces, self.end_ids, self.prompt = canvas, pieces, end_ids, prompt
        self.tokens = canvas.tokens.to("cpu", copy=True)
        self.masked = canvas.hidden.cpu()
        self.hidden = self.masked.clone()
        self.rank = torch.full_like(self.tokens, -1)
        self.steps = self.taken_back = 0

    def on_step(self, step: Step) -> None:
        """Take over the reveals of a step. Reveals of one step share their place in the order."""
        rows, revealed = step.view.rows.cpu(), step.revealed.cpu()
        self.tokens[rows] = step.tokens.cpu()
        self.hidden[rows] = self.hidden[rows] & ~revealed
        if step.revised.hidden is not None:
            hidden = step.revised.hidden.cpu()
            self.hidden[rows], self.rank[rows] = self.hidden[rows] | hidden, self.rank[rows].masked_fill(hidden, -1)
        self.taken_back += int((step.revised.tokens != step.view.tokens).sum())
        count = (self.rank[rows] >= 0).sum(1, keepdim=True)
        self.rank[rows] = torch.where(revealed, count, self.rank[rows])
        self.steps = step.view.step + 1

    def finish(self, tokens: Int[Tensor, "B L"]) -> None:
        """Take over the decoded canvases: positions left hidden after an end token are padding now."""
        self.tokens, self.hidden = tokens.cpu(), torch.zeros_like(self.hidden)

    @property
    def revealed(self) -> int:
        return int((self.rank >= 0).sum())

    def row(self, row: int) -> Text:
        """One canvas as it stands. Colours span the hidden positions; at the end, the revealed ones."""
        tokens, hidden, rank, masked, real = (
            x[row].tolist() for x in (self.tokens, self.hidden, self.rank, self.masked, self.canvas.attention)
        )
        last = max(1, sum(masked) - 1 if any(hidden) else max(rank))
        text, pending = Text(), []
        for place in range(0 if self.prompt else self.canvas.start, len(tokens)):
            token = tokens[place]
            if not real[place]:
                continue
            if hidden[place]:
                text.append(HIDDEN, style="dim")
                pending = []
                continue
            if token in self.end_ids and masked[place] and not any(hidden[:place]):
                break
            piece, pending = self._piece(text, pending, token)
            text.append(piece, style=heat(min(1.0, rank[place] / last)) if rank[place] >= 0 else "")
        return text

    def _piece(self, text: Text, pending: list[int], token: int) -> tuple[str, list[int]]:
        """What to append for a token, and the parts of a character that still wait for its rest.

        A character of several tokens takes the place of its parts once the last of them is there.
        """
        piece = self.pieces(token)
        if PARTIAL not in piece:
            return printable(piece), []
        for count in range(len(pending), 0, -1):
            parts = pending[-count:]
            whole = self.pieces(*parts, token)
            if PARTIAL not in whole:
                text.right_crop(sum(len(printable(self.pieces(part))) for part in parts))
                return printable(whole), []
        return printable(piece), [*pending[-2:], token]  # UTF-8 has at most four bytes

    def line(self) -> str:
        """The step as one line: how far it is, and the canvases, each on the same line."""
        share = f"{self.revealed}/{int(self.masked.sum())}"
        rows = (self.row(row).plain.replace("\n", "⏎").strip() for row in range(len(self.tokens)))
        return f"step {self.steps}, {share} revealed{self._back()}: {' | '.join(rows)}"

    def _back(self) -> str:
        return f", {self.taken_back} taken back" if self.taken_back else ""

    def __rich__(self) -> Group:
        status = Text(
            f"step {self.steps}, {self.revealed} of {int(self.masked.sum())} revealed{self._back()}", style="dim"
        )
        return Group(*(self.row(row) for row in range(len(self.tokens))), status)
