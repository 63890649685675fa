"""``unmask data`` and ``unmask decode``: Sudoku puzzles, and the orders in which they are filled."""

from __future__ import annotations

import json as json_text
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from rich.table import Table
from tyro.conf import Positional

from unmask.cli.shell import Inline, console, moving_picture, require_new_folder, require_writable
from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Scheduler, Trajectory
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.placement import Placement
from unmask.report.cases import problem_name
from unmask.report.terminal import tables as terminal
from unmask.report.terminal.boards import Lane, LiveBoards
from unmask.report.traces import record as trace
from unmask.runs.atomic import atomic_write
from unmask.runs.config import Seed, config
from unmask.schedulers.loading import list_policies, load_scheduler
from unmask.tasks.sudoku.files import read_csv, write_csv
from unmask.tasks.sudoku.grid import format_board, parse
from unmask.tasks.sudoku.solver import count_solutions, solve
from unmask.tasks.sudoku.source import board_size
from unmask.tasks.sudoku.task import SudokuTask
from unmask.tasks.sudoku.techniques import TECHNIQUES, hardest

BENCHMARKS = ("gsm8k", "mbpp")
BOARDS = (16, 36, 81)
SHIPPED = {9: "sudoku-9x9", 4: "sudoku-4x4"}
"""The denoiser of each size of board, where none is named."""


@dataclass(frozen=True)
class Data:
    """Generate Sudoku puzzles or check a file of them, or write the training examples of a benchmark.

    $ unmask data puzzles.csv --count 2000 --clues rao
    $ unmask data --check puzzles.csv
    $ unmask data gsm8k --out gsm8k-train.jsonl
    $ unmask data mbpp --files ../data --out mbpp-train.jsonl
    """

    what: Positional[str | None] = None
    """The CSV file of puzzles to write, each with exactly one solution; or gsm8k or mbpp, for JSON lines of prompts, as the
    evaluation has them, and completions."""
    out: Path | None = None  # The file to write, where a benchmark is named.
    files: Path | None = None  # A folder with the benchmark's files instead of the hub.
    shots: int | None = None  # Worked examples before each problem of a benchmark; by default those of its evaluation.
    count: int = 1000  # How many puzzles.
    size: int = 9  # 4, 6 or 9.
    clues: str | None = None
    """"rao" (the histogram of the corpus in the paper), "wide" (harder), or a range such as 25-35."""
    split: str = "test"
    """train, validation or test. No puzzle has a relative, under the grid's symmetries, in another split."""
    seed: int = 0  # Which corpus.
    check: Path | None = None
    """Verify this file instead: every row must have exactly one solution. Prints how hard its puzzles are."""

    def run(self) -> None:
        benchmark = self.what in BENCHMARKS
        out = self.out if benchmark or self.what is None else Path(self.what)
        if self.check is not None and out is not None:
            raise ValueError(f"name a file to write or one to check, not both: got {out} and --check {self.check}")
        if self.check is not None:
            return _check(self.check)
        if out is None:
            raise ValueError("name the file to write, or --check FILE to verify one")
        if out.exists():
            raise ValueError(f"{out} exists: name another file, or remove it first")
        require_writable(out)
        if benchmark:
            return self._write_examples(out)
        task = SudokuTask.generate(self.count, self.size, self.clues, self.split, self.seed)
        aside = out.with_name(f".{out.name}.part")
        try:
            write_csv(aside, task.puzzles, task.solutions)
            aside.rename(out)
        finally:
            aside.unlink(missing_ok=True)
        console.print(f"wrote {len(task)} puzzles ({self.split} split, seed {self.seed}) to {out}")

    def _write_examples(self, out: Path) -> None:
        try:
            from unmask.evaluation.lm_eval.examples import benchmark_examples
        except ImportError as error:
            raise ValueError(f"benchmarks need lm-eval ({error}): pip install unmask[lm]") from error
        assert self.what is not None
        lines = [json_text.dumps(one) for one in benchmark_examples(self.what, self.files, self.shots, self.seed)]
        atomic_write(out, ("\n".join(lines) + "\n").encode())
        console.print(f"wrote {len(lines)} training examples of {self.what} to {out}")


def _check(path: Path) -> None:
    file = read_csv(path)
    given = (file.puzzles > 0).sum(1)
    clues = f"clues {given.min()} to {given.max()}, mean {given.mean():.1f}"
    console.print(f"{path}: {len(given)} puzzles, each with one solution; {clues}")
    table = Table("hardest technique needed", "puzzles", "share")
    techniques = hardest(file.puzzles, file.solutions)
    for number, name in enumerate(TECHNIQUES):
        if (amount := int((techniques == number).sum())) > 0:
            table.add_row(name, str(amount), f"{amount / len(given):.1%}")
    console.print(table)


