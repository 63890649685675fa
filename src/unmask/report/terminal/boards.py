"""Puzzles in the terminal while they fill, reveal by reveal, schedulers side by side. ``L`` cells, ``K`` reveals.

Nothing here prints: ``LiveBoards`` is set to a step and rendered by rich, and its ``line`` is that step in plain text.
Without colours everything is still readable: ``>`` stands before the newest reveal, ``!`` behind a wrong one, ``·`` is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from rich.console import Console, ConsoleOptions
from rich.text import Text

from unmask.report.terminal.tables import heat
from unmask.tasks.sudoku.grid import grid_of

GAP = 4
LEAST_WIDTH = 28  # of a heading


@dataclass(frozen=True)
class Lane:
    """One scheduler on a puzzle: ``order[k]`` is revealed k-th; reveals of the same ``step`` happen together."""

    name: str
    answer: Int[np.ndarray, "L"]
    order: tuple[int, ...]
    step: tuple[int, ...]

    @property
    def steps(self) -> int:
        return self.step[-1] + 1 if self.step else 0

    def revealed(self, steps: int) -> int:
        """How many cells are revealed after so many steps."""
        return sum(step < steps for step in self.step)


class LiveBoards:
    """``steps`` is how far the boards are. ``truth`` is the solution, if it is known."""

    def __init__(self, puzzle: Int[np.ndarray, "L"], truth: Int[np.ndarray, "L"] | None, lanes: Sequence[Lane]) -> None:
        self.puzzle, self.truth, self.lanes = puzzle, truth, tuple(lanes)
        self.shape = grid_of(len(puzzle))
        self.steps = 0

    @property
    def last(self) -> int:
        return max(lane.steps for lane in self.lanes)

    @property
    def width(self) -> int:
        """Columns that one board needs."""
        return max(LEAST_WIDTH, 3 * self.shape.size + self.shape.size // self.shape.box_cols - 1)

    @property
    def height(self) -> int:
        """Lines that one board needs, with its heading."""
        return self.shape.size + self.shape.size // self.shape.box_rows - 1 + 2

    def fits(self, columns: int, lines: int) -> bool:
        """Whether a terminal of this size holds at least one board and the line below."""
        return columns >= self.width and lines > self.height + 1

    def line(self) -> str:
        """The latest step of every scheduler, as one line."""
        parts = []
        for lane in self.lanes:
            cells = [
                self._cell(lane, cell)
                for cell, step in zip(lane.order, lane.step, strict=True)
                if step == self.steps - 1
            ]
            parts.append(f"{lane.name}: {', '.join(cells) or 'done'}")
        return f"step {self.steps} of {self.last}: {' | '.join(parts)}"

    def _cell(self, lane: Lane, cell: int) -> str:
        row, column = divmod(cell, self.shape.size)
        return (
            f"{lane.answer[cell]} at row {row + 1}, column {column + 1}{', wrong' if self._wrong(lane, cell) else ''}"
        )

    def _wrong(self, lane: Lane, cell: int) -> bool:
        return self.truth is not None and bool(lane.answer[cell] != self.truth[cell])

    def board(self, lane: Lane) -> Text:
        """One lane after ``steps`` steps: clues bold, reveals coloured from the first (blue) to the last (red)."""
        count = lane.revealed(self.steps)
        rank = {cell: k for k, cell in enumerate(lane.order[:count])}
        newest = {cell for cell, step in zip(lane.order, lane.step, strict=True) if step == self.steps - 1}
        text = self._heading(lane, count)
        for cell in range(len(self.puzzle)):
            text.append(self._gap(cell))
            digit, style = self._digit(lane, cell, rank.get(cell))
            wrong = cell in rank and self._wrong(lane, cell)
            text.append(">" if cell in newest else " ", style="bold")
            text.append(digit, style=f"{style} reverse" if cell in newest else style)
            text.append("!" if wrong else " ", style="bold")
        return text

    def _gap(self, cell: int) -> str:
        """What stands before a cell: a new line, an empty one between bands, a space between boxes."""
        row, column = divmod(cell, self.shape.size)
        if column:
            return " " if column % self.shape.box_cols == 0 else ""
        return "\n\n" if row and row % self.shape.box_rows == 0 else "\n"

    def _digit(self, lane: Lane, cell: int, rank: int | None) -> tuple[str, str]:
        """A cell's character and its style; ``rank`` is its place in the order, once it is revealed."""
        if rank is not None:
            return str(lane.answer[cell]), heat(rank / max(1, len(lane.order) - 1))
        return (str(self.puzzle[cell]), "bold") if self.puzzle[cell] else ("·", "dim")

    def _heading(self, lane: Lane, count: int) -> Text:
        wrong = [k for k, cell in enumerate(lane.order[:count]) if self._wrong(lane, cell)]
        if wrong:
            state = f"{len(wrong)} wrong since {wrong[0] + 1}"
        else:
            state = "solved" if self.truth is not None and count == len(lane.order) else f"{count} of {len(lane.order)}"
        room = self.width - len(state) - 2
        name = lane.name if len(lane.name) <= room else f"{lane.name[: room - 1]}…"
        return Text.assemble((name, "bold"), f": {state}\n")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Side by side; below each other where that is too wide; as many as the terminal has lines for."""
        boards = [self.board(lane).split("\n", allow_blank=True) for lane in self.lanes]
        beside = max(1, (options.max_width + GAP) // (self.width + GAP))
        below = max(1, (console.size.height - 1) // (self.height + 1))
        shown = boards[: beside * below]
        for start in range(0, len(shown), beside):
            for parts in zip(*shown[start : start + beside], strict=True):
                line = Text()
                for part in parts:
                    part.pad_right(self.width + GAP - len(part.plain))
                    line.append_text(part)
                line.rstrip()
                yield line
            yield Text("")
        more = "" if len(shown) == len(boards) else f"; no room for {len(boards) - len(shown)} more"
        status = f"step {self.steps} of {self.last}; blue first, red last, > newest, ! wrong{more}"
        yield Text(status[: options.max_width], style="dim")
