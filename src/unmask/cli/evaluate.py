"""``unmask evaluate``: several orders on the same problems."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from unmask.cli.shell import FIRST, console, progress_bar, require_new_folder, require_writable
from unmask.cli.sudoku import load_for_boards
from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.decoding.protocols import Task
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import Report, evaluate, schedulers_named
from unmask.generation.text_canvas import load_tokenizer
from unmask.report import cases
from unmask.report.terminal import tables as terminal
from unmask.report.traces import record as trace
from unmask.runs.names import did_you_mean
from unmask.runs.processes import launched
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.jsonl import TextData
from unmask.tasks.kinds import WRITTEN, written_task
from unmask.tasks.sources import KINDS
from unmask.tasks.sudoku.task import SudokuTask
from unmask.tasks.vocabulary import drawn

READ = ("text", "antibody")
TEXT_LENGTH = 4096
"""Tokens of a completion; the denoiser's own limit counts besides."""
HEURISTICS = "random,left_to_right,confidence,margin,entropy,expert"


def evaluate_command(
    task: str = "sudoku",
    data: Path | None = None,
    denoiser: str = "sudoku-9x9",
    schedulers: str = HEURISTICS,
    blocks: tuple[int, ...] = (),
    steps: tuple[int, ...] = (),
    pace: tuple[str, ...] = (),
    baseline: str | None = None,
    limit: int = 200,
    clues: str | None = None,
    batch: int = 64,
    seed: int = 0,
    nll: bool = True,
    by_difficulty: bool = False,
    json: Path | None = None,
    traces: Path | None = None,
    trace_cases: int = 8,
) -> None:
    """Compare orders on the same problems. Prints a table with intervals and paired comparisons.

    $ unmask evaluate --denoiser sudoku-9x9-imperfect --limit 500
    $ unmask evaluate --data puzzles.csv --schedulers confidence,margin,gt_logp --json out.json
    $ unmask evaluate --steps 20 10 --schedulers confidence,entropy
    $ unmask evaluate --denoiser sudoku-9x9-imperfect --schedulers confidence,sas --json out.json --traces traces

    Args:
        task: What kind of problem: sudoku, arithmetic, ordered, code, countdown, text or antibody.
        data: A CSV file of puzzles, or JSON lines of Countdown problems; without it, generated ones of the test split. For text,
            JSON lines of prompts and completions, of which the length is given; a CSV file of antibodies, of which the test side
            counts.
        denoiser: A shipped name, a folder (or the run that trained it), or a hub id.
        schedulers: Names separated by commas; options after colons, as in top_k_random:k=3; sas is the denoiser's learned order.
        blocks: Block sizes for semi-autoregressive decoding; several give several rows.
        steps: Step budgets for parallel decoding; several give several rows.
        pace: Rules for how many per step (threshold:p=0.9, factor, entropy_bound, kl_stable, dilated); several give several rows.
        baseline: The order that the others are compared with, puzzle by puzzle; confidence by default, if it is among them.
        limit: How many problems.
        clues: For generated puzzles: rao, wide, or a range such as 25-35.
        batch: Canvases decoded together. It changes speed and memory, not results.
        seed: For generated puzzles and for random orders.
        nll: Also price the solution exactly along each order (costs a second decoding of what failed).
        by_difficulty: Also print accuracy by what makes a problem hard: of a puzzle, the hardest technique that it needs.
        json: Write everything to this file.
        traces: Also record the problems that tell most, for `unmask view` and `unmask report`, into this new folder.
        trace_cases: How many: won, lost and failed by both in turn, the learned (or the best) order against the baseline.
    """
    known = ("sudoku", *WRITTEN, *READ)
    if task not in known:
        raise ValueError(f"no task {task!r}: expected one of {', '.join(known)}{did_you_mean(task, known)}")
    if json is not None:
        if data is not None and json.resolve() == data.resolve():
            raise ValueError(f"--json would overwrite the puzzles in {data}: name another file")
        require_writable(json, '"task"')
    if trace_cases < 1:
        raise ValueError(f"trace-cases must be at least 1, got {trace_cases}")
    if traces is not None:
        require_new_folder(traces)
    if task == "sudoku":
        model, problems, about = _boards(denoiser, data, limit, clues, seed)
    else:
        if clues is not None:
            raise ValueError(f"--clues is for Sudoku: {task} problems have none")
        make = _read if task in READ else _written
        model, problems, about = make(task, denoiser, data, limit, seed)
        if schedulers == HEURISTICS:
            schedulers = schedulers.removesuffix(",expert")  # it is one at Sudoku
    orders = schedulers_named(schedulers.split(","), lambda name: load_scheduler(name, model, denoiser))
    decodings = _decodings(blocks, steps, pace)
    report = show_evaluation(problems, model, orders, decodings, denoiser, baseline, batch, seed, nll)
    if not FIRST:
        return  # of several processes one writes
    console.print(terminal.comparison(report))
    if by_difficulty:
        console.print(terminal.strata(report))
    if json is not None:
        report.write(json, command=shlex.join(["unmask", *sys.argv[1:]]))
    if traces is not None:
        recording = cases.record_cases(report, problems, model, orders, decodings, about, traces, trace_cases)
        with progress_bar("{task.description}", "traces") as progress:
            total = min(trace_cases, len(problems)) * len(decodings)
            written = list(progress.track(recording, total=total, description="recording"))
        shown = f"unmask view {traces}" if json is None else f"unmask report {json} {traces}"
        count = "1 trace" if len(written) == 1 else f"{len(written)} traces"
        console.print(f"wrote {count} to {traces}; see them with: {shown}", soft_wrap=True)


