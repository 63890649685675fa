"""Commands that show: traces of decodings, the viewer, a report, the figure of the README."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import torch

from unmask.cli.shell import console, progress_bar, require_new_folder, require_writable
from unmask.cli.sudoku import load_for_boards, names_a_file, written_board
from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.evaluation.evaluate import evaluate, schedulers_named
from unmask.report import page
from unmask.report.boards import hero
from unmask.report.cases import problem_name
from unmask.report.gather import gather
from unmask.report.traces import record as traces_of
from unmask.report.traces.format import Trace
from unmask.report.viewer import page as viewer
from unmask.runs.atomic import atomic_write
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask

PAGE = '<meta name="generator" content="unmask">'


def trace(
    puzzles: str | None = None,
    /,
    out: Path = Path("traces"),
    schedulers: str = "confidence,sas",
    denoiser: str = "sudoku-9x9-imperfect",
    clues: str | None = None,
    block: int | None = None,
    steps: int | None = None,
    pace: str = "top",
    limit: int = 20,
    seed: int = 0,
) -> None:
    """Record decodings for the viewer and for reports. Every step, every candidate, and what the other orders would have done.

    $ unmask trace --limit 5 --out traces
    $ unmask trace puzzles.csv --schedulers confidence,expert,sas --out traces
    $ unmask view traces --out orders.html

    Args:
        puzzles: A puzzle written out, or a CSV file; without it, generated puzzles that no shipped denoiser was trained on.
        out: The folder for the traces, a file per puzzle. It must be new or empty.
        schedulers: The orders, separated by commas: any names that `unmask evaluate` knows.
        denoiser: A shipped name, a folder (or the run that trained it), or a hub id.
        clues: For generated puzzles: rao, wide, or a range such as 25-35.
        block: Block size, for semi-autoregressive decoding.
        steps: Step budget, for parallel decoding.
        pace: How many per step: top, threshold:p=0.9, factor, entropy_bound, kl_stable, dilated.
        limit: How many puzzles.
        seed: For generated puzzles and for random orders.
    """
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {seed}")
    require_new_folder(out)
    decoding = Decoding(block=block, steps=steps, pace=load_pace(pace))
    model, size = load_for_boards(denoiser)
    orders = schedulers_named(schedulers.split(","), lambda name: load_scheduler(name, model, denoiser))
    problems = _problems(puzzles, size, clues, limit, seed)
    about = traces_of.about_boards(size, denoiser, traces_of.decoding_name(decoding, pace))
    out.mkdir(parents=True, exist_ok=True)
    with progress_bar("{task.description}", "puzzles") as progress:
        for row in progress.track(range(len(problems)), description="recording"):
            name = problem_name(problems.source, row) if len(problems) > 1 else problems.source
            # The seeds of `unmask evaluate`: the same puzzle is filled in the same order.
            seeds = torch.tensor([seed * 2**32 + row])
            canvas = problems.canvas([row]).seeded(seeds)
            recorded = traces_of.record(model, orders, canvas, about, decoding, problems=[name])[0]
            traces_of.write(recorded, out / f"{row + 1:04d}.json")
    written = "1 trace" if len(problems) == 1 else f"{len(problems)} traces"
    console.print(f"wrote {written} to {out}; see them with: unmask view {out}", soft_wrap=True)


def view(traces: tuple[Path, ...], /, out: Path = Path("orders.html"), title: str = viewer.TITLE) -> None:
    """Write the viewer, which plays orders step by step. One HTML file, two orders side by side; no server and no network.

    $ unmask view traces --out orders.html
    $ unmask view traces/0001.json other/0001.json --out orders.html

    Args:
        traces: Trace files, or folders of them (see `unmask trace`). Traces of the same problem can be compared.
        out: The page to write.
        title: Its heading.
    """
    found = _traces(traces)
    require_writable(out, PAGE)
    atomic_write(out, viewer.page(found, title).encode())
    console.print(f"wrote {len(found)} {'trace' if len(found) == 1 else 'traces'} to {out}; open it in a browser")


def report(inputs: tuple[Path, ...], /, out: Path = Path("report.html"), title: str | None = None) -> None:
    """Write a report as one HTML page. Tables, intervals, curves and cases; it needs nothing else to be read.

    $ unmask evaluate --denoiser sudoku-9x9-imperfect --schedulers confidence,margin,sas --json out.json
    $ unmask report out.json runs/order traces --out report.html

    Args:
        inputs: Evaluations (`unmask evaluate --json`), folders of studies and of training runs, traces or folders of them, in any
            order.
        out: The page to write.
        title: Its heading; by default it names the denoisers.
    """
    require_writable(out, PAGE)
    page.write(inputs, out, title, shlex.join(["unmask", *sys.argv[1:]]))
    console.print(f"wrote {out}; open it in a browser")


def figure(
    name: str,
    /,
    out: Path,
    trace: Path | None = None,
    denoiser: str = "sudoku-9x9-imperfect",
    puzzles: int = 60,
    seed: int = 0,
) -> None:
    """Draw a figure as SVG. `hero`: a puzzle that the learned order solves and confidence does not, side by side.

    $ unmask figure hero --out docs/hero.svg

    Args:
        name: Which figure: hero.
        out: The SVG file to write.
        trace: Draw this trace; without it, the first of the generated puzzles that only the learned order solves.
        denoiser: The denoiser, with a learned order that ships (see `unmask presets`).
        puzzles: How many generated puzzles to look through.
        seed: Which puzzles.
    """
    if name != "hero":
        raise ValueError(f"no figure {name!r}: expected hero")
    require_writable(out, "<svg")
    shown = traces_of.read(trace) if trace is not None else _only_the_learned_order(denoiser, puzzles, seed)
    atomic_write(out, hero(shown).encode())
    console.print(f"wrote {out}: {shown.problem}")


def _only_the_learned_order(denoiser: str, puzzles: int, seed: int) -> Trace:
    model, size = load_for_boards(denoiser)
    orders = schedulers_named(("confidence", "sas"), lambda name: load_scheduler(name, model, denoiser))
    problems = SudokuTask.generated(puzzles, size, "rao" if size == 9 else None, "test", seed)
    found = evaluate(problems, model, orders, seed=seed, likelihood=False)
    pairs = zip(found.row("confidence").solved, found.row("sas").solved, strict=True)
    row = next((row for row, pair in enumerate(pairs) if pair == ("0", "1")), None)
    if row is None:
        raise ValueError(f"none of {puzzles} puzzles is solved by the learned order only: try more, or another seed")
    about = traces_of.about_boards(size, denoiser)
    problem = problem_name(problems.source, row)
    seeds = torch.tensor([seed * 2**32 + row])
    return traces_of.record(model, orders, problems.canvas([row]).seeded(seeds), about, problems=[problem])[0]


def _traces(paths: tuple[Path, ...]) -> list[Trace]:
    if not paths:
        raise ValueError("there is nothing to view: name trace files, or a folder of them (see unmask trace)")
    found = gather(paths)
    if found.evaluations or found.trainings or not found.traces:
        raise ValueError(f"expected traces, got something else among {', '.join(map(str, paths))}: see unmask report")
    return found.traces


def _problems(text: str | None, size: int, clues: str | None, limit: int, seed: int) -> SudokuTask:
    """Generated puzzles, those of a file, or the one that is written out."""
    if text is None:
        return SudokuTask.generated(limit, size, clues, "test", seed)
    if names_a_file(text):
        problems = SudokuTask.read(text, limit)
    else:
        board, solution = written_board(text)
        problems = SudokuTask(board[None], solution[None], "a puzzle")
    if problems.size != size:
        raise ValueError(
            f"the denoiser decodes {size}x{size} boards, but the puzzles are {problems.size}x{problems.size}"
        )
    return problems
