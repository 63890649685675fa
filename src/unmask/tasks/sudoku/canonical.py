"""The least relative of a board: one name for everything that Sudoku's symmetries make of it.

Symmetries: digits relabelled, bands and rows in a band permuted, stacks and columns in a stack permuted, and
the transpose where boxes are square. Bands hold `box_rows` rows, stacks hold `box_cols` columns. Shapes: N
boards, C cells, n lines, S symmetries of the geometry (digits apart), Q column permutations.
"""

from functools import cache
from itertools import permutations, product

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from unmask.tasks.sudoku.grid import as_boards, grid, grid_of
from unmask.tasks.sudoku.solver import is_solution


@cache
def line_orders(size: int, band: int) -> NDArray[np.int64]:
    """`[Q, n]` every order of the lines that keeps bands of `band` lines together."""
    inner = list(permutations(range(band)))
    orders = [
        [b * band + line for b, lines in zip(bands, inners, strict=True) for line in lines]
        for bands in permutations(range(size // band))
        for inners in product(inner, repeat=size // band)
    ]
    return np.array(orders, np.int64)


@cache
def _geometry(size: int) -> NDArray[np.int64]:
    """`[S, C]` every symmetry of the cells, as new[c] = old[cells[c]]."""
    shape = grid(size)
    rows, columns = line_orders(size, shape.box_rows), line_orders(size, shape.box_cols)
    cells = rows[:, None, :, None] * size + columns[None, :, None, :]
    if shape.box_rows == shape.box_cols:
        cells = np.stack([cells, cells.swapaxes(-1, -2)])
    return np.ascontiguousarray(cells.reshape(-1, shape.cells))


@njit(cache=True, nogil=True)
def _below_rows(square, band, first, second, order, label, chosen):
    """The order of rows that is least once the top two rows and the columns are fixed, into `chosen`.

    No search is left: the leading digits of all rows differ, so rows sort within bands by that digit, and
    bands by their first row.
    """
    n = square.shape[0]
    chosen[0], chosen[1] = first, second
    at = 2
    top = first // band
    for row in range(top * band, (top + 1) * band):
        if row not in (first, second):
            chosen[at] = row
            at += 1
    start = at
    for b in range(n // band):
        if b == top:
            continue
        for row in range(b * band, (b + 1) * band):
            spot = at
            while (
                spot > at - (row - b * band)
                and label[square[chosen[spot - 1], order[0]]] > label[square[row, order[0]]]
            ):
                chosen[spot] = chosen[spot - 1]
                spot -= 1
            chosen[spot] = row
            at += 1
        # Insert the sorted band among the sorted bands before it.
        spot = at - band
        while spot > start and label[square[chosen[spot - band], order[0]]] > label[square[chosen[spot], order[0]]]:
            for k in range(band):
                chosen[spot - band + k], chosen[spot + k] = chosen[spot + k], chosen[spot - band + k]
            spot -= band


@njit(cache=True, nogil=True)
def _keep_least(square, chosen, order, label, best, fresh):
    """Write the candidate into `best` if it is less; if `fresh`, in any case."""
    less = fresh
    for r in range(chosen.size):
        for c in range(chosen.size):
            digit = label[square[chosen[r], order[c]]]
            if not less and digit > best[r, c]:
                return
            if digit < best[r, c]:
                less = True
            if less:
                best[r, c] = digit


@njit(cache=True, nogil=True)
def _canonical(squares, band, orders, places, best):
    """The least relative of a complete grid, into `best [n, n]`. `squares [T, n, n]`: grid and transpose.

    Relabelling makes the first row 1..n whatever the row and the column order, so a candidate is (transpose,
    first row, second row of the same band, column order) and the second row rejects nearly all of them in a
    digit or two. `places [Q, n]`: the inverses of `orders`.
    """
    n = squares.shape[1]
    where = np.empty(n + 1, np.int64)  # column of each digit in the first row
    jump = np.empty(n, np.int64)  # column, in the first row, of the digit below each column
    label = np.empty(n + 1, np.int64)
    chosen = np.empty(n, np.int64)
    second = np.full(n, n, np.int64)  # least second row so far, labels from 0
    fresh = True
    for t in range(squares.shape[0]):
        square = squares[t]
        for i in range(n):
            for column in range(n):
                where[square[i, column]] = column
            for j in range(i // band * band, i // band * band + band):
                if i == j:
                    continue
                for column in range(n):
                    jump[column] = where[square[j, column]]
                for q in range(orders.shape[0]):
                    k = 0
                    while k < n and places[q, jump[orders[q, k]]] == second[k]:
                        k += 1
                    if k < n and places[q, jump[orders[q, k]]] > second[k]:
                        continue
                    if k < n:
                        second[:] = places[q][jump[orders[q]]]
                        fresh = True
                    for column in range(n):
                        label[square[i, column]] = places[q, column] + 1
                    _below_rows(square, band, i, j, orders[q], label, chosen)
                    _keep_least(square, chosen, orders[q], label, best, fresh)
                    fresh = False


@njit(cache=True, nogil=True)
def _canonical_many(boards, band, square_boxes, orders, places, result):
    n = orders.shape[1]
    squares = np.empty((2 if square_boxes else 1, n, n), np.int8)
    best = np.empty((n, n), np.int8)
    for i in range(boards.shape[0]):
        squares[0] = boards[i].reshape(n, n)
        if square_boxes:
            squares[1] = squares[0].T
        _canonical(squares, band, orders, places, best)
        result[i] = best.ravel()


@njit(cache=True, nogil=True)
def _canonical_puzzles(boards, geometry, result):
    cells = boards.shape[1]
    label = np.empty(cells + 1, np.int8)
    for i in range(boards.shape[0]):
        best = result[i]
        best[:] = cells  # above any digit
        for s in range(geometry.shape[0]):
            label[:] = 0
            names = 0
            less = False
            for c in range(cells):
                digit = boards[i, geometry[s, c]]
                if digit and label[digit] == 0:
                    names += 1
                    label[digit] = names
                value = label[digit] if digit else 0
                if not less and value > best[c]:
                    break
                if value < best[c]:
                    less = True
                if less:
                    best[c] = value


def canonical(solutions: ArrayLike) -> NDArray[np.int8]:
    """The lexicographically least relative of a complete grid: `[C]`, or `[N, C]` for a batch."""
    boards = as_boards(solutions)
    shape = grid_of(boards.shape[1])
    n = shape.size
    if not is_solution(boards, boards).all():
        raise ValueError("expected complete grids with every digit once in each unit; see `canonical_puzzle`")
    orders = line_orders(n, shape.box_cols)
    result = np.empty_like(boards)
    square = shape.box_rows == shape.box_cols
    _canonical_many(boards, shape.box_rows, square, orders, orders.argsort(axis=1), result)
    return result if np.ndim(solutions) == 2 else result[0]


def canonical_puzzle(puzzles: ArrayLike) -> NDArray[np.int8]:
    """The least relative of a 4 x 4 or 6 x 6 board with blanks (0, which sort first): `[C]` or `[N, C]`.

    Complete 4 x 4 and 6 x 6 grids fall into 2 and 49 classes only, so there the puzzle itself has to be
    named.
    """
    boards = as_boards(puzzles)
    size = grid_of(boards.shape[1]).size
    if size == 9:
        raise ValueError("expected 4 x 4 or 6 x 6 puzzles, got 9 x 9; use `canonical` on their solutions")
    result = np.empty_like(boards)
    _canonical_puzzles(boards, _geometry(size), result)
    return result if np.ndim(puzzles) == 2 else result[0]
