"""Sudoku as a Task, and the human expert as a Scheduler. A cell's token is its digit; the mask is 0, the blank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from unmask.decoding.protocols import Canvas, Verdict, View
from unmask.tasks.sudoku.files import read_csv
from unmask.tasks.sudoku.grid import pretty
from unmask.tasks.sudoku.techniques import TECHNIQUES, expert_order, hardest


@dataclass(frozen=True, eq=False)
class SudokuTask:
    """``puzzles`` and ``solutions`` ``[N, cells]``. Build one with :meth:`read` or :meth:`generated`."""

    puzzles: NDArray[np.int8]
    solutions: NDArray[np.int8]
    source: str = "puzzles"

    @classmethod
    def read(cls, path: str | Path, limit: int | None = None) -> SudokuTask:
        """The puzzles of a CSV file, its first ``limit`` rows if given."""
        file = read_csv(path, limit)
        return cls(file.puzzles, file.solutions, Path(path).name)

    @classmethod
    def generate(
        cls, count: int, size: int = 9, clues: str | None = None, split: str = "test", seed: int = 0
    ) -> SudokuTask:
        """Generated puzzles of a split: none has a relative in another."""
        from unmask.tasks.sudoku.source import SudokuData  # it imports this module

        data = SudokuData(size=size, puzzles=count, clues=clues, split=split, seed=seed)
        return cls(*data.boards, source=f"{count} generated ({split}, clues {clues or 'default'}, seed {seed})")

    @property
    def name(self) -> str:
        return "sudoku"

    @property
    def size(self) -> int:
        return round(self.puzzles.shape[1] ** 0.5)

    def __len__(self) -> int:
        return len(self.puzzles)

    def canvas(self, rows: Sequence[int]) -> Canvas:
        tokens, target = (
            torch.from_numpy(boards[list(rows)].astype(np.int64)) for boards in (self.puzzles, self.solutions)
        )
        return Canvas(tokens=tokens, target=target, region=torch.ones_like(tokens, dtype=torch.bool))

    def verify(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> Verdict:
        """Exact: the solution, clues and all. Share: right cells among the blanks (1 where there are none)."""
        canvas = self.canvas(rows)
        right, blank = tokens == canvas.target, canvas.tokens == 0
        blanks = blank.sum(1)
        share = torch.where(blanks > 0, (right & blank).sum(1) / blanks.clamp(min=1), 1.0)
        return Verdict(exact=right.all(1), share=share)

    @cached_property
    def _hardest(self) -> NDArray[np.int8]:
        return hardest(self.puzzles, self.solutions)

    def stratum(self, row: int) -> str:
        """The hardest technique that the puzzle needs; ``fallback`` is beyond all of them."""
        technique = int(self._hardest[row])
        return "full" if technique < 0 else TECHNIQUES[technique]

    def draw(self, row: int, tokens: Int[Tensor, "L"]) -> str:
        return pretty(tokens.numpy())


def expert(view: View) -> Float[Tensor, "b L"]:
    """The order in which a human would fill the puzzle, worked out once from its clues alone (decision: our own solver).

    The scores are −rank. It knows the rules of Sudoku, not the target; what the denoiser fills in does not change its plan.
    """
    rank = view.memory.get("expert")
    if rank is None:
        boards = view.tokens.cpu().numpy().astype(np.int8)
        order = torch.from_numpy(expert_order(boards).order.astype(np.int64))
        rank = torch.zeros(int(view.rows.max()) + 1, view.tokens.shape[1])
        row, k = torch.nonzero(order >= 0, as_tuple=True)
        rank[view.rows.cpu()[row], order[row, k]] = k.float()
        rank = view.memory["expert"] = rank.to(view.tokens.device)
    return -rank[view.rows]