@config
class Decode:
    """Fill a puzzle, or a file of them, and show the order. On a terminal one puzzle is filled step by step.

    $ unmask decode 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    $ unmask decode puzzles.csv --scheduler margin --json
    $ unmask decode puzzles.csv --compare expert --traces traces
    """

    puzzle: Positional[str]  # 81 (or 16) characters, row by row, 0 or . for a blank; or a CSV file.
    scheduler: str | None = None
    """Any name that `unmask presets` lists. By default the learned policy, if one ships for the denoiser."""
    denoiser: str | None = None
    """A shipped name, a folder or a hub id; by default the shipped one of the puzzle's size."""
    decoding: Annotated[Decoding, Inline] = field(default_factory=Decoding)  # How to decode.
    placement: Annotated[Placement, Inline] = field(default_factory=Placement)  # Where the denoiser runs.
    seed: Seed = 0  # For random orders.
    compare: str | None = None
    """Another scheduler, to see where the two orders part; confidence, when the scheduler is the learned one by default."""
    json: bool = False  # Print JSON instead of boards, one object a line.
    live: bool = True  # On a terminal, show one puzzle step by step, beside the order it is compared with.
    speed: Annotated[float, Field(gt=0, le=1000)] = 12.0  # Steps a second of what is shown live.
    lines: bool = False  # Print every step, a line each, before the boards.
    traces: Path | None = None  # Also record every step for `unmask view`, into this new folder, a file per puzzle.

    def __post_init__(self) -> None:
        if self.json and self.lines:
            raise ValueError("expected --json or --lines, not both")

    def run(self) -> None:
        if self.traces is not None:
            require_new_folder(self.traces)
        boards, solutions = _read_boards(self.puzzle)
        name, labels, schedulers, model = self._load(round(boards.shape[1] ** 0.5))
        for row, (board, solution) in enumerate(zip(boards, solutions, strict=True)):
            tokens, truth = (torch.from_numpy(cells.astype(np.int64))[None] for cells in (board, solution))
            canvas = Canvas(tokens, truth, torch.ones_like(tokens, dtype=torch.bool))
            # The seeds of `unmask evaluate`: the same puzzle of the same file is filled in the same order.
            canvas = canvas.seeded(row_seeds(self.seed, [row]))
            trajectories = self._decode(model, schedulers, canvas)
            if self.traces is not None:
                problem = "a puzzle" if len(boards) == 1 else problem_name(Path(self.puzzle).name, row)
                about = trace.about_boards(round(len(board) ** 0.5), name, self.decoding.describe())
                self.traces.mkdir(parents=True, exist_ok=True)
                recorded = trace.make_trace(model, trajectories, canvas, about, self.decoding, problem=problem)
                trace.write(recorded, self.traces / f"{row + 1:04d}.json")
            filled = [(label, Filled(trajectories[label], solution)) for label in labels]
            if self.json:
                sys.stdout.write(json_text.dumps(_record(board, name, filled)) + "\n")
            else:
                _watch(
                    LiveBoards(board, solution, [one.lane(label) for label, one in dict(filled).items()]),
                    self,
                    len(boards),
                )
                _show(filled, name, self.placement.describe())

    def _load(self, size: int) -> tuple[str, list[str], dict[str, Scheduler], Any]:
        """The denoiser's name; the names of the scheduler and of the one it is compared with; these; and the denoiser."""
        name = SHIPPED.get(size) if self.denoiser is None else self.denoiser
        if name is None:
            raise ValueError(
                f"no denoiser ships for {size}x{size} boards: train one and name its folder with --denoiser"
            )
        model, fits = load_for_boards(name, self.placement)
        names = ["confidence" if self.scheduler is None else self.scheduler, self.compare]
        if self.scheduler is None and f"sas-{name}" in list_policies():
            names = ["sas", self.compare or "confidence"]
        labels = [one for one in names if one is not None]
        schedulers = {label: load_scheduler(label, model, name) for label in labels}
        if fits != size:
            raise ValueError(f"{name} decodes {fits}x{fits} boards, but the puzzle is {size}x{size}")
        return name, labels, schedulers, model

    def _decode(self, model: Any, schedulers: dict[str, Scheduler], canvas: Canvas) -> dict[str, Trajectory]:
        """The puzzle, filled by each scheduler; for traces with every candidate."""
        canvas = canvas.to(model.device)
        if self.traces is None:
            found = {
                name: unmask(model, scheduler, canvas, self.decoding, record=False)
                for name, scheduler in schedulers.items()
            }
        else:
            found = {
                name: trace.record_trajectory(model, name, schedulers, canvas, self.decoding) for name in schedulers
            }
        return {name: trace.to_cpu(trajectory) for name, trajectory in found.items()}


