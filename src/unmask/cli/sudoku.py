"""``unmask decode``: fill puzzles and show the order, and where the learned one leaves confidence."""

from __future__ import annotations

import json as json_text
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from unmask.cli.shell import console, moving_picture, require_new_folder
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.decoding.protocols import Canvas, Scheduler, Trajectory
from unmask.denoisers.loading import load_denoiser
from unmask.report.cases import problem_name
from unmask.report.terminal import tables as terminal
from unmask.report.terminal.boards import Lane, LiveBoards
from unmask.report.traces import record as trace
from unmask.schedulers.loading import load_scheduler, shipped_policies
from unmask.tasks.sudoku import count_solutions, format_board, parse, read_csv, solve

BOARDS = (16, 36, 81)


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
    live: bool = True,
    speed: float = 12.0,
    lines: bool = False,
    traces: Path | None = None,
) -> None:
    """Fill a puzzle, or a file of them, and show the order. On a terminal one puzzle fills before your eyes.

    $ unmask decode 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    $ unmask decode puzzles.csv --scheduler margin --json
    $ unmask decode puzzles.csv --compare expert --traces traces

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
        live: On a terminal, show one puzzle fill step by step, beside the order it is compared with.
        speed: Steps a second of what is shown live.
        lines: Print every step, a line each, before the boards.
        traces: Also record every step for `unmask view`, into this new folder, a file per puzzle.
    """
    if not 0 < speed <= 1000:
        raise ValueError(f"speed must be a number of steps a second, above 0 and at most 1000, got {speed}")
    if json and lines:
        raise ValueError("expected --json or --lines, not both")
    if traces is not None:
        require_new_folder(traces)
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
    decoding = Decoding(block=block, steps=steps, pace=load_pace(pace))
    orders = {scheduler: order} if other is None or compare is None else {scheduler: order, compare: other}
    about = trace.about_boards(size, name, trace.decoding_name(decoding, pace))
    for row, (board, solution) in enumerate(zip(boards, solutions, strict=True)):
        tokens, truth = (torch.from_numpy(cells.astype(np.int64))[None] for cells in (board, solution))
        canvas = Canvas(tokens, truth, torch.ones_like(tokens, dtype=torch.bool))
        # The seeds of `unmask evaluate`: the same puzzle of the same file is filled in the same order.
        paths = _paths(model, orders, canvas, decoding, seed * 2**32 + row, watched=traces is not None)
        filled = Filled(paths[scheduler], truth[0].numpy())
        beside = None if compare is None else Filled(paths[compare], truth[0].numpy())
        if traces is not None:
            traces.mkdir(parents=True, exist_ok=True)
            problem = "a puzzle" if len(boards) == 1 else problem_name(Path(puzzle).name, row)
            recorded = trace.make_trace(model, paths, canvas, about, decoding, problem=problem)
            trace.write(recorded, traces / f"{row + 1:04d}.json")
        if not json:
            shown = LiveBoards(board, truth[0].numpy(), [_lane(one, paths[one]) for one in paths])
            _watch(shown, live and len(boards) == 1, lines, speed)
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

    path: Trajectory
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
            "trajectory_logp": self.path.total_logp.item(),
            "first_wrong": self.first_wrong,
            "denoiser_calls": self.path.denoiser_calls,
        }


def _paths(
    model: Any, orders: dict[str, Scheduler], canvas: Canvas, decoding: Decoding, seed: int, watched: bool
) -> dict[str, Trajectory]:
    """The puzzle, filled in each order. ``watched`` keeps what a trace shows."""
    seeds = torch.tensor([seed])
    if watched:
        return {name: trace.record_trajectory(model, name, orders, canvas.seeded(seeds), decoding) for name in orders}
    return {name: unmask(model, order, canvas.seeded(seeds), decoding, record=False) for name, order in orders.items()}


def _lane(name: str, path: Trajectory) -> Lane:
    count = int(path.reveals[0])
    return Lane(
        name, path.tokens[0].numpy(), tuple(path.order[0, :count].tolist()), tuple(path.step[0, :count].tolist())
    )


def _watch(shown: LiveBoards, live: bool, lines: bool, speed: float) -> None:
    """Play what was decoded: drawn in place on a terminal with room for it, or as lines. Decoding takes less time than looking."""
    live = live and not lines and shown.fits(*console.size)
    with moving_picture(console, shown, live) as picture:
        if picture is None and not lines:
            return
        for step in range(1, shown.last + 1):
            shown.steps = step
            if picture is None:
                console.print(shown.line(), soft_wrap=True)
            else:
                picture.refresh()
                time.sleep(1 / speed)


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
    if names_a_file(text):
        file = read_csv(text, unique=False)
        return file.puzzles, file.solutions
    board, solution = written_board(text)
    return board[None], solution[None]


def names_a_file(text: str) -> bool:
    """Whether this is a file's name rather than a board."""
    return bool(text.strip("0123456789. \n")) and (os.sep in text or bool(Path(text).suffix) or os.path.exists(text))


def written_board(text: str) -> tuple[np.ndarray, np.ndarray]:
    """The puzzle that is written out and its one solution."""
    if text.strip("0123456789. \n") and len(text) not in BOARDS:
        raise ValueError(
            f"expected a puzzle of 16, 36 or 81 characters, or a file of puzzles: there is no file {text[:60]!r}"
        )
    board = parse(text)
    solutions = count_solutions(board)
    if solutions != 1:
        found = "no solution: its clues contradict each other" if solutions == 0 else "several solutions: expected one"
        raise ValueError(f"the puzzle {format_board(board)} has {found}")
    return board, np.asarray(solve(board), np.int8)


def load_for_boards(name: str) -> tuple[Any, int]:
    """A denoiser and the size of the boards it fills."""
    model = load_denoiser(name)
    size = round(model.config.max_length**0.5)
    if (model.config.max_length, model.config.vocab_size, model.mask_id) != (size * size, size + 1, 0):
        raise ValueError(f"{name} is not a denoiser of Sudoku boards: expected digits 1..n, and 0 for a hidden cell")
    return model, size
