"""Puzzles of the playground: typed, generated, or from a file. The error of an invalid one says what is wrong with it.

A board is ``[cells]`` digits, row by row, 0 for a blank; the playground has denoisers for 4×4 and 9×9 boards.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unmask.tasks.sudoku.grid import Grid, format_board, grid_of, parse
from unmask.tasks.sudoku.solver import solve_many
from unmask.tasks.sudoku.task import SudokuTask

ROWS_SHOWN = 20
MAX_GUESSES = 200_000  # a board made to keep the solver busy is given up
FEW_GUESSES = 2_000  # per digit tried, where there may be hundreds to try

DIFFICULTIES: dict[int, dict[str, str]] = {
    9: {"easy": "38-45", "medium": "31-37", "hard": "26-30"},
    4: {"easy": "8-10", "medium": "6-7", "hard": "4-5"},
}


@dataclass(frozen=True)
class Example:
    """A puzzle that the page offers, with a denoiser and schedulers that differ on it."""

    name: str
    puzzle: str
    denoiser: str
    schedulers: tuple[str, ...]


EXAMPLES = (
    Example(
        "Only the learned order succeeds",
        "000003094630000070008107300006519400200800709001002006502000000000700040870050020",
        "sudoku-9x9-imperfect",
        ("confidence", "sas"),
    ),
    Example(
        "Wikipedia’s Sudoku",
        "530070000600195000098000060800060003400803001700020006060000280000419005000080079",
        "sudoku-9x9-imperfect",
        ("left_to_right", "confidence"),
    ),
    Example(
        "Beyond the imperfect model, not the best",
        "000086000210000003000005079003010500000008004800502000390000060502804900007960000",
        "sudoku-9x9",
        ("confidence", "sas"),
    ),
    Example("Small: 4×4 with five clues", "1200000040320000", "sudoku-4x4-imperfect", ("confidence", "sas")),
)


@dataclass(frozen=True)
class Puzzle:
    """A puzzle with exactly one solution, and that solution: ``[cells]`` each."""

    board: NDArray[np.int8]
    solution: NDArray[np.int8]

    @property
    def text(self) -> str:
        return format_board(self.board)

    @property
    def size(self) -> int:
        return grid_of(len(self.board)).size


class BadPuzzle(ValueError):
    """A puzzle that cannot be raced on; ``cells`` are the places at fault, counted from 0."""

    def __init__(self, message: str, cells: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.cells = cells


def read_puzzle(text: str) -> Puzzle:
    """The puzzle that ``text`` writes out. Spaces, line breaks and the rules of a drawn grid do not count."""
    board = _board(text)
    shape = grid_of(len(board))
    if not (board == 0).any():
        raise BadPuzzle("expected a puzzle with blanks, got a full board: clear some cells")
    if (clash := _clash(board, shape)) is not None:
        raise clash
    try:
        solutions, counts = solve_many(board[None], limit=2, max_guesses=MAX_GUESSES)
    except ValueError:
        raise BadPuzzle("the solver gave up on this puzzle; add clues") from None
    if counts[0] == 0:
        raise BadPuzzle("this puzzle has no solution, though no two clues clash; change or clear a clue")
    if counts[0] > 1:
        raise _several(board, solutions[0], shape)
    return Puzzle(board, solutions[0])


def random_puzzle(size: int, difficulty: str, seed: int) -> Puzzle:
    """A generated puzzle that no shipped denoiser was trained on."""
    if size not in DIFFICULTIES:
        raise ValueError(f"expected a size of 4 or 9, got {size}")
    if difficulty not in DIFFICULTIES[size]:
        raise ValueError(f"expected a difficulty among {', '.join(DIFFICULTIES[size])}, got {difficulty[:40]!r}")
    task = SudokuTask.generate(1, size, DIFFICULTIES[size][difficulty], "test", seed)
    return Puzzle(task.puzzles[0], task.solutions[0])


@dataclass(frozen=True)
class Rows:
    """The first puzzles of a file as ``(line, text)``, how many lines hold none, and why the first of those does not."""

    rows: tuple[tuple[int, str], ...]
    skipped: int
    reason: str


def read_rows(content: bytes) -> Rows:
    """Puzzles of a CSV or text file: in each line, the first field that is a board. Solutions beside them are not read."""
    found: list[tuple[int, str]] = []
    skipped, reason = 0, ""
    for line, fields in _lines(content):
        boards = [board for field in fields if (board := _line_board(field)) is not None]
        if boards:
            found.append((line, format_board(boards[0])))
        elif line > 1:  # the first line may be a header
            skipped += 1
            reason = reason or f"line {line}: {_why_not(fields)}"
        if len(found) == ROWS_SHOWN:
            break
    if not found:
        why = f" ({reason})" if reason else ""
        raise ValueError(f"no line of this file holds a puzzle of 81 or 16 characters{why}")
    return Rows(tuple(found), skipped, reason)


def _lines(content: bytes) -> Iterator[tuple[int, list[str]]]:
    """The lines that hold anything, with their numbers, split at commas."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("expected a text file in UTF-8, got other bytes") from None
    if "\0" in text:
        raise ValueError("expected a text file, got binary data")
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield reader.line_num, fields
    except csv.Error as error:
        raise ValueError(f"expected comma-separated text, line {reader.line_num} is not: {error}") from None


