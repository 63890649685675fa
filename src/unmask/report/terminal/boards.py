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
    """One scheduler on a puzzle: ``order[k]`` is revealed k-th; reveals of the same ``step`` happen together.

    ``taken_back`` has the step, the cell and the digit of each reveal that did not stay.
    """

    name: str
    answer: Int[np.ndarray, "L"]
    order: tuple[int, ...]
    step: tuple[int, ...]
    taken_back: tuple[tuple[int, int, int], ...] = ()

    @property
    def steps(self) -> int:
        return self.step[-1] + 1 if self.step else 0

    def standing(self, steps: int) -> dict[int, tuple[int, int]]:
        """Cell → the place of its reveal in the order and its digit, for the cells that are filled after so many steps."""
        gone = {cell: [entry for entry in self.taken_back if entry[1] == cell] for _, cell, _ in self.taken_back}
        stand: dict[int, tuple[int, int]] = {}
        for k, (cell, step) in enumerate(zip(self.order, self.step, strict=True)):
            ends, _, digit = gone[cell].pop(0) if gone.get(cell) else (steps, cell, int(self.answer[cell]))
            if step < steps <= ends:
                stand[cell] = (k, digit)
        return stand


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
            stand = lane.standing(self.steps)
            cells = [self._cell(cell, digit) for cell, (k, digit) in stand.items() if lane.step[k] == self.steps - 1]
            back = [self._place(cell) for step, cell, _ in lane.taken_back if step == self.steps - 1]
            cells += [f"taken back at {' and '.join(back)}"] if back else []
            parts.append(f"{lane.name}: {', '.join(cells) or 'done'}")
        return f"step {self.steps} of {self.last}: {' | '.join(parts)}"

    def _cell(self, cell: int, digit: int) -> str:
        return f"{digit} at {self._place(cell)}{', wrong' if self._wrong(cell, digit) else ''}"

    def _place(self, cell: int) -> str:
        row, column = divmod(cell, self.shape.size)
        return f"row {row + 1}, column {column + 1}"

    def _wrong(self, cell: int, digit: int) -> bool:
        return self.truth is not None and digit != int(self.truth[cell])

    def board(self, lane: Lane) -> Text:
        """One lane after ``steps`` steps: clues bold, reveals coloured from the first (blue) to the last (red)."""
        stand = lane.standing(self.steps)
        text = self._heading(lane, stand)
        for cell in range(len(self.puzzle)):
            text.append(self._gap(cell))
            newest = cell in stand and lane.step[stand[cell][0]] == self.steps - 1
            digit, style = self._digit(lane, cell, stand.get(cell))
            text.append(">" if newest else " ", style="bold")
            text.append(digit, style=f"{style} reverse" if newest else style)
            text.append("!" if cell in stand and self._wrong(cell, stand[cell][1]) else " ", style="bold")
        return text

    def _gap(self, cell: int) -> str:
        """What stands before a cell: a new line, an empty one between bands, a space between boxes."""
        row, column = divmod(cell, self.shape.size)
        if column:
            return " " if column % self.shape.box_cols == 0 else ""
        return "\n\n" if row and row % self.shape.box_rows == 0 else "\n"

    def _digit(self, lane: Lane, cell: int, stands: tuple[int, int] | None) -> tuple[str, str]:
        """A cell's character and its style; once it is revealed, it ``stands`` by its place in the order and its digit."""
        if stands is not None:
            return str(stands[1]), heat(stands[0] / max(1, len(lane.order) - 1))
        return (str(self.puzzle[cell]), "bold") if self.puzzle[cell] else ("·", "dim")

    def _heading(self, lane: Lane, stand: dict[int, tuple[int, int]]) -> Text:
        wrong = [k for cell, (k, digit) in stand.items() if self._wrong(cell, digit)]
        back = sum(step < self.steps for step, _, _ in lane.taken_back)
        hidden = len(set(lane.order))
        if wrong:
            state = f"{len(wrong)} wrong since {min(wrong) + 1}"
        else:
            state = "solved" if self.truth is not None and len(stand) == hidden else f"{len(stand)} of {hidden}"
        state += f", {back} taken back" if back else ""
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
