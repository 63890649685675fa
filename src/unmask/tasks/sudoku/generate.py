"""Puzzles with one solution: a random full grid, cells blanked at random while the solution stays unique.

Puzzle i depends on `(seed, i)` only: each has its own splitmix64 stream, so any stretch of a corpus can be
made again with `start=`, in any number of pieces, on any machine. The kernel releases the GIL.

Full grids come from a randomised search, which reaches every grid but not all equally often.
"""

from collections.abc import Mapping

import numpy as np
from numba import njit
from numpy.typing import NDArray

from unmask.tasks.sudoku.grid import grid
from unmask.tasks.sudoku.solver import MAX_GUESSES, below, candidates, clear, next_random, occupy, put, search

# A count, an inclusive range (low, high), the name of a histogram, or a histogram {clues: weight}.
Clues = int | tuple[int, int] | str | Mapping[int, int | float]

# The fewest clues with which a unique solution is possible.
FEWEST_CLUES = {4: 4, 6: 8, 9: 17}

# Clue counts of Rao's nine million puzzles, per 10,000: counted on 5,000 of them, smoothed by (1, 2, 1) / 4.
# fmt: off
RAO_CLUES: Mapping[int, int | float] = {
    25: 3, 26: 10, 27: 36, 28: 85, 29: 155, 30: 254, 31: 358, 32: 452, 33: 547, 34: 627, 35: 690, 36: 725,
    37: 700, 38: 663, 39: 623, 40: 568, 41: 522, 42: 475, 43: 422, 44: 365, 45: 313, 46: 271, 47: 216, 48: 163,
    49: 140, 50: 120, 51: 94, 52: 81, 53: 68, 54: 52, 55: 43, 56: 32, 57: 23, 58: 22, 59: 21, 60: 16,
    61: 11, 62: 9, 63: 6, 64: 5, 65: 5, 66: 6, 67: 6, 68: 4, 69: 1,
}
# fmt: on

# Half of the puzzles as Rao's, half with 23 to 32 clues: the range in which more than singles is needed.
WIDE_CLUES: Mapping[int, float] = {
    clues: RAO_CLUES.get(clues, 0.0) + (1000.0 if 23 <= clues <= 32 else 0.0) for clues in range(23, 70)
}

# As a clue count: so few that no clue can go. One pass of blanking leaves 24 on 9 x 9; where RETURNED blanks get their clue back
# and others go instead, and such a round is kept if it ends with no more clues, ROUNDS of them leave about 21.
MINIMAL = 0
ROUNDS = 40
RETURNED = 2

# Half of the puzzles minimal, half "wide": singles alone solve a third of the first, most of the second.
HARD_CLUES: Mapping[int, float] = {MINIMAL: sum(WIDE_CLUES.values()), **WIDE_CLUES}

HISTOGRAMS: dict[str, Mapping[int, int | float]] = {
    "rao": RAO_CLUES,
    "wide": WIDE_CLUES,
    "minimal": {MINIMAL: 1},
    "hard": HARD_CLUES,
}
DEFAULT_CLUES: dict[int, Clues] = {4: (5, 10), 6: (10, 24), 9: "rao"}


@njit(cache=True, nogil=True)
def _shuffle(array, state):
    for i in range(array.size - 1, 0, -1):
        j = below(i + 1, state)
        array[i], array[j] = array[j], array[i]


@njit(cache=True, nogil=True)
def _full_grid(solution, board, used, home, units, state):
    n = units.shape[1]
    digits = np.arange(1, n + 1)
    used[:] = 0
    board[:] = 0
    _shuffle(digits, state)
    # Starting from any unit, not always the first row, blurs the row-major habit of the search.
    unit = below(units.shape[0], state)
    for k in range(n):
        put(units[unit, k], digits[k], board, used, home)
    return search(board, used, home, units, 1, 10_000, state, solution) == 1


@njit(cache=True, nogil=True)
def _dig(board, used, home, units, order, target, scratch):
    """Blank cells of `board` in the given order while the solution stays unique; returns clues left.

    One pass is enough: a cell that cannot go now cannot go once fewer clues are left.
    """
    n = units.shape[1]
    full = (1 << n) - 1
    clues = np.count_nonzero(board)
    ascending = np.zeros(0, np.uint64)
    for k in range(order.size):
        if clues == target:
            break
        cell = order[k]
        digit = board[cell]
        bit = 1 << (digit - 1)
        clear(cell, board, used, home)
        others = candidates(cell, used, home, full) & ~bit
        if others:
            # A hidden single is as good as a naked one: another digit here would leave none for the unit.
            for h in range(3):
                single = True
                for j in range(n):
                    peer = units[home[cell, h], j]
                    if peer != cell and board[peer] == 0 and candidates(peer, used, home, full) & bit:
                        single = False
                        break
                if single:
                    others = 0
                    break
        unique = True
        other = 1
        while others and unique:
            if others & 1:
                put(cell, other, board, used, home)
                unique = search(board, used, home, units, 1, MAX_GUESSES, ascending, scratch) == 0
                clear(cell, board, used, home)
            others >>= 1
            other += 1
        if unique:
            clues -= 1
        else:
            put(cell, digit, board, used, home)
    return clues