def _board(text: str) -> NDArray[np.int8]:
    bare = "".join(character for character in text if character not in " \t\r\n|+-").replace("_", ".")
    if len(bare) not in (16, 81):
        near = 16 if len(bare) < 40 else 81
        by = f"{abs(near - len(bare))} {'too many' if len(bare) > near else 'missing'}"
        raise BadPuzzle(f"expected 81 characters (9×9) or 16 (4×4), got {len(bare)}: {by}")
    shape = grid_of(len(bare))
    allowed = "." + "0123456789"[: shape.size + 1]
    bad = tuple(place for place, character in enumerate(bare) if character not in allowed)
    if bad:
        row, column = divmod(bad[0], shape.size)
        raise BadPuzzle(
            f"expected digits 1 to {shape.size}, and 0 or . for a blank, got {bare[bad[0]]!r} "
            f"at row {row + 1}, column {column + 1}",
            bad,
        )
    return parse(bare, shape)


def _clash(board: NDArray[np.int8], shape: Grid) -> BadPuzzle | None:
    """The first two equal clues in one row, column or box."""
    for number, unit in enumerate(shape.units):
        digits = board[unit]
        for digit in range(1, shape.size + 1):
            cells = unit[digits == digit]
            if len(cells) > 1:
                kind = ("row", "column", "box")[number // shape.size]
                where = f"{kind} {number % shape.size + 1}"
                return BadPuzzle(f"this puzzle has no solution: {digit} stands twice in {where}", tuple(cells.tolist()))
    return None


def _several(board: NDArray[np.int8], first: NDArray[np.int8], shape: Grid) -> BadPuzzle:
    """The error names a cell in which two solutions differ, so that a clue can be added there."""
    for cell in np.flatnonzero(board == 0):
        for digit in range(1, shape.size + 1):
            if digit == first[cell]:
                continue
            tried = board.copy()
            tried[cell] = digit
            try:
                solutions, counts = solve_many(tried[None], limit=1, max_guesses=FEW_GUESSES)
            except ValueError:
                continue
            if counts[0]:
                cells = tuple(np.flatnonzero(solutions[0] != first).tolist())
                row, column = divmod(int(cell), shape.size)
                low, high = sorted((int(first[cell]), digit))
                return BadPuzzle(
                    f"this puzzle has several solutions: row {row + 1}, column {column + 1} may be {low} or {high}; "
                    f"two of them differ in {len(cells)} cells. Add a clue there",
                    cells,
                )
    return BadPuzzle("this puzzle has several solutions; add a clue")


def _line_board(field: str) -> NDArray[np.int8] | None:
    try:
        return _board(field)
    except BadPuzzle:
        return None


def _why_not(fields: list[str]) -> str:
    try:
        _board(fields[0])
    except BadPuzzle as error:
        return str(error)
    return "no puzzle"
