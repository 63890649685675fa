"""Puzzles of the playground: reading them, and the messages for invalid ones."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.report.playground.puzzles import DIFFICULTIES, EXAMPLES, BadPuzzle, random_puzzle, read_puzzle, read_rows
from unmask.tasks.sudoku.solver import count_solutions, is_solution

_, WIKIPEDIA, _, SMALL = EXAMPLES
FULL = "1234341221434321"


@pytest.mark.parametrize(
    ("text", "words", "cells"),
    [
        ("12345", "expected 81 characters (9×9) or 16 (4×4), got 5: 11 missing", ()),
        ("." * 82, "got 82: 1 too many", ()),
        ("", "got 0", ()),
        ("1" + "." * 40 + "x" + "." * 39, "got 'x' at row 5, column 6", (41,)),
        ("5" + "." * 15, "expected digits 1 to 4, and 0 or . for a blank, got '5' at row 1, column 1", (0,)),
        ("٣" + "." * 15, "got '٣'", (0,)),
        ("1..1" + "." * 12, "no solution: 1 stands twice in row 1", (0, 3)),
        ("1...1" + "." * 11, "1 stands twice in column 1", (0, 4)),
        ("1....1" + "." * 10, "1 stands twice in box 1", (0, 5)),
        ("12..|..3.|..4.|....", "has no solution, though no two clues clash", ()),
        (FULL, "got a full board", ()),
    ],
)
def test_invalid_puzzles_are_refused(text: str, words: str, cells: tuple[int, ...]) -> None:
    with pytest.raises(BadPuzzle) as caught:
        read_puzzle(text)
    assert words in str(caught.value) and caught.value.cells == cells


def test_several_solutions_are_named() -> None:
    # The four corners of a rectangle: two digits can change places.
    puzzle = FULL.replace("1", "0").replace("2", "0")
    with pytest.raises(BadPuzzle, match=r"several solutions: row 1, column 1 may be 1 or 2") as caught:
        read_puzzle(puzzle)
    assert caught.value.cells and all(puzzle[cell] == "0" for cell in caught.value.cells)
    for digit in "12":
        assert count_solutions(read_board(digit + puzzle[1:])) >= 1
    with pytest.raises(BadPuzzle, match="several solutions"):
        read_puzzle("." * 81)


def read_board(text: str) -> np.ndarray:
    return np.array([int(digit) for digit in text], np.int8)


def test_a_drawn_grid_is_read_like_a_line() -> None:
    drawn = "1 2 | . .\n. . | . .\n----+----\n4 . | 3 2\r\n_ _ | _ _\n"
    assert read_puzzle(drawn).text == SMALL.puzzle


@pytest.mark.parametrize(("size", "difficulty"), [(s, d) for s, levels in DIFFICULTIES.items() for d in levels])
def test_random_puzzles_have_one_solution_and_the_requested_clues(size: int, difficulty: str) -> None:
    puzzle = random_puzzle(size, difficulty, 5)
    low, high = map(int, DIFFICULTIES[size][difficulty].split("-"))
    assert low <= (puzzle.board > 0).sum() <= high and puzzle.size == size
    assert count_solutions(puzzle.board) == 1 and is_solution(puzzle.board, puzzle.solution).all()


def test_files_are_read_row_by_row() -> None:
    header = read_rows(f"\ufeffid,puzzle,solution\r\n7,{SMALL.puzzle},{FULL}\r\n\r\n8,{WIKIPEDIA.puzzle},\r\n".encode())
    assert header.rows == ((2, SMALL.puzzle), (4, WIKIPEDIA.puzzle)) and header.skipped == 0
    dots = read_rows(f"{SMALL.puzzle.replace('0', '.')}\nabc\n123\n{SMALL.puzzle}".encode())
    assert dots.rows == ((1, SMALL.puzzle), (4, SMALL.puzzle))
    assert dots.skipped == 2 and dots.reason.startswith("line 2: expected 81 characters")
    assert len(read_rows((SMALL.puzzle + "\n").encode() * 50).rows) == 20
