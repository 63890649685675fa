"""Training canvases: generated puzzles of the training split, under a fresh symmetry each time they are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from unmask.decoding.protocols import Canvas, Denoiser
from unmask.denoisers.loading import load_denoiser
from unmask.tasks.kinds import EvaluationRequest, EvaluationSet, GeneratedKind
from unmask.tasks.sudoku.generate import DEFAULT_CLUES, HISTOGRAMS, clue_table, generate
from unmask.tasks.sudoku.grid import grid
from unmask.tasks.sudoku.symmetry import SPLITS, Symmetries, apply, random_symmetries, split_of
from unmask.tasks.sudoku.task import SudokuTask

PATIENCE = 200
"""Puzzles looked at for each one wanted, before a split is found to be too small."""
TRAINING_CLUES = {9: "26-42"}
"""Clues of the puzzles to learn an order from, where they are not those of :data:`DEFAULT_CLUES`."""


@dataclass(frozen=True)
class SudokuData(GeneratedKind):
    """The first puzzles of a corpus that fall into a split.

    Attributes:
        size: The side of a board: 4, 6 or 9.
        puzzles: How many puzzles.
        clues: rao, wide, minimal, hard (half minimal, half wide), or a range such as 30-40.
        split: train, validation or test.
        augment: Draw digits, bands, rows, stacks, columns and transposition anew each time a puzzle is seen.
        seed: Seeds the corpus and the symmetries.
    """

    size: int = 9
    puzzles: int = 20_000
    clues: str | None = None
    split: str = "train"
    augment: bool = True
    seed: int = 0
    kind: Literal["sudoku"] = "sudoku"

    schedulers = (*GeneratedKind.schedulers, "expert")
    options: ClassVar[Mapping[str, str]] = {
        "clues": "For generated puzzles: rao, wide, minimal, hard, or a range such as 25-35."
    }

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

    def shape(self) -> dict[str, Any]:
        return {"max_length": self.size**2, "vocab_size": self.size + 1, "mask_id": 0, "grid": self.size}

    @property
    def problem_count(self) -> int:
        return self.puzzles

    def first(self, count: int) -> SudokuData:
        return replace(self, puzzles=min(self.puzzles, count))

    def problems(self, denoiser: Denoiser, name: str) -> SudokuProblems:
        length = getattr(getattr(denoiser, "config", None), "max_length", self.size**2)
        if length != self.size**2 or denoiser.mask_id != 0:
            raise ValueError(
                f"{name} does not fill {self.size}x{self.size} boards: expected {self.size**2} positions and mask id 0, "
                f"got {length} and {denoiser.mask_id}; name a denoiser of boards, or other data"
            )
        return SudokuProblems(self)

    @classmethod
    def fit(cls, denoiser: Denoiser, name: str) -> dict[str, Any]:
        return {"size": board_size(denoiser, name)}

    @classmethod
    def for_training(cls, denoiser: str) -> SudokuData:
        """Puzzles of the denoiser's size. Those with many clues are solved in any order: there is nothing to learn from them."""
        size = board_size(load_denoiser(denoiser), denoiser)
        return cls(size=size, clues=TRAINING_CLUES.get(size))

    def evaluation(self, denoiser: Denoiser, name: str, request: EvaluationRequest) -> EvaluationSet:
        """The puzzles of a CSV file, or generated ones of the denoiser's size."""
        size = board_size(denoiser, name)
        if request.data is not None:
            task = SudokuTask.read(request.data, request.limit)
        else:
            task = SudokuTask.generate(request.limit, size, self.clues, "test", request.seed)
        if task.size != size:
            raise ValueError(f"{name} decodes {size}x{size} boards, but the puzzles are {task.size}x{task.size}")
        return EvaluationSet(denoiser, task, lambda token: str(token) if token else "", grid(size))


@dataclass(frozen=True, eq=False)
class SudokuProblems:
    """Generated puzzles. ``held_out`` takes the clues of the puzzles to hold out."""

    data: SudokuData
    judge = None

    @property
    def vary(self) -> Any:
        return self.data.vary if self.data.augment else None

    def __call__(self, step: int, count: int) -> Canvas:
        return self.data(step, count)

    def held_out(self, count: int, which: str | None = None) -> SudokuTask:
        return SudokuTask.generate(count, self.data.size, which, "validation", self.data.seed + 1)

    def fixed(self) -> Canvas:
        boards = SudokuTask(*self.data.boards)
        return boards.canvas(range(len(boards)))


def board_size(denoiser: Any, name: str) -> int:
    """The size n of the n x n boards that a denoiser fills."""
    size = round(denoiser.config.max_length**0.5)
    if (denoiser.config.max_length, denoiser.config.vocab_size, denoiser.mask_id) != (size * size, size + 1, 0):
        raise ValueError(
            f"{name} is not a denoiser of Sudoku boards: expected digits 1..n, and 0 for a hidden cell; "
            "name another --task, or a denoiser of boards"
        )
    return size
