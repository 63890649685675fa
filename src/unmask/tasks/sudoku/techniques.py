"""The human expert: the order in which a person with pencil marks would fill a Sudoku.

Memoryless: the state is the board alone, and the candidates are taken from it afresh after every placement.
At each state the techniques are scanned from the easiest; the first instance in row-major order is carried
out. Singles place a digit. The others only remove candidates, after which the scan starts again from the
easiest. The class of a placement is the hardest technique used since the placement before it. Where nothing
applies, the blank cell with the fewest candidates left (row-major ties) gets its digit from the solution:
class `fallback`.

Shapes: N puzzles, C cells, K = the most blanks of a puzzle in the batch. Symbols of the kernels: see
`eliminations`.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from unmask.tasks.sudoku.eliminations import locked_candidate, naked_pair, naked_triple, unique_rectangle, xy_wing
from unmask.tasks.sudoku.grid import Grid, as_boards, grid_of
from unmask.tasks.sudoku.solver import bit_count, candidates, is_solution, lowest_digit, occupy, put, solve_many

TECHNIQUES = (
    "naked_single",
    "hidden_single",
    "naked_pair",
    "naked_triple",
    "locked_candidate",
    "xy_wing",
    "unique_rectangle",
    "fallback",
)
FALLBACK = len(TECHNIQUES) - 1


@dataclass(frozen=True)
class ExpertOrder:
    """`order [N, K]` cells as placed, `technique [N, K]` index into `TECHNIQUES` (both padded with -1),
    `fallbacks [N]` how often no technique applied."""

    order: NDArray[np.int16]
    technique: NDArray[np.int8]
    fallbacks: NDArray[np.int64]


@njit(cache=True, nogil=True)
def _pencil(board, used, home, units, cand):
    full = (1 << units.shape[1]) - 1
    for cell in range(board.size):
        cand[cell] = 0 if board[cell] else candidates(cell, used, home, full)


@njit(cache=True, nogil=True)
def _hidden(cand, units, single):
    """`single [3n]`: the digits with exactly one place in each unit."""
    for unit in range(units.shape[0]):
        once, twice = 0, 0
        for k in range(units.shape[1]):
            mask = cand[units[unit, k]]
            twice |= once & mask
            once |= mask
        single[unit] = once & ~twice


@njit(cache=True, nogil=True)
def _find_single(cand, home, units, single):
    """The first naked single, else the first hidden single: (cell, digit, technique), cell -1 for none."""
    for cell in range(cand.size):
        if cand[cell] and cand[cell] & (cand[cell] - 1) == 0:
            return cell, lowest_digit(cand[cell]), 0
    _hidden(cand, units, single)
    for cell in range(cand.size):
        mask = cand[cell] & (single[home[cell, 0]] | single[home[cell, 1]] | single[home[cell, 2]])
        if mask:
            return cell, lowest_digit(mask), 1
    return -1, 0, -1


@njit(cache=True, nogil=True)
def _eliminate(cand, home, units, related, hardest):
    """One instance of the easiest technique, up to `hardest`, that removes a candidate: its index or -1."""
    if hardest >= 2 and naked_pair(cand, home, units, related):
        return 2
    if hardest >= 3 and naked_triple(cand, home, units, related):
        return 3
    if hardest >= 4 and locked_candidate(cand, home, units, related):
        return 4
    if hardest >= 5 and xy_wing(cand, home, units, related):
        return 5
    if hardest >= 6 and unique_rectangle(cand, home, units, related):
        return 6
    return -1


@njit(cache=True, nogil=True)
def _expert(puzzles, solutions, unique, home, units, related, order, technique):
    cells = puzzles.shape[1]
    board = np.empty(cells, np.int8)
    used = np.empty(units.shape[0], np.int64)
    single = np.empty(units.shape[0], np.int64)
    cand = np.empty(cells, np.int64)
    for i in range(puzzles.shape[0]):
        board[:] = puzzles[i]
        occupy(board, used, home)
        blanks = 0
        for cell in range(cells):
            blanks += board[cell] == 0
        for step in range(blanks):
            _pencil(board, used, home, units, cand)
            hardest = 0
            while True:
                cell, digit, kind = _find_single(cand, home, units, single)
                if cell >= 0:
                    hardest = max(hardest, kind)
                    break
                kind = _eliminate(cand, home, units, related, 6 if unique[i] else 5)
                hardest = max(hardest, kind)
                if kind < 0:
                    hardest = 7
                    fewest = 99
                    for c in range(cells):
                        if board[c] == 0 and bit_count(cand[c]) < fewest:
                            cell, fewest = c, bit_count(cand[c])
                    digit = solutions[i, cell]
                    break
            put(cell, digit, board, used, home)
            order[i, step] = cell
            technique[i, step] = hardest


@njit(cache=True, nogil=True)
def _classify(cand, home, single, level, classes):
    """Give the singles among the unclassified blanks the class `level`; a naked single at level 1 has class 0."""
    for cell in range(cand.size):
        if classes[cell] < 7 or cand[cell] == 0:
            continue
        naked = cand[cell] & (cand[cell] - 1) == 0
        if naked or cand[cell] & (single[home[cell, 0]] | single[home[cell, 1]] | single[home[cell, 2]]):
            classes[cell] = 0 if naked and level == 1 else level


@njit(cache=True, nogil=True)
def _classes(boards, home, units, related, classes):
    cells = boards.shape[1]
    board = np.empty(cells, np.int8)
    used = np.empty(units.shape[0], np.int64)
    single = np.empty(units.shape[0], np.int64)
    cand = np.empty(cells, np.int64)
    for i in range(boards.shape[0]):
        board[:] = boards[i]
        used[:] = 0
        for cell in range(cells):  # boards of a model may clash: `occupy` would stop at the first clash
            if board[cell]:
                put(cell, board[cell], board, used, home)
        _pencil(board, used, home, units, cand)
        for cell in range(cells):
            classes[i, cell] = -1 if board[cell] else 7
        for level in range(1, 7):
            while level > 1 and _eliminate(cand, home, units, related, level) >= 0:
                pass
            _hidden(cand, units, single)
            _classify(cand, home, single, level, classes[i])


def _related(shape: Grid) -> NDArray[np.bool_]:
    related = np.zeros((shape.cells, shape.cells), bool)
    np.put_along_axis(related, shape.peers, True, axis=1)
    return related


def expert_order(puzzles: ArrayLike, solutions: ArrayLike | None = None) -> ExpertOrder:
    """The order in which the expert fills each puzzle `[N, C]`, with the class of every placement.

    Puzzles need exactly one solution, unless `solutions [N, C]` say which one is meant; the unique rectangle,
    which relies on uniqueness, is then left out for puzzles that have several.
    """
    boards = as_boards(puzzles)
    shape = grid_of(boards.shape[1])
    found, counts = solve_many(boards, limit=2)
    if solutions is not None:
        found = as_boards(solutions)
        if not is_solution(boards, found).all():
            wrong = int(np.argmin(is_solution(boards, found)))
            raise ValueError(f"expected a complete, valid grid that agrees with the clues, solution {wrong} is not")
    elif (counts != 1).any():
        wrong = int(np.argmax(counts != 1))
        raise ValueError(
            f"expected puzzles with exactly one solution, puzzle {wrong} has "
            + ("none" if counts[wrong] == 0 else "several; pass `solutions` to say which one is meant")
        )
    longest = int((boards == 0).sum(1).max(initial=0))
    order = np.full((len(boards), longest), -1, np.int16)
    technique = np.full((len(boards), longest), -1, np.int8)
    _expert(boards, found, counts == 1, shape.home, shape.units, _related(shape), order, technique)
    return ExpertOrder(order, technique, (technique == FALLBACK).sum(1))


def hardest(puzzles: ArrayLike, solutions: ArrayLike | None = None) -> NDArray[np.int8]:
    """The hardest technique that each puzzle needs `[N]`, an index into `TECHNIQUES`; -1 for a full board."""
    return expert_order(puzzles, solutions).technique.max(axis=1, initial=-1)


def cell_classes(boards: ArrayLike) -> NDArray[np.int8]:
    """By which technique each cell could be placed in this state: `[C]` for one board, `[N, C]` for a batch.

    0: naked single, 1: hidden single; k >= 2: a single once techniques 2..k have removed all the candidates
    that they can; `FALLBACK` for the other blanks; -1 for filled cells. The board may hold mistakes; the unique
    rectangle takes its solution to be the only one.
    """
    array = as_boards(boards)
    shape = grid_of(array.shape[1])
    classes = np.empty_like(array)
    _classes(array, shape.home, shape.units, _related(shape), classes)
    return classes if np.ndim(boards) == 2 else classes[0]