@njit(cache=True, nogil=True)
def _dig_deeper(puzzle, solution, work, home, units, order, state):
    """Exchange clues of a minimal `puzzle` for others, in place, and keep what has no more of them. `work`: `used`, two boards."""
    used, board, scratch = work
    clues = np.count_nonzero(puzzle)
    for _ in range(ROUNDS):
        board[:] = puzzle
        _shuffle(order, state)
        returned = 0
        for k in range(order.size):
            # Clues that return stand last in the order: they go again only if the others cannot.
            if puzzle[order[k]] == 0 and returned < RETURNED:
                returned += 1
                board[order[k]] = solution[order[k]]
                order[k], order[order.size - returned] = order[order.size - returned], order[k]
        occupy(board, used, home)
        left = _dig(board, used, home, units, order[board[order] > 0], MINIMAL, scratch)
        if left <= clues:
            clues = left
            puzzle[:] = board


@njit(cache=True, nogil=True)
def _generate(seed, start, home, units, clues, max_tries, puzzles, solutions):
    """Fill `puzzles` and `solutions`; returns the clue target that could not be reached, or -1.

    `clues`: the possible clue counts, and their cumulative probabilities.
    """
    targets, cumulative = clues
    cells = home.shape[0]
    used = np.zeros(units.shape[0], np.int64)
    board = np.zeros(cells, np.int8)
    scratch = np.zeros(cells, np.int8)
    order = np.arange(cells)
    state = np.zeros(1, np.uint64)
    for i in range(puzzles.shape[0]):
        # Hash the seed before the index enters, so that (seed, i + 1) and (seed + 1, i) are unrelated.
        state[0] = seed
        state[0] = next_random(state) ^ np.uint64(start + i)
        state[0] = next_random(state)
        order[:] = np.arange(cells)
        draw = np.float64(next_random(state) >> np.uint64(11)) / 9007199254740992.0
        target = targets[min(np.searchsorted(cumulative, draw, side="right"), targets.size - 1)]
        tries = 0
        while True:
            if tries == max_tries:
                return target
            tries += 1
            if not _full_grid(solutions[i], board, used, home, units, state):
                continue
            used[:] = 0
            for cell in range(cells):
                put(cell, solutions[i, cell], board, used, home)
            _shuffle(order, state)
            left = _dig(board, used, home, units, order, target, scratch)
            if left == target or target == MINIMAL:
                puzzles[i] = board
                if target == MINIMAL:
                    _dig_deeper(puzzles[i], solutions[i], (used, board, scratch), home, units, order, state)
                break
    return -1


def clue_table(clues: Clues, size: int) -> dict[int, float]:
    """Clue counts and their probabilities, from a count, an inclusive range, a name or a histogram."""
    if isinstance(clues, str):
        if clues not in HISTOGRAMS:
            raise ValueError(f"expected a clue histogram among {sorted(HISTOGRAMS)}, got {clues!r}")
        clues = HISTOGRAMS[clues]
    if isinstance(clues, Mapping):
        weights = {int(k): float(w) for k, w in sorted(clues.items()) if w != 0}
    elif isinstance(clues, tuple | list):
        if len(clues) != 2 or clues[0] > clues[1]:
            raise ValueError(f"expected clues as (low, high) with low <= high, got {clues!r}")
        weights = dict.fromkeys(range(int(clues[0]), int(clues[1]) + 1), 1.0)
    else:
        weights = {int(clues): 1.0}
    total = sum(weights.values())
    if not weights or min(weights.values()) < 0 or not 0 < total < float("inf"):
        raise ValueError("expected a clue histogram with positive finite weights")
    low, high = FEWEST_CLUES[size], size * size
    counts = set(weights) - {MINIMAL}
    fewest, most = min(counts, default=low), max(counts, default=low)
    if fewest < low or most > high:
        raise ValueError(
            f"expected {low} to {high} clues for size {size}, got {fewest} to {most}; "
            f"no {size} x {size} puzzle with fewer than {low} clues has a unique solution"
        )
    return {k: w / total for k, w in weights.items()}


def generate(
    count: int,
    size: int = 9,
    clues: Clues | None = None,
    seed: int = 0,
    start: int = 0,
    max_tries: int = 2000,
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Puzzles `start .. start + count - 1` of the corpus `seed`, `[N, C]`, and their solutions `[N, C]`.

    `clues`: a count, an inclusive range `(low, high)`, a histogram `{clues: weight}` or its name ("rao"). A count of `MINIMAL`
    blanks cells until no clue can go.
    A puzzle whose clue target is not reached within `max_tries` full grids raises ValueError.
    """
    shape = grid(size)
    table = clue_table(DEFAULT_CLUES[size] if clues is None else clues, size)
    for name, value in (("count", count), ("seed", seed), ("start", start)):
        if not 0 <= value < 2**63:
            raise ValueError(f"expected 0 <= {name} < 2**63, got {value}")
    targets = np.array(list(table), np.int64)
    cumulative = np.cumsum(list(table.values()))
    puzzles = np.zeros((count, shape.cells), np.int8)
    solutions = np.zeros_like(puzzles)
    missed = _generate(
        np.uint64(seed), start, shape.home, shape.units, (targets, cumulative), max_tries, puzzles, solutions
    )
    if missed >= 0:
        raise ValueError(
            f"no {size} x {size} puzzle with {missed} clues in {max_tries} tries; so few clues are rare: "
            "ask for more clues or raise max_tries"
        )
    return puzzles, solutions
