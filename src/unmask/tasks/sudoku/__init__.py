"""Sudoku, 4 x 4, 6 x 6 and 9 x 9: geometry, solver, generator, symmetries and splits, files, the expert."""
