"""Exact Sudoku solver: bitmasks, naked and hidden singles, then the most constrained cell, depth first.

Symbols in the kernels: `board [C]` int8; `home [C, 3]` the units of a cell; `units [3n, n]` the cells of a
unit; `used [3n]` the digits already placed in each unit, digit d as bit d - 1; `trail [C]` cells in the order
in which they were placed, so that a wrong guess is undone by popping. Search is deterministic: lowest digit
first.
"""

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from unmask.tasks.sudoku.grid import as_board, as_boards, grid_of

# Guesses allowed since the last solution found. Hard puzzles need hundreds; only hostile boards need more.
MAX_GUESSES = 1_000_000


@njit(cache=True, nogil=True)
def bit_count(mask):
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@njit(cache=True, nogil=True)
def lowest_digit(mask):
    digit = 1
    while not mask & 1:
        mask >>= 1
        digit += 1
    return digit


@njit(cache=True, nogil=True)
def candidates(cell, used, home, full):
    return full & ~(used[home[cell, 0]] | used[home[cell, 1]] | used[home[cell, 2]])


@njit(cache=True, nogil=True)
def put(cell, digit, board, used, home):
    bit = 1 << (digit - 1)
    board[cell] = digit
    used[home[cell, 0]] |= bit
    used[home[cell, 1]] |= bit
    used[home[cell, 2]] |= bit


@njit(cache=True, nogil=True)
def clear(cell, board, used, home):
    bit = ~(1 << (board[cell] - 1))
    board[cell] = 0
    used[home[cell, 0]] &= bit
    used[home[cell, 1]] &= bit
    used[home[cell, 2]] &= bit


@njit(cache=True, nogil=True)
def occupy(board, used, home):
    """Fill `used` from the board; False when two equal digits share a unit."""
    used[:] = 0
    for cell in range(board.size):
        if board[cell]:
            bit = 1 << (board[cell] - 1)
            if (used[home[cell, 0]] | used[home[cell, 1]] | used[home[cell, 2]]) & bit:
                return False
            put(cell, board[cell], board, used, home)
    return True


@njit(cache=True, nogil=True)
def _place_naked(board, used, home, full, trail, placed):
    """One pass over naked singles: (consistent, placed, the blank with the fewest candidates or -1)."""
    before = placed
    best, fewest = -1, board.size
    for cell in range(board.size):
        if board[cell]:
            continue
        mask = candidates(cell, used, home, full)
        if mask == 0:
            return False, placed, -1
        if mask & (mask - 1) == 0:
            put(cell, lowest_digit(mask), board, used, home)
            trail[placed] = cell
            placed += 1
        elif placed == before:
            count = bit_count(mask)
            if count < fewest:
                best, fewest = cell, count
    return True, placed, best


@njit(cache=True, nogil=True)
def _place_hidden(board, used, home, units, trail, placed):
    """One pass over hidden singles: (consistent, placed)."""
    n = units.shape[1]
    full = (1 << n) - 1
    for unit in range(units.shape[0]):
        once, twice = 0, 0
        for k in range(n):
            cell = units[unit, k]
            if board[cell] == 0:
                mask = candidates(cell, used, home, full)
                twice |= once & mask
                once |= mask
        if once | used[unit] != full:
            return False, placed
        single = once & ~twice
        if single == 0:
            continue
        for k in range(n):
            cell = units[unit, k]
            if board[cell] == 0:
                mask = candidates(cell, used, home, full) & single
                if mask == 0:
                    continue
                if mask & (mask - 1):
                    return False, placed
                put(cell, lowest_digit(mask), board, used, home)
                trail[placed] = cell
                placed += 1
    return True, placed


@njit(cache=True, nogil=True)
def propagate(board, used, home, units, trail, placed):
    """Place singles until none is left: (consistent, placed, cell to guess or -1 when the board is full)."""
    full = (1 << units.shape[1]) - 1
    while True:
        before = placed
        consistent, placed, best = _place_naked(board, used, home, full, trail, placed)
        if not consistent:
            return False, placed, -1
        if placed > before:
            continue
        if best < 0:
            return True, placed, -1
        consistent, placed = _place_hidden(board, used, home, units, trail, placed)
        if not consistent:
            return False, placed, -1
        if placed == before:
            return True, placed, best


