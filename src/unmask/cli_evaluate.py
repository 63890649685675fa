"""``unmask evaluate``: several orders on the same problems."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from unmask.cli_decode import load_for_boards
from unmask.command_line import console, progress_bar, require_writable
from unmask.evaluate import Report, evaluate, schedulers_named
from unmask.live import Regime
from unmask.registry import load_pace, load_scheduler
from unmask.report import terminal
from unmask.tasks.sudoku.task import SudokuTask

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
) -> None:
    """Compare orders on the same problems. Prints a table with intervals and paired comparisons.

    $ unmask evaluate --denoiser sudoku-9x9-imperfect --limit 500
    $ unmask evaluate --data puzzles.csv --schedulers confidence,margin,gt_logp --json out.json
    $ unmask evaluate --steps 20 10 --schedulers confidence,entropy

    Args:
        task: What kind of problem: sudoku.
        data: A CSV file of puzzles; without it, generated puzzles that no shipped denoiser was trained on.
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
        by_difficulty: Also print accuracy by the hardest technique a puzzle needs.
        json: Write everything to this file.
    """
    if task != "sudoku":
        raise ValueError(f"no task {task!r}: expected sudoku")
    if json is not None:
        require_writable(json)
        if data is not None and json.resolve() == data.resolve():
            raise ValueError(f"--json would overwrite the puzzles in {data}: name another file")
    model, size = load_for_boards(denoiser)
    if data is not None:
        problems = SudokuTask.read(data, limit)
    else:
        problems = SudokuTask.generated(limit, size, clues, "test", seed)
    if problems.size != size:
        raise ValueError(
            f"{denoiser} decodes {size}x{size} boards, but the puzzles are {problems.size}x{problems.size}"
        )
    orders = schedulers_named(schedulers.split(","), lambda name: load_scheduler(name, model, denoiser))
    report = show_evaluation(
        problems, model, orders, _regimes(blocks, steps, pace), denoiser, baseline, batch, seed, nll
    )
    console.print(terminal.comparison(report))
    if by_difficulty:
        console.print(terminal.strata(report))
    if json is not None:
        report.write(json, command=shlex.join(["unmask", *sys.argv[1:]]))


def show_evaluation(
    problems: SudokuTask,
    model: Any,
    orders: dict[str, Any],
    regimes: dict[str, Regime],
    name: str,
    baseline: str | None,
    batch: int,
    seed: int,
    nll: bool,
) -> Report:
    """Decode everything with a live line."""
    with progress_bar("{task.description}", "puzzles") as progress:
        bar = progress.add_task("decoding", total=len(problems) * len(orders) * len(regimes))

        def advance(order: str, count: int) -> None:
            progress.update(bar, advance=count, description=order)

        return evaluate(
            problems,
            model,
            orders,
            regimes,
            denoiser_name=name,
            baseline=baseline,
            batch=batch,
            seed=seed,
            likelihood=nll,
            progress=advance,
        )


def _regimes(blocks: tuple[int, ...], steps: tuple[int, ...], paces: tuple[str, ...]) -> dict[str, Regime]:
    regimes = {f"block {b}": Regime(block=b) for b in blocks}
    regimes |= {f"{t} steps": Regime(steps=t) for t in steps}
    regimes |= {name: Regime(pace=load_pace(name)) for name in paces}
    return regimes or {"sequential": Regime()}