@dataclass(frozen=True)
class Filled:
    """One puzzle, filled by one scheduler."""

    trajectory: Trajectory
    solution: np.ndarray

    @property
    def answer(self) -> np.ndarray:
        return self.trajectory.tokens[0].numpy()

    @property
    def rank(self) -> np.ndarray:
        return self.trajectory.rank[0].numpy()

    @property
    def wrong(self) -> np.ndarray:
        return self.answer != self.solution

    @property
    def order(self) -> list[int]:
        return self.trajectory.order[0].tolist()

    @property
    def first_wrong(self) -> int | None:
        """The reveal, counted from 0, that was the first mistake."""
        return next((k for k, cell in enumerate(self.order) if cell >= 0 and self.wrong[cell]), None)

    @property
    def taken_back(self) -> list[tuple[int, int, int]]:
        """The step, the cell and the digit of each reveal that was taken back."""
        found = self.trajectory.revisions
        events = () if found is None else (found.step, found.position, found.before)
        return list(zip(*(column.tolist() for column in events), strict=True))

    def parts_at(self, other: Filled) -> int | None:
        """The first reveal, counted from 0, at which the two orders take another cell."""
        return next((k for k, (a, b) in enumerate(zip(self.order, other.order, strict=False)) if a != b), None)

    def verdict(self) -> str:
        if self.first_wrong is None:
            return "solved"
        return f"wrong: {self.wrong.sum()} cells, the first at reveal {self.first_wrong + 1}"

    def record(self) -> dict[str, Any]:
        return {
            "answer": format_board(self.answer),
            "solved": self.first_wrong is None,
            "order": self.order,
            "step": self.trajectory.step[0].tolist(),
            "token_logp": [round(value, 6) for value in self.trajectory.logp[0].tolist()],
            "trajectory_logp": None if self.taken_back else self.trajectory.total_logp.item(),
            "taken_back": self.taken_back,
            "first_wrong": self.first_wrong,
            "denoiser_calls": self.trajectory.denoiser_calls,
        }

    def lane(self, name: str) -> Lane:
        count = int(self.trajectory.reveals[0])
        steps = tuple(self.trajectory.step[0, :count].tolist())
        return Lane(name, self.answer, tuple(self.order[:count]), steps, tuple(self.taken_back))


def _record(board: np.ndarray, name: str, filled: list[tuple[str, Filled]]) -> dict[str, Any]:
    """One line of JSON; of two schedulers, the second is in "compared"."""
    (scheduler, first), *others = filled
    record = {"puzzle": format_board(board), "denoiser": name, "scheduler": scheduler, **first.record()}
    for compared, other in others:
        record["compared"] = {"scheduler": compared, "parts_at": first.parts_at(other), **other.record()}
    return record


def _watch(shown: LiveBoards, options: Decode, puzzles: int) -> None:
    """Play the decoding: drawn in place on a terminal with room for it, or as lines. Decoding takes less time than looking."""
    live = options.live and puzzles == 1 and not options.lines and shown.fits(*console.size)
    with moving_picture(console, shown, live) as picture:
        if picture is None and not options.lines:
            return
        for step in range(1, shown.last + 1):
            shown.steps = step
            if picture is None:
                console.print(shown.line(), soft_wrap=True)
            else:
                picture.refresh()
                time.sleep(1 / options.speed)


def _show(filled: list[tuple[str, Filled]], name: str, place: str) -> None:
    (scheduler, first), *others = filled
    trajectory, wrong = first.trajectory, first.wrong
    cost = f"{trajectory.denoiser_calls} denoiser calls, {trajectory.seconds:.2f} s on {place}"
    back = f"{len(first.taken_back)} reveals taken back, " if first.taken_back else ""
    console.print(f"{scheduler} order, {name}: {first.verdict()}; {back}{cost}")
    grid = Table.grid(padding=(0, 6))
    grid.add_row(
        f"the answer (blue first, red last{', ! is wrong' if wrong.any() else ''})", "the order of its reveals"
    )
    grid.add_row(terminal.board(first.answer, first.rank, wrong), terminal.ranks(first.rank))
    console.print(grid)
    for compared, other in others:
        console.print(_difference(first, other, compared))


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
    board, solution = read_board(text)
    return board[None], solution[None]


def names_a_file(text: str) -> bool:
    """Whether this is a file's name rather than a board."""
    return bool(text.strip("0123456789. \n")) and (os.sep in text or bool(Path(text).suffix) or os.path.exists(text))


def read_board(text: str) -> tuple[np.ndarray, np.ndarray]:
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


def load_for_boards(name: str, placement: Placement | None = None) -> tuple[Any, int]:
    """A denoiser and the size of the boards it fills; without a placement on the CPU."""
    model = load_denoiser(name, **(placement.options if placement is not None else {}))
    return model, board_size(model, name)