def _boards(
    denoiser: str, data: Path | None, limit: int, clues: str | None, seed: int
) -> tuple[Any, Task, trace.About]:
    """The denoiser, puzzles that fit it, and how a trace shows them."""
    model, size = load_for_boards(denoiser)
    if data is not None:
        problems = SudokuTask.read(data, limit)
    else:
        problems = SudokuTask.generated(limit, size, clues, "test", seed)
    if problems.size != size:
        raise ValueError(
            f"{denoiser} decodes {size}x{size} boards, but the puzzles are {problems.size}x{problems.size}"
        )
    return model, problems, trace.about_boards(size, denoiser)


def _written(task: str, denoiser: str, data: Path | None, limit: int, seed: int) -> tuple[Any, Task, trace.About]:
    """The same for the small text tasks."""
    model = load_denoiser(denoiser)
    WRITTEN[task].check(model, denoiser)
    return model, written_task(task, limit, data, seed), trace.About(task, denoiser, lambda token: drawn([token]))


def _read(task: str, denoiser: str, data: Path | None, limit: int, seed: int) -> tuple[Any, Task, trace.About]:
    """The same for problems that are read from a file and tokenised: all of a text, the test side of antibodies."""
    if data is None:
        raise ValueError(f"{task} is read from a file: name it with --data")
    model = load_denoiser(denoiser)
    if task == "text":
        texts = TextData(file=str(data), length=TEXT_LENGTH, pads="left_out", held_out=0.0, seed=seed)
        problems: Task = texts.problems(model, denoiser).held_out(limit, str(data))
    else:
        problems = KINDS["antibody"](file=str(data)).problems(model, denoiser).held_out(limit, "test")
    tokenizer = load_tokenizer(denoiser)
    return model, problems, trace.About(task, denoiser, lambda token: tokenizer.decode([token]))


def show_evaluation(
    problems: Task,
    model: Any,
    orders: dict[str, Any],
    decodings: dict[str, Decoding],
    name: str,
    baseline: str | None,
    batch: int,
    seed: int,
    nll: bool,
) -> Report:
    """Decode everything with a live line."""
    with progress_bar("{task.description}", "puzzles") as progress:
        bar = progress.add_task("decoding", total=len(problems) * len(orders) * len(decodings))

        def advance(order: str, count: int) -> None:
            progress.update(bar, advance=count, description=order)

        return evaluate(
            problems,
            model,
            orders,
            decodings,
            denoiser_name=name,
            baseline=baseline,
            batch=batch,
            seed=seed,
            likelihood=nll,
            progress=advance,
            together=launched(),
        )


def _decodings(blocks: tuple[int, ...], steps: tuple[int, ...], paces: tuple[str, ...]) -> dict[str, Decoding]:
    decodings = {f"block {b}": Decoding(block=b) for b in blocks}
    decodings |= {f"{t} steps": Decoding(steps=t) for t in steps}
    decodings |= {name: Decoding(pace=load_pace(name)) for name in paces}
    return decodings or {"sequential": Decoding()}
