"""``unmask decode``: fill puzzles and show the order, and where the learned one leaves confidence."""

from __future__ import annotations

import json as json_text
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from unmask.command_line import console
from unmask.decode import unmask
from unmask.live import Regime
from unmask.protocols import Path as Order
from unmask.protocols import Scheduler
from unmask.registry import load_denoiser, load_pace, load_scheduler, shipped_policies
from unmask.report import terminal
from unmask.tasks.sudoku import count_solutions, format_board, parse, read_csv, solve


def decode(
    puzzle: str,
    /,
    scheduler: str | None = None,
    denoiser: str | None = None,
    block: int | None = None,
    steps: int | None = None,
    pace: str = "top",
    seed: int = 0,
    compare: str | None = None,
    json: bool = False,
) -> None:
    """Fill a puzzle, or a file of them, and show the order.

    $ unmask decode 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    $ unmask decode puzzles.csv --scheduler margin --json

    Args:
        puzzle: 81 (or 16) characters, row by row, 0 or . for a blank; or a CSV file.
        scheduler: The order: any name that `unmask evaluate` knows. By default the learned one, if one ships for the denoiser.
        denoiser: A shipped name, a folder or a hub id; by default the shipped one of the puzzle's size.
        block: Block size, for semi-autoregressive decoding.
        steps: Step budget, for parallel decoding.
        pace: How many per step: top, threshold:p=0.9, factor, entropy_bound, kl_stable, dilated, bernoulli.
        seed: For random orders.
        compare: Another order, to see where the two part; confidence, when the order is the learned one by default.
        json: Print JSON instead of boards, one object a line.
    """
    boards, solutions = _read_boards(puzzle)
    size = round(boards.shape[1] ** 0.5)
    name = denoiser or {9: "sudoku-9x9", 4: "sudoku-4x4"}.get(size)
    if name is None:
        raise ValueError(f"no denoiser ships for {size}x{size} boards: train one and name its folder with --denoiser")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {seed}")
    model, fits = load_for_boards(name)
    if scheduler is None:
        learned = f"sas-{name}" in shipped_policies()
        scheduler, compare = ("sas", compare or "confidence") if learned else ("confidence", compare)
    order = load_scheduler(scheduler, model, name)
    other = None if compare is None else load_scheduler(compare, model, name)
    if fits != size:
        raise ValueError(f"{name} decodes {fits}x{fits} boards, but the puzzle is {size}x{size}")
    regime = Regime(block=block, steps=steps, pace=load_pace(pace))
    for row, (board, solution) in enumerate(zip(boards, solutions, strict=True)):
        # The seeds of `unmask evaluate`: the same puzzle of the same file is filled in the same order.
        fill = lambda by: _fill(board, solution, model, by, regime, seed * 2**32 + row)  # noqa: B023, E731
        filled, beside = fill(order), None if other is None else fill(other)
        if json:
            record = {"puzzle": format_board(board), "denoiser": name, "scheduler": scheduler, **filled.record()}
            if beside is not None:
                record["compared"] = {"scheduler": compare, "parts_at": filled.parts_at(beside), **beside.record()}
            sys.stdout.write(json_text.dumps(record) + "\n")
        else:
            _show(filled, scheduler, name)
            if beside is not None:
                console.print(_difference(filled, beside, str(compare)))


@dataclass(frozen=True)
class Filled:
    """One puzzle, filled in one order."""

    path: Order
    solution: np.ndarray

    @property
    def answer(self) -> np.ndarray:
        return self.path.tokens[0].numpy()

    @property
    def rank(self) -> np.ndarray:
        return self.path.rank[0].numpy()

    @property
    def wrong(self) -> np.ndarray:
        return self.answer != self.solution

    @property
    def order(self) -> list[int]:
        return self.path.order[0].tolist()

    @property
    def first_wrong(self) -> int | None:
        """The reveal, counted from 0, that was the first mistake."""
        return next((k for k, cell in enumerate(self.order) if cell >= 0 and self.wrong[cell]), None)

    def parts_at(self, other: Filled) -> int | None:
        """The first reveal, counted from 0, at which the two orders take another cell."""
        return next((k for k, (a, b) in enumerate(zip(self.order, other.order, strict=True)) if a != b), None)

    def verdict(self) -> str:
        if self.first_wrong is None:
            return "solved"
        return f"wrong: {self.wrong.sum()} cells, the first at reveal {self.first_wrong + 1}"

    def record(self) -> dict[str, Any]:
        return {
            "answer": format_board(self.answer),
            "solved": self.first_wrong is None,
            "order": self.order,
            "step": self.path.step[0].tolist(),
            "token_logp": [round(value, 6) for value in self.path.logp[0].tolist()],
            "path_logp": self.path.path_logp.item(),
            "first_wrong": self.first_wrong,
            "denoiser_calls": self.path.denoiser_calls,
        }


def _fill(board: np.ndarray, solution: np.ndarray, model: Any, order: Scheduler, regime: Regime, seed: int) -> Filled:
    tokens, truth = (torch.from_numpy(cells.astype(np.int64))[None] for cells in (board, solution))
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    path = unmask(
        model, order, tokens, regime, reference=truth, region=everywhere, seeds=torch.tensor([seed]), record=False
    )
    return Filled(path, truth[0].numpy())


def _show(filled: Filled, scheduler: str, name: str) -> None:
    path, wrong = filled.path, filled.wrong
    cost = f"{path.denoiser_calls} denoiser calls, {path.seconds:.2f} s"
    console.print(f"{scheduler} order, {name}: {filled.verdict()}; {cost}")
    grid = Table.grid(padding=(0, 6))
    grid.add_row(
        f"the answer (blue first, red last{', ! is wrong' if wrong.any() else ''})", "the order of its reveals"
    )
    grid.add_row(terminal.board(filled.answer, filled.rank, wrong), terminal.ranks(filled.rank))
    console.print(grid)


def _difference(filled: Filled, other: Filled, name: str) -> str:
    """Where two orders part, and how the other one ends."""
    end = f"{name} order: {other.verdict()}"
    place = filled.parts_at(other)
    if place is None:
        return f"{end}; the same cells in the same order"
    size = round(len(filled.answer) ** 0.5)

    def reveal(one: Filled) -> str:
        row, column = divmod(one.order[place], size)
        return f"{one.answer[one.order[place]]} at row {row + 1}, column {column + 1}"

    return f"{end}; the two part at reveal {place + 1}: {reveal(filled)}, where {name} takes {reveal(other)}"


def _read_boards(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Puzzles and solutions ``[N, cells]``, of a file or of the one puzzle that is written out."""
    if text.strip("0123456789. \n") and (os.sep in text or Path(text).suffix or os.path.exists(text)):
        file = read_csv(text, unique=False)
        return file.puzzles, file.solutions
    board = parse(text)
    solutions = count_solutions(board)
    if solutions != 1:
        found = "no solution: its clues contradict each other" if solutions == 0 else "several solutions: expected one"
        raise ValueError(f"the puzzle {format_board(board)} has {found}")
    return board[None], np.asarray(solve(board))[None]


def load_for_boards(name: str) -> tuple[Any, int]:
    """A denoiser and the size of the boards it fills."""
    model = load_denoiser(name)
    size = round(model.config.max_length**0.5)
    if (model.config.max_length, model.config.vocab_size, model.mask_id) != (size * size, size + 1, 0):
        raise ValueError(f"{name} is not a denoiser of Sudoku boards: expected digits 1..n, and 0 for a hidden cell")
    return model, size
