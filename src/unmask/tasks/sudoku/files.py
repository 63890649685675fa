"""Sudoku files: comma-separated text as the community shares it.

A header is optional; its names are matched without case (`puzzle`, `puzzles`, `quizzes`, `solution`,
`solutions`, ...), other columns are kept as text. Without a header the columns are puzzle, solution, then
others. `0` or `.` is a blank. A byte order mark, CRLF and empty lines are fine. A malformed row is refused
with its line and the reason.
"""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from unmask.runs.bounded import bounded_lines
from unmask.tasks.sudoku.grid import Grid, as_boards, format_board, grid_of, parse
from unmask.tasks.sudoku.solver import is_solution, solve_many

PUZZLE_NAMES = {"puzzle", "puzzles", "quiz", "quizzes"}
SOLUTION_NAMES = {"solution", "solutions"}


@dataclass(frozen=True)
class Puzzles:
    """`puzzles`, `solutions [N, C]`; `lines [N]` where each came from; `unique [N]` whether the solution is
    the only one; `extra` the other columns as text, by name."""

    puzzles: NDArray[np.int8]
    solutions: NDArray[np.int8]
    lines: NDArray[np.int64]
    unique: NDArray[np.bool_]
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields of the non-empty rows."""
    if path.is_dir():
        raise ValueError(f"expected a file of puzzles, {path} is a directory")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(bounded_lines(file, path))
            for fields in reader:
                if any("\0" in text for text in fields):
                    raise ValueError(f"{path}, line {reader.line_num}: expected text, got binary data")
                if any(text.strip() for text in fields):
                    yield reader.line_num, [text.strip() for text in fields]
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8 text in {path}, got other bytes; is it a text file?") from error
    except csv.Error as error:
        raise ValueError(f"expected comma-separated text in {path}: {error}") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error


class _Columns(NamedTuple):
    """Indices of the puzzle and the solution column, and the names of the others."""

    puzzle: int
    solution: int | None
    others: dict[int, str]


def _named_columns(names: Sequence[str], where: str) -> _Columns:
    found: list[int | None] = []
    for accepted in (PUZZLE_NAMES, SOLUTION_NAMES):
        matches = [i for i, name in enumerate(names) if name.lower() in accepted]
        if len(matches) > 1:
            raise ValueError(f"{where}: expected one column named {'/'.join(sorted(accepted))}, got {len(matches)}")
        found.append(matches[0] if matches else None)
    puzzle, solution = found
    if puzzle is None:
        raise ValueError(f"{where}: expected a column named {'/'.join(sorted(PUZZLE_NAMES))}, got {names}")
    others = {i: name for i, name in enumerate(names) if i not in found}
    if len(set(others.values())) < len(others):
        raise ValueError(f"{where}: expected column names that differ, got {list(others.values())}")
    return _Columns(puzzle, solution, others)


def _board(text: str, shape: Grid | None, what: str, where: str) -> NDArray[np.int8]:
    try:
        return parse(text, shape)
    except ValueError as error:
        cells = (16, 36, 81) if shape is None else (shape.cells,)
        # A spreadsheet reads a board as a number and drops its leading zeros, or the last digits.
        eaten = text.isdecimal() and len(text) not in cells and any(0 < c - len(text) <= c // 2 for c in cells)
        hint = "; a spreadsheet may have dropped leading zeros: export the column as text" if eaten else ""
        shown = text if len(text) <= 90 else text[:90] + "..."
        raise ValueError(f"{where}: {what} {shown!r}: {error}{hint}") from error


def _clash(board: NDArray[np.int8], shape: Grid) -> str | None:
    for kind, unit in (("row", 0), ("column", 1), ("box", 2)):
        for index in range(shape.size):
            digits = board[shape.units[unit * shape.size + index]]
            counts = np.bincount(digits, minlength=shape.size + 1)[1:]
            if counts.max() > 1:
                return f"digit {int(counts.argmax()) + 1} stands twice in {kind} {index + 1}"
    return None


def _find_columns(fields: Sequence[str], where: str) -> tuple[_Columns, bool]:
    """The columns by the first row, and whether that row is a header."""
    if any(name.lower() in PUZZLE_NAMES | SOLUTION_NAMES for name in fields):
        return _named_columns(fields, where), True
    if fields[0].strip("0123456789."):
        raise ValueError(f"{where}: expected a header with a puzzle column, or a board, got {fields[0][:90]!r}")
    others = {i: f"column_{i + 1}" for i in range(2, len(fields))}
    return _Columns(0, 1 if len(fields) > 1 else None, others), False


@dataclass
class _Boards:
    """The boards of a file as they are read: `known` is False where a row has no solution."""

    columns: _Columns
    width: int
    lines: list[int] = field(default_factory=list)
    puzzles: list[NDArray[np.int8]] = field(default_factory=list)
    given: list[NDArray[np.int8]] = field(default_factory=list)
    known: list[bool] = field(default_factory=list)
    extra: list[list[str]] = field(default_factory=list)
    shape: Grid | None = None

    def add(self, line: int, fields: Sequence[str], where: str) -> None:
        if len(fields) != self.width:
            raise ValueError(f"{where}: expected {self.width} fields as in the first row, got {len(fields)}")
        board = _board(fields[self.columns.puzzle], self.shape, "puzzle", where)
        self.shape = grid_of(len(board))
        text = "" if self.columns.solution is None else fields[self.columns.solution]
        self.lines.append(line)
        self.puzzles.append(board)
        self.known.append(bool(text))
        self.given.append(_board(text, self.shape, "solution", where) if text else np.zeros_like(board))
        self.extra.append([fields[i] for i in self.columns.others])


def _read_boards(path: Path, limit: int | None) -> _Boards:
    boards: _Boards | None = None
    for line, fields in _rows(path):
        if boards is not None and limit is not None and len(boards.lines) >= limit:
            break
        where = f"{path}, line {line}"
        if boards is None:
            columns, header = _find_columns(fields, where)
            boards = _Boards(columns, len(fields))
            if header:
                continue
        boards.add(line, fields, where)
    if boards is None or not boards.lines:
        raise ValueError(f"expected at least one puzzle in {path}, found none")
    return boards


def read_csv(path: str | Path, limit: int | None = None, unique: bool = True) -> Puzzles:
    """Puzzles and solutions of a file, the first `limit` of them; missing solutions are found by the solver.

    `unique=False` keeps puzzles with several solutions where the file gives one (some published 4 x 4 sets have them);
    `Puzzles.unique` marks the others.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"expected a limit of at least 1 puzzle, got {limit}")
    path = Path(path)
    read = _read_boards(path, limit)
    boards, stated, known, lines = np.stack(read.puzzles), np.stack(read.given), np.array(read.known), read.lines
    try:
        solutions, counts = solve_many(boards, limit=2)
    except ValueError as error:  # a hostile board
        raise ValueError(f"{path}: {error} (boards are counted from 0)") from error
    if (counts == 0).any():
        clash = _clash(boards[int(np.argmax(counts == 0))], grid_of(boards.shape[1]))
        reason = "the puzzle has no solution" if clash is None else f"clues clash: {clash}"
        _refuse(path, lines, counts == 0, reason)
    _refuse(path, lines, known & ~is_solution(boards, stated), "the given solution does not solve the puzzle")
    if unique:
        _refuse(path, lines, counts > 1, "the puzzle has several solutions; expected exactly one")
    else:
        _refuse(path, lines, ~known & (counts > 1), "the puzzle has several solutions and none is given")
    solutions[known] = stated[known]
    extra = dict(zip(read.columns.others.values(), zip(*read.extra, strict=True), strict=False))
    return Puzzles(boards, solutions, np.array(lines), counts == 1, extra)


def _refuse(path: Path, lines: Sequence[int], wrong: NDArray[np.bool_], reason: str) -> None:
    if wrong.any():
        more = f" (and {int(wrong.sum()) - 1} more rows)" if wrong.sum() > 1 else ""
        raise ValueError(f"{path}, line {lines[int(wrong.argmax())]}: {reason}{more}")


def write_csv(
    path: str | Path,
    puzzles: ArrayLike,
    solutions: ArrayLike | None = None,
    extra: Mapping[str, Sequence[object]] | None = None,
) -> None:
    """Write boards `[N, C]` under a header `puzzle[,solution][,extra...]`, for `read_csv` to read back."""
    boards = [as_boards(puzzles)] + ([] if solutions is None else [as_boards(solutions)])
    columns = [[format_board(board) for board in array] for array in boards] + [list(c) for c in (extra or {}).values()]
    names = ["puzzle", "solution"][: len(boards)] + list(extra or {})
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"expected columns of one length, got {dict(zip(names, map(len, columns), strict=True))}")
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            writer.writerows(zip(*columns, strict=True))
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from error
