"""``unmask figure``: the figure of the README."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

from unmask.cli.shell import console, require_writable
from unmask.cli.sudoku import load_for_boards
from unmask.decoding.draws import row_seeds
from unmask.evaluation.evaluate import EvaluationOptions, evaluate, load_schedulers
from unmask.report.boards import hero
from unmask.report.cases import problem_name
from unmask.report.traces import record as trace
from unmask.report.traces.format import Trace
from unmask.runs.atomic import atomic_write
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask


@dataclass(frozen=True)
class Figure:
    """Draw a figure as SVG. `hero`: a puzzle that the learned policy solves and confidence does not, side by side, animated.

    $ unmask figure hero --out docs/hero.svg
    """

    name: Positional[Literal["hero"]]  # Which figure.
    out: Path  # The SVG file to write.
    trace: Path | None = None
    """Draw this trace; without it, the first of the generated puzzles that only the learned policy solves."""
    denoiser: str = "sudoku-9x9-imperfect"  # The denoiser, with a learned policy that ships (see `unmask presets`).
    puzzles: int = 60  # How many generated puzzles to search.
    seed: int = 0  # Which puzzles.

    def run(self) -> None:
        require_writable(self.out, "<svg")
        shown = trace.read(self.trace) if self.trace is not None else self._search()
        atomic_write(self.out, hero(shown).encode())
        console.print(f"wrote {self.out}: {shown.problem}")

    def _search(self) -> Trace:
        """The trace of the first puzzle that only the learned policy solves."""
        model, size = load_for_boards(self.denoiser)
        schedulers = load_schedulers(("confidence", "sas"), lambda name: load_scheduler(name, model, self.denoiser))
        problems = SudokuTask.generate(self.puzzles, size, "rao" if size == 9 else None, "test", self.seed)
        found = evaluate(problems, model, schedulers, options=EvaluationOptions(seed=self.seed, likelihood=False))
        pairs = zip(found.row("confidence").solved, found.row("sas").solved, strict=True)
        row = next((row for row, pair in enumerate(pairs) if pair == ("0", "1")), None)
        if row is None:
            raise ValueError(
                f"none of {self.puzzles} puzzles is solved by the learned policy only: try more, or another seed"
            )
        about = trace.about_boards(size, self.denoiser)
        problem = problem_name(problems.source, row)
        canvas = problems.canvas([row]).seeded(row_seeds(self.seed, [row]))
        return trace.record(model, schedulers, canvas, about, problems=[problem])[0]
