"""``unmask trace``: decodings recorded step by step."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from unmask.cli.shell import Inline, console, progress_bar, require_new_folder
from unmask.cli.sudoku import load_for_boards, names_a_file, read_board
from unmask.decoding.draws import row_seeds
from unmask.decoding.options import Decoding
from unmask.denoisers.placement import Placement
from unmask.evaluation.evaluate import load_schedulers
from unmask.report.cases import problem_name
from unmask.report.traces import record as traces
from unmask.runs.config import Count, Seed, config
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask


@config
class Trace:
    """Record decodings for the viewer and for reports. Every step, every candidate, and what the other schedulers would choose.

    $ unmask trace --limit 5 --out traces
    $ unmask trace puzzles.csv --schedulers confidence,expert,sas --out traces
    $ unmask view traces --out orders.html
    """

    puzzles: Positional[str | None] = None
    """A puzzle written out, or a CSV file; without it, generated puzzles that no shipped denoiser was trained on."""
    out: Path = Path("traces")  # The folder for the traces, a file per puzzle. It must be new or empty.
    schedulers: tuple[str, ...] = ("confidence", "sas")  # Names, separated by commas, as `unmask evaluate` takes them.
    denoiser: str = "sudoku-9x9-imperfect"  # A shipped name, a folder (or the run that trained it), or a hub id.
    clues: str | None = None  # For generated puzzles: rao, wide, minimal, hard, or a range such as 25-35.
    decoding: Annotated[Decoding, Inline] = field(default_factory=Decoding)  # How to decode.
    placement: Annotated[Placement, Inline] = field(default_factory=Placement)  # Where the denoiser runs.
    limit: Count = 20  # How many puzzles.
    seed: Seed = 0  # For generated puzzles and for random orders.

    def run(self) -> None:
        require_new_folder(self.out)
        model, size = load_for_boards(self.denoiser, self.placement)
        schedulers = load_schedulers(self.schedulers, lambda name: load_scheduler(name, model, self.denoiser))
        problems = self._read_problems(size)
        about = traces.about_boards(size, self.denoiser, self.decoding.describe())
        self.out.mkdir(parents=True, exist_ok=True)
        with progress_bar("{task.description}", "puzzles") as progress:
            for row in progress.track(range(len(problems)), description="recording"):
                name = problem_name(problems.source, row) if len(problems) > 1 else problems.source
                # The seeds of `unmask evaluate`: the same puzzle is filled in the same order.
                canvas = problems.canvas([row]).seeded(row_seeds(self.seed, [row])).to(model.device)
                recorded = traces.record(model, schedulers, canvas, about, self.decoding, problems=[name])
                traces.write(recorded[0], self.out / f"{row + 1:04d}.json")
        count = "1 trace" if len(problems) == 1 else f"{len(problems)} traces"
        console.print(f"recorded on {self.placement.describe()}")
        console.print(f"wrote {count} to {self.out}; see them with: unmask view {self.out}", soft_wrap=True)

    def _read_problems(self, size: int) -> SudokuTask:
        """Generated puzzles, those of a file, or the one that is written out."""
        if self.puzzles is None:
            return SudokuTask.generate(self.limit, size, self.clues, "test", self.seed)
        if names_a_file(self.puzzles):
            problems = SudokuTask.read(self.puzzles, self.limit)
        else:
            board, solution = read_board(self.puzzles)
            problems = SudokuTask(board[None], solution[None], "a puzzle")
        if problems.size != size:
            raise ValueError(
                f"the denoiser decodes {size}x{size} boards, but the puzzles are {problems.size}x{problems.size}"
            )
        return problems
