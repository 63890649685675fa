"""Sudoku, 4 x 4, 6 x 6 and 9 x 9: geometry, solver, generator, symmetries and splits, files, the expert."""

from unmask.tasks.sudoku.canonical import canonical, canonical_puzzle
from unmask.tasks.sudoku.files import Puzzles, read_csv, write_csv
from unmask.tasks.sudoku.generate import RAO_CLUES, generate
from unmask.tasks.sudoku.grid import Grid, format_board, grid, grid_of, parse, pretty
from unmask.tasks.sudoku.solver import count_solutions, is_solution, solve, solve_many
from unmask.tasks.sudoku.symmetry import SPLITS, Symmetries, apply, random_symmetries, split_of
from unmask.tasks.sudoku.techniques import FALLBACK, TECHNIQUES, ExpertOrder, cell_classes, expert_order, hardest

__all__ = [
    "FALLBACK",
    "RAO_CLUES",
    "SPLITS",
    "TECHNIQUES",
    "ExpertOrder",
    "Grid",
    "Puzzles",
    "Symmetries",
    "apply",
    "canonical",
    "canonical_puzzle",
    "cell_classes",
    "count_solutions",
    "expert_order",
    "format_board",
    "generate",
    "grid",
    "grid_of",
    "hardest",
    "is_solution",
    "parse",
    "pretty",
    "random_symmetries",
    "read_csv",
    "solve",
    "solve_many",
    "split_of",
    "write_csv",
]