@njit(cache=True, nogil=True)
def next_random(state):
    """splitmix64: the same numbers on every machine and in every numba version. `state` is uint64 [1]."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def below(bound, state):
    """A random integer in [0, bound)."""
    return np.int64(next_random(state) % np.uint64(bound))


@njit(cache=True, nogil=True)
def search(board, used, home, units, limit, guesses, state, first):
    """Count solutions up to `limit`, the first one into `first`; -1 when `guesses` run out.

    Digits are tried from the lowest, or in an order drawn from `state`, unless it is empty. `board` and `used` come back unchanged.
    """
    full = (1 << units.shape[1]) - 1
    trail = np.empty(board.size, np.int64)
    guess = np.empty(board.size, np.int64)  # the cell guessed at each depth,
    mark = np.empty(board.size, np.int64)  # the length of the trail before the guess,
    rest = np.empty(board.size, np.int64)  # the digits not tried yet
    found, depth, left = 0, 0, guesses
    consistent, placed, cell = propagate(board, used, home, units, trail, 0)
    while True:
        if consistent and cell < 0:
            if found == 0:
                first[:] = board
            found += 1
            left = guesses
            if found == limit:
                break
        elif consistent:
            guess[depth], mark[depth], rest[depth] = cell, placed, candidates(cell, used, home, full)
            depth += 1
        while depth and rest[depth - 1] == 0:
            depth -= 1
        if depth == 0:
            break
        left -= 1
        if left < 0:
            found = -1
            break
        top = depth - 1
        while placed > mark[top]:
            placed -= 1
            clear(trail[placed], board, used, home)
        mask = rest[top]
        if state.size:
            for _ in range(below(bit_count(mask), state)):
                mask &= mask - 1
        digit = lowest_digit(mask)
        rest[top] &= ~(1 << (digit - 1))
        put(guess[top], digit, board, used, home)
        trail[placed] = guess[top]
        consistent, placed, cell = propagate(board, used, home, units, trail, placed + 1)
    while placed:
        placed -= 1
        clear(trail[placed], board, used, home)
    return found


@njit(cache=True, nogil=True)
def _search_many(boards, home, units, limit, guesses, solutions, counts):
    used = np.zeros(units.shape[0], np.int64)
    ascending = np.zeros(0, np.uint64)
    board = np.empty(boards.shape[1], np.int8)
    for i in range(boards.shape[0]):
        board[:] = boards[i]
        if occupy(board, used, home):
            counts[i] = search(board, used, home, units, limit, guesses, ascending, solutions[i])
        else:
            counts[i] = 0


def _run(boards: ArrayLike, limit: int, max_guesses: int) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    array = as_boards(boards)
    if limit < 1:
        raise ValueError(f"expected a limit of at least 1 solution, got {limit}")
    shape = grid_of(array.shape[1])
    solutions = np.zeros_like(array)
    counts = np.zeros(len(array), np.int64)
    _search_many(array, shape.home, shape.units, limit, max_guesses, solutions, counts)
    if (counts < 0).any():
        raise ValueError(
            f"gave up on board {int(np.argmax(counts < 0))} after {max_guesses} guesses without a solution; "
            "raise max_guesses to search on"
        )
    return solutions, counts


def solve(board: ArrayLike, max_guesses: int = MAX_GUESSES) -> NDArray[np.int8] | None:
    """The first solution `[C]` (lowest digits first in search order), or None when there is none."""
    solutions, counts = _run(as_board(board), 1, max_guesses)
    return solutions[0] if counts[0] else None


def count_solutions(board: ArrayLike, limit: int = 2, max_guesses: int = MAX_GUESSES) -> int:
    """The number of solutions, counted up to `limit`."""
    return int(_run(as_board(board), limit, max_guesses)[1][0])


def solve_many(
    boards: ArrayLike, limit: int = 2, max_guesses: int = MAX_GUESSES
) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Solutions `[N, C]` (blank where there is none) and their number `[N]`, counted up to `limit`."""
    return _run(boards, limit, max_guesses)


def is_solution(puzzles: ArrayLike, solutions: ArrayLike) -> NDArray[np.bool_]:
    """Whether each solution `[N, C]` is a complete valid grid that keeps the clues of its puzzle, `[N]`."""
    clues, boards = as_boards(puzzles), as_boards(solutions)
    if clues.shape != boards.shape:
        raise ValueError(f"expected solutions of the puzzles' shape {clues.shape}, got {boards.shape}")
    shape = grid_of(boards.shape[1])
    valid = (np.sort(boards[:, shape.units], axis=-1) == np.arange(1, shape.size + 1)).all((1, 2))
    return valid & ((clues == 0) | (clues == boards)).all(1)
