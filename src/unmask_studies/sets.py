"""Sets of Sudoku problems by name, and decodings of them with the order of their reveals.

``N`` problems, ``L`` cells, ``K`` reveals of the longest row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Task
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.kinds import EvaluationRequest, evaluation_set
from unmask.tasks.sudoku.task import SudokuTask
from unmask_studies.reports import BATCH, get_denoiser, require_fit

generate_boards = cache(SudokuTask.generate)
read_boards = cache(SudokuTask.read)
evaluation_problems = cache(evaluation_set)


@dataclass(frozen=True)
class ProblemSet:
    """Generated puzzles, or those of ``file``. Nothing is generated or read before ``load``."""

    sets: Sets
    file: Path | None = None

    def load(self) -> SudokuTask:
        sets = self.sets
        if self.file is not None:
            return read_boards(self.file, sets.limit)
        return generate_boards(sets.generated, sets.size, sets.clues, "test", sets.seed)

    def identity(self) -> Mapping[str, Any]:
        """Which problems these are."""
        sets = self.sets
        if self.file is not None:
            return {"file": blake2b(self.file.read_bytes(), digest_size=16).hexdigest(), "limit": sets.limit}
        return {"generated": sets.generated, "size": sets.size, "clues": sets.clues, "seed": sets.seed}


@dataclass(frozen=True)
class Sets:
    """Problem sets: ``generated`` puzzles of the test split (0: none) with such ``clues``, and ``limit`` rows of each file."""

    generated: int = 1000
    clues: str = "rao"
    size: int = 9
    limit: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.generated < 0 or self.limit < 1:
            raise ValueError(f"expected some problems, got generated = {self.generated}, limit = {self.limit}")

    def by_name(self, data: Sequence[Path] = ()) -> dict[str, ProblemSet]:
        found = {f"generated, {self.clues}": ProblemSet(self)} if self.generated else {}
        for path in data:
            if not path.is_file():
                raise ValueError(f"expected a CSV file of puzzles, but there is none at {path}")
            if path.stem in found:
                raise ValueError(f"two files are called {path.stem}: rename one of them")
            found[path.stem] = ProblemSet(self, path)
        if not found:
            raise ValueError("there are no problems: leave out --no-generated, or name files with --data")
        return found

    def load(self) -> SudokuTask:
        """The generated puzzles."""
        return next(iter(self.by_name().values())).load()


@dataclass(frozen=True)
class OtherSet:
    """Problems of a ``task`` for a denoiser of its own, a folder: the first ``limit`` of the file ``data``, where they are read."""

    denoiser: str = ""
    task: str = "reaction"
    data: Path | None = None
    limit: int = 300
    seed: int = 0

    def load(self) -> Task:
        return evaluation_problems(self.task, self.denoiser, EvaluationRequest(self.data, self.limit, self.seed)).task


@dataclass(frozen=True)
class Decoded:
    """Free-running decodings: ``order`` the cells as they were revealed (−1 pads), ``tokens`` the filled boards."""

    order: Int[np.ndarray, "N K"]
    tokens: Int[np.ndarray, "N L"]

    @classmethod
    def read(cls, result: Mapping[str, Any]) -> Decoded:
        """From what ``write`` returned."""
        orders = result["orders"]
        order = np.full((len(orders), max((len(row) for row in orders), default=0)), -1)
        for nth, row in enumerate(orders):
            order[nth, : len(row)] = row
        return cls(order, np.array([[int(digit) for digit in row] for row in result["digits"]]))

    def write(self) -> dict[str, Any]:
        digits = ["".join(map(str, row)) for row in self.tokens.tolist()]
        return {"orders": [row[row >= 0].tolist() for row in self.order], "digits": digits}

    def ranks(self) -> Int[np.ndarray, "N L"]:
        """The place of each cell in the order, −1 where it was given."""
        rank = np.full(self.tokens.shape, -1)
        row, k = np.nonzero(self.order >= 0)
        rank[row, self.order[row, k]] = k
        return rank


def decode_boards(problems: SudokuTask, denoiser: str, scheduler: str, seed: int) -> Decoded:
    """Every problem, one reveal at a time, with the seeds that ``evaluate`` uses."""
    model = get_denoiser(denoiser)
    require_fit(model, denoiser, problems)
    loaded = load_scheduler(scheduler, model, denoiser)
    blanks = int((problems.puzzles == 0).sum(1).max(initial=0))
    order = np.full((len(problems), blanks), -1)
    tokens = np.empty(problems.puzzles.shape, np.int64)
    for start in range(0, len(problems), BATCH):
        rows = range(start, min(start + BATCH, len(problems)))
        trajectory = unmask(model, loaded, problems.canvas(rows).seeded(row_seeds(seed, rows)), record=False)
        order[start : rows.stop, : trajectory.order.shape[1]] = trajectory.order.numpy()
        tokens[start : rows.stop] = trajectory.tokens.numpy()
    return Decoded(order, tokens)
