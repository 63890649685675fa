"""Training canvases: generated puzzles of the training split, under a fresh symmetry each time they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from unmask.decoding.protocols import Canvas
from unmask.tasks.sudoku.generate import DEFAULT_CLUES, HISTOGRAMS, clue_table, generate
from unmask.tasks.sudoku.grid import grid
from unmask.tasks.sudoku.symmetry import SPLITS, Symmetries, apply, random_symmetries, split_of

PATIENCE = 200
"""Puzzles looked at for each one wanted, before a split is found to be too small."""


@dataclass(frozen=True)
class SudokuData:
    """The first ``puzzles`` of a corpus that fall into a ``split``. ``clues``: "rao", "wide", or a range such as "30-40".

    ``augment`` draws digits, bands, rows, stacks, columns and transposition anew each time a puzzle is seen.
    """

    size: int = 9
    puzzles: int = 20_000
    clues: str | None = None
    split: str = "train"
    augment: bool = True
    seed: int = 0
    kind: Literal["sudoku"] = "sudoku"

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {self.split!r}")
        if self.puzzles < 1:
            raise ValueError(f"expected at least one puzzle, got puzzles = {self.puzzles}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be in 0 .. 2**63 - 1, got {self.seed}")
        grid(self.size)  # refuses a size that is not 4, 6 or 9
        clues = self.clue_range or DEFAULT_CLUES[self.size]
        if isinstance(clues, str) and clues not in HISTOGRAMS:
            raise ValueError(f"clues must be {', '.join(HISTOGRAMS)} or a range such as 30-40, got {self.clues!r}")
        clue_table(clues, self.size)

    @property
    def clue_range(self) -> str | tuple[int, int] | None:
        low, dash, high = (self.clues or "").partition("-")
        high = high if dash else low
        return (int(low), int(high)) if low.isdecimal() and high.isdecimal() else self.clues

    @cached_property
    def boards(self) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """The puzzles and their solutions, ``[N, cells]`` each: the first of the corpus that fall into the split."""
        kept: list[tuple[NDArray[np.int8], NDArray[np.int8]]] = []
        count, start = 0, 0
        while count < self.puzzles:
            # A split holds a twentieth of the corpus or more, unless there are so few puzzles that it holds none at all.
            if start > PATIENCE * self.puzzles + 20_000:
                raise ValueError(
                    f"only {count} of {self.puzzles} puzzles with clues {self.clues} fall into the {self.split} split: "
                    f"there are too few such {self.size}x{self.size} puzzles; widen the range of clues"
                )
            ask = max(256, self.puzzles - count)
            puzzles, solutions = generate(ask, self.size, self.clue_range, seed=self.seed, start=start)
            inside = split_of(puzzles, solutions, self.size) == SPLITS.index(self.split)
            kept.append((puzzles[inside], solutions[inside]))
            count, start = count + int(inside.sum()), start + ask
        puzzles, solutions = (np.concatenate(part)[: self.puzzles] for part in zip(*kept, strict=True))
        return puzzles, solutions

    def __call__(self, step: int, batch: int) -> Canvas:
        """The canvases of a training step: a function of the step and the seed alone."""
        puzzles, solutions = self.boards
        rows = (np.arange(batch) + step * batch) % len(puzzles)
        pair = np.stack([puzzles[rows], solutions[rows]])
        if self.augment:
            symmetries = self._symmetries(step, batch)
            pair = np.stack([apply(symmetries, boards) for boards in pair])
        tokens, target = torch.from_numpy(pair.astype(np.int64))
        return Canvas(tokens=tokens, target=target)

    def vary(self, canvas: Canvas, when: Int[Tensor, "B L"], step: int) -> tuple[Canvas, Int[Tensor, "B L"]]:
        """Canvases and the moments of their reveals under a step's symmetries: a path of the one is a path of the other."""
        symmetries = self._symmetries(step, len(when))
        tokens, target = (
            torch.from_numpy(apply(symmetries, boards.numpy()).astype(np.int64))
            for boards in (canvas.tokens, canvas.truth)
        )
        return Canvas(tokens, target, canvas.region), when.gather(1, torch.from_numpy(symmetries.cells))

    def _symmetries(self, step: int, batch: int) -> Symmetries:
        return random_symmetries(batch, self.size, np.random.default_rng([self.seed, step]))
