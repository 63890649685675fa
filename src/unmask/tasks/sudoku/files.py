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

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
            reader = csv.reader(file)
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


def _columns(names: Sequence[str], where: str) -> tuple[int, int | None, dict[int, str]]:
    """Indices of the puzzle and the solution column, and the names of the others."""
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
    return puzzle, solution, others


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


def read_csv(path: str | Path, limit: int | None = None, unique: bool = True) -> Puzzles:
    """Puzzles and solutions of a file, the first `limit` of them; missing solutions are found by the solver.

    `unique=False` keeps puzzles with several solutions where the file says which is meant (some published 4 x
    4 sets have them); `Puzzles.unique` tells them apart.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"expected a limit of at least 1 puzzle, got {limit}")
    path = Path(path)
    columns: tuple[int, int | None, dict[int, str]] | None = None
    shape: Grid | None = None
    width = 0
    lines, puzzles, given, has_solution = [], [], [], []
    extra: dict[str, list[str]] = {}
    for line, fields in _rows(path):
        if limit is not None and len(lines) >= limit:
            break
        where = f"{path}, line {line}"
        if columns is None:
            width = len(fields)
            if any(name.lower() in PUZZLE_NAMES | SOLUTION_NAMES for name in fields):
                columns = _columns(fields, where)
                extra = {name: [] for name in columns[2].values()}
                continue
            if fields[0].strip("0123456789."):
                raise ValueError(f"{where}: expected a header with a puzzle column, or a board, got {fields[0][:90]!r}")
            columns = (0, 1 if width > 1 else None, {i: f"column_{i + 1}" for i in range(2, width)})
            extra = {name: [] for name in columns[2].values()}
        if len(fields) != width:
            raise ValueError(f"{where}: expected {width} fields as in the first row, got {len(fields)}")
        at, answer, others = columns
        board = _board(fields[at], shape, "puzzle", where)
        shape = grid_of(len(board))
        text = "" if answer is None else fields[answer]
        lines.append(line)
        puzzles.append(board)
        has_solution.append(bool(text))
        given.append(_board(text, shape, "solution", where) if text else np.zeros_like(board))
        for index, name in others.items():
            extra[name].append(fields[index])
    if not lines:
        raise ValueError(f"expected at least one puzzle in {path}, found none")
    boards, stated, known = np.stack(puzzles), np.stack(given), np.array(has_solution)
    try:
        solutions, counts = solve_many(boards, limit=2)
    except ValueError as error:  # a hostile board
        raise ValueError(f"{path}: {error} (boards are counted from 0)") from error
    if (counts == 0).any():
        clash = _clash(boards[int(np.argmax(counts == 0))], shape or grid_of(boards.shape[1]))
        _refuse(
            path,
            lines,
            counts == 0,
            "the puzzle has no solution" if clash is None else f"clues clash: {clash}",
        )
    _refuse(path, lines, known & ~is_solution(boards, stated), "the given solution does not solve the puzzle")
    if unique:
        _refuse(path, lines, counts > 1, "the puzzle has several solutions; expected exactly one")
    else:
        _refuse(path, lines, ~known & (counts > 1), "the puzzle has several solutions and none is given")
    solutions[known] = stated[known]
    return Puzzles(boards, solutions, np.array(lines), counts == 1, {name: tuple(c) for name, c in extra.items()})


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
