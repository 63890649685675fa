"""4×4 boards with all of their solutions: puzzles of the test split, and boards with several solutions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from unmask.tasks.sudoku.solver import is_solution
from unmask.tasks.sudoku.task import SudokuTask

Board = tuple[Int[Tensor, "L"], Int[Tensor, "M L"]]
"""A canvas and all of its solutions."""


def unique_boards(count: int, clues: str, seed: int = 0) -> Iterator[Board]:
    """Puzzles of the test split, with their only solution."""
    canvas = SudokuTask.generate(count, 4, clues, "test", seed).canvas(range(count))
    for tokens, target in zip(canvas.tokens, canvas.truth, strict=True):
        yield tokens, target[None]


def ambiguous_boards(clues: int, most: int, seed: int = 0) -> Iterator[Board]:
    """Different boards with so many clues and 2 to ``most`` solutions, without end unless there are no more."""
    rng = np.random.default_rng(seed)
    grids, seen = all_grids(), set()
    for _ in range(100_000):
        shown = np.isin(np.arange(16), rng.permutation(16)[:clues])
        board = np.where(shown, grids[rng.integers(len(grids))], 0)
        truths = grids[(grids == board)[:, shown].all(1)]
        if 2 <= len(truths) <= most and board.tobytes() not in seen:
            seen.add(board.tobytes())
            yield torch.from_numpy(board.astype(np.int64)), torch.from_numpy(truths.astype(np.int64))


@cache
def all_grids() -> NDArray[np.int8]:
    """The 288 complete boards, ``[288, 16]``."""
    rows = np.array(list(itertools.permutations(range(1, 5))), np.int8)
    # Two rows make a band when their boxes are complete; a grid is two bands.
    couples = [(a, b) for a, b in itertools.product(rows, rows) if set(a[:2]).isdisjoint(b[:2])]
    bands = np.array([np.concatenate(pair) for pair in couples])
    grids = np.array([np.concatenate(pair) for pair in itertools.product(bands, bands)])
    return grids[is_solution(np.zeros_like(grids), grids)]
