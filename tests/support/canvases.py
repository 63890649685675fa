"""4×4 Sudoku canvases with a given number of hidden cells."""

from __future__ import annotations

import numpy as np

from unmask.decoding.protocols import Canvas
from unmask.tasks.sudoku.generate import generate
from unmask.tasks.sudoku.task import SudokuTask


def canvases(count: int, blanks: int, seed: int = 0) -> Canvas:
    """4×4 puzzles with exactly so many blanks: some of a harder puzzle's are filled in."""
    puzzles, solutions = generate(count, size=4, clues=8, seed=seed)
    for puzzle, solution in zip(puzzles, solutions, strict=True):
        extra = np.flatnonzero(puzzle == 0)[blanks:]
        puzzle[extra] = solution[extra]
    return SudokuTask(puzzles, solutions).canvas(range(count))
