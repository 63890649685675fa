"""The playground: a local page on which orders race over one Sudoku puzzle. Standard library only."""
