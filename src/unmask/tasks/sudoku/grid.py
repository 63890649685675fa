"""Sudoku geometry and text.

A board is an int8 array `[C]` (or a batch `[N, C]`), row-major, `C = n * n`, 0 = blank, digits `1..n`.
Sizes: n = 4 (boxes 2 x 2), n = 6 (boxes of 2 rows x 3 columns), n = 9 (boxes 3 x 3).
"""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


@dataclass(frozen=True)
class Grid:
    """Which cells share a row, a column or a box. Use `grid(size)`, which keeps one per size."""

    size: int
    box_rows: int
    box_cols: int

    @property
    def cells(self) -> int:
        """Number of cells, C."""
        return self.size * self.size

    @cached_property
    def row(self) -> NDArray[np.int64]:
        """`[C]` row of each cell."""
        return _freeze(np.arange(self.cells) // self.size)

    @cached_property
    def column(self) -> NDArray[np.int64]:
        """`[C]` column of each cell."""
        return _freeze(np.arange(self.cells) % self.size)

    @cached_property
    def box(self) -> NDArray[np.int64]:
        """`[C]` box of each cell, boxes numbered row-major."""
        across = self.size // self.box_cols
        return _freeze(self.row // self.box_rows * across + self.column // self.box_cols)

    @cached_property
    def home(self) -> NDArray[np.int64]:
        """`[C, 3]` the three units of each cell, as indices into `units`."""
        n = self.size
        return _freeze(np.stack([self.row, self.column + n, self.box + 2 * n], axis=1))

    @cached_property
    def units(self) -> NDArray[np.int64]:
        """`[3n, n]` cells of each unit, ascending: rows, then columns, then boxes."""
        owners = (self.row, self.column, self.box)
        return _freeze(np.stack([np.flatnonzero(o == u) for o in owners for u in range(self.size)]))

    @cached_property
    def peers(self) -> NDArray[np.int64]:
        """`[C, P]` the other cells that share a unit with each cell, ascending."""
        shared = (self.home[:, None] == self.home[None]).any(-1) & ~np.eye(self.cells, dtype=bool)
        return _freeze(np.stack([np.flatnonzero(line) for line in shared]))


def _freeze(array: NDArray) -> NDArray[np.int64]:
    # The cached arrays are shared by every caller: writing into one must fail loudly.
    array = np.ascontiguousarray(array, dtype=np.int64)
    array.flags.writeable = False
    return array


@cache
def grid(size: int) -> Grid:
    """The geometry of an n x n board."""
    if size not in BOXES:
        raise ValueError(f"expected a Sudoku size of 4, 6 or 9, got {size!r}")
    return Grid(size, *BOXES[size])


def grid_of(cells: int) -> Grid:
    """The geometry of a board with that many cells."""
    for size in BOXES:
        if size * size == cells:
            return grid(size)
    raise ValueError(f"expected a board of 16, 36 or 81 cells, got {cells}")


def as_boards(boards: ArrayLike) -> NDArray[np.int8]:
    """Checked int8 boards `[N, C]`: a known size, digits within 0..n. One board `[C]` becomes `[1, C]`."""
    array = np.asarray(boards)
    if array.ndim not in (1, 2):
        raise ValueError(f"expected one board [C] or a batch of boards [N, C], got shape {array.shape}")
    if array.dtype.kind not in "iu":
        raise ValueError(f"expected boards of integers, got {array.dtype}; `parse` turns text into a board")
    array = np.atleast_2d(array)
    size = grid_of(array.shape[1]).size
    if array.size and (array.min() < 0 or array.max() > size):
        raise ValueError(f"expected digits 0..{size} on a {size} x {size} board, got {array.min()}..{array.max()}")
    return np.ascontiguousarray(array, dtype=np.int8)


def as_board(board: ArrayLike) -> NDArray[np.int8]:
    """One checked int8 board `[C]`."""
    if np.ndim(board) != 1:
        raise ValueError(f"expected one board [C], got shape {np.shape(board)}")
    return as_boards(board)[0]


def parse(text: str, grid: Grid | None = None) -> NDArray[np.int8]:
    """A board from a line of digits, `0` or `.` for a blank. Without `grid` the length tells the size."""
    text = text.strip()
    if grid is None:
        grid = grid_of(len(text))
    elif len(text) != grid.cells:
        raise ValueError(f"expected {grid.cells} characters for a {grid.size} x {grid.size} board, got {len(text)}")
    allowed = "." + "0123456789"[: grid.size + 1]
    if not set(text) <= set(allowed):
        place = next(i for i, character in enumerate(text) if character not in allowed)
        raise ValueError(f"expected digits 0..{grid.size} or '.', got {text[place]!r} at character {place + 1}")
    return np.frombuffer(text.replace(".", "0").encode("ascii"), np.int8) - np.int8(ord("0"))


def format_board(board: ArrayLike, blank: str = "0") -> str:
    """The board as one line of digits."""
    return "".join(str(digit) if digit else blank for digit in as_board(board).tolist())


def pretty(board: ArrayLike, blank: str = ".") -> str:
    """The board as lines of text, with lines between the boxes."""
    line = format_board(board, blank)
    shape = grid_of(len(line))
    n, width = shape.size, shape.box_cols
    rule = "+".join(["-" * (2 * width + 1)] * (n // width))
    lines = []
    for row in range(n):
        if row and row % shape.box_rows == 0:
            lines.append(rule)
        cells = line[row * n : (row + 1) * n]
        stacks = [" " + " ".join(cells[c : c + width]) + " " for c in range(0, n, width)]
        lines.append("|".join(stacks).rstrip())
    return "\n".join(lines)
