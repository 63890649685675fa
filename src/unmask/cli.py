"""The command ``unmask``: what its options mean, which function each command calls, and what is printed."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from unmask.cli_learn import train, verify
from unmask.command_line import console, progress_bar, require_writable, run
from unmask.decode import unmask
from unmask.evaluate import Report, evaluate, schedulers_named
from unmask.live import Regime
from unmask.presets import list_presets, load_preset
from unmask.pretrain import Pretrain, pretrain
from unmask.registry import ALL_SCHEDULERS, load_denoiser, load_pace, load_scheduler, shipped, shipped_policies
from unmask.report import terminal
from unmask.tasks.sudoku import TECHNIQUES, count_solutions, format_board, hardest, parse, read_csv, solve, write_csv
from unmask.tasks.sudoku.task import SudokuTask

HEURISTICS = "random,left_to_right,confidence,margin,entropy,expert"


def data(
    out: Path | None = None,
    /,
    count: int = 1000,
    size: int = 9,
    clues: str | None = None,
    split: str = "test",
    seed: int = 0,
    check: Path | None = None,
) -> None:
    """Generate Sudoku puzzles, or check a file of them. Each has exactly one solution.

    $ unmask data puzzles.csv --count 2000 --clues rao
    $ unmask data --check puzzles.csv

    Args:
        out: The CSV file to write (puzzle, solution).
        count: How many puzzles.
        size: 4, 6 or 9.
        clues: "rao" (the histogram of the corpus in the paper), "wide" (harder), or a range such as 25-35.
        split: train, validation or test. No puzzle has a relative, under the grid's symmetries, in another split.
        seed: Which corpus.
        check: Verify this file instead: every row must have exactly one solution. Says how hard its puzzles are.
    """
    if check is not None:
        if out is not None:
            raise ValueError(f"name a file to write or one to check, not both: got {out} and --check {check}")
        file = read_csv(check)
        given = (file.puzzles > 0).sum(1)
        console.print(
            f"{check}: {len(given)} puzzles, each with one solution; clues {given.min()} to {given.max()}, mean {given.mean():.1f}"
        )
        table = Table("hardest technique needed", "puzzles", "share")
        techniques = hardest(file.puzzles, file.solutions)
        for number, name in enumerate(TECHNIQUES):
            if (amount := int((techniques == number).sum())) > 0:
                table.add_row(name, str(amount), f"{amount / len(given):.1%}")
        console.print(table)
        return
    if out is None:
        raise ValueError("name the file to write, or --check FILE to verify one")
    if out.exists():
        raise ValueError(f"{out} exists: name another file, or remove it first")
    require_writable(out)
    task = SudokuTask.generated(count, size, clues, split, seed)
    aside = out.with_name(f".{out.name}.part")
    try:
        write_csv(aside, task.puzzles, task.solutions)
        aside.rename(out)
    finally:
        aside.unlink(missing_ok=True)
    console.print(f"wrote {len(task)} puzzles ({split} split, seed {seed}) to {out}")


def pretrain_command(
    out: Path,
    preset: str = "sudoku-9x9-imperfect",
    resume: bool = False,
    samples: int | None = None,
    seed: int | None = None,
) -> None:
    """Train a small masked diffusion model from nothing. The presets made the denoisers that ship with the package.

    $ unmask pretrain --preset sudoku-9x9-imperfect --out runs/mine

    Args:
        out: The run's folder: configuration, versions, metrics, checkpoints, and at the end the denoiser.
        preset: The name of a preset, or your own TOML file. See `unmask presets`.
        resume: Go on with a run that was interrupted. Without it an existing folder is refused.
        samples: Canvases to train on, instead of the preset's number.
        seed: Another seed for weights, data and masks.
    """
    config = load_preset(preset, Pretrain, "pretrain")
    if samples is not None:
        config = replace(config, training=replace(config.training, samples=samples))
    if seed is not None:
        config = replace(config, training=replace(config.training, seed=seed), data=replace(config.data, seed=seed))
    _pretrain(config, out, resume)


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
    model, size = _load_for_boards(denoiser)
    if data is not None:
        problems = SudokuTask.read(data, limit)
    else:
        problems = SudokuTask.generated(limit, size, clues, "test", seed)
    if problems.size != size:
        raise ValueError(
            f"{denoiser} decodes {size}x{size} boards, but the puzzles are {problems.size}x{problems.size}"
        )
    orders = schedulers_named(schedulers.split(","), lambda name: load_scheduler(name, model, denoiser))
    report = _evaluate(problems, model, orders, _regimes(blocks, steps, pace), denoiser, baseline, batch, seed, nll)
    console.print(terminal.comparison(report))
    if by_difficulty:
        console.print(terminal.strata(report))
    if json is not None:
        report.write(json, command=shlex.join(["unmask", *sys.argv[1:]]))


def decode(
    puzzle: str,
    /,
    scheduler: str = "confidence",
    denoiser: str | None = None,
    block: int | None = None,
    steps: int | None = None,
    pace: str = "top",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Fill a puzzle, or a file of them, and show the order.

    $ unmask decode 53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79
    $ unmask decode puzzles.csv --scheduler margin --json

    Args:
        puzzle: 81 (or 16) characters, row by row, 0 or . for a blank; or a CSV file.
        scheduler: The order: any name that `unmask evaluate` knows.
        denoiser: A shipped name, a folder or a hub id; by default the shipped one of the puzzle's size.
        block: Block size, for semi-autoregressive decoding.
        steps: Step budget, for parallel decoding.
        pace: How many per step: top, threshold:p=0.9, factor, entropy_bound, kl_stable, dilated.
        seed: For random orders.
        json: Print JSON instead of boards, one object a line.
    """
    boards, solutions = _read_boards(puzzle)
    size = round(boards.shape[1] ** 0.5)
    name = denoiser or {9: "sudoku-9x9", 4: "sudoku-4x4"}.get(size)
    if name is None:
        raise ValueError(f"no denoiser ships for {size}x{size} boards: train one and name its folder with --denoiser")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {seed}")
    model, fits = _load_for_boards(name)
    order = load_scheduler(scheduler, model, name)
    if fits != size:
        raise ValueError(f"{name} decodes {fits}x{fits} boards, but the puzzle is {size}x{size}")
    regime = Regime(block=block, steps=steps, pace=load_pace(pace))
    for row, (board, solution) in enumerate(zip(boards, solutions, strict=True)):
        # The seeds of `unmask evaluate`: the same puzzle of the same file is filled in the same order.
        _decode_one(board, solution, model, order, regime, seed * 2**32 + row, scheduler, name, json)


def presets() -> None:
    """List the presets, denoisers and schedulers by name."""
    table = Table("for", "preset", "what")
    for preset in list_presets():
        table.add_row(preset.kind, preset.name, preset.description)
    console.print(table)
    console.print(f"denoisers: {', '.join(shipped())}")
    console.print(f"policies: {', '.join(shipped_policies())}")
    console.print(f"schedulers: {', '.join(ALL_SCHEDULERS)}")


def demo(out: Path = Path("runs/demo"), puzzles: int = 200) -> None:
    """Train a small denoiser and compare the orders people use. A few minutes on two cores.

    Args:
        out: The run's folder. A second demo goes on where the first one stopped.
        puzzles: Held-out puzzles in the table.
    """
    problems = SudokuTask.generated(puzzles, clues="rao")
    console.print("1. A small masked diffusion model learns Sudoku from random masks.")
    _pretrain(load_preset("sudoku-9x9-imperfect", Pretrain, "pretrain"), out, resume=True)
    console.print("2. The same frozen model fills held-out puzzles in six orders.")
    model = load_denoiser(out)
    orders = schedulers_named(HEURISTICS.split(","), load_scheduler)
    report = _evaluate(problems, model, orders, {"sequential": Regime()}, str(out), "confidence", 64, 0, True)
    console.print(terminal.comparison(report))
    report.write(out / "heuristics.json")
    console.print(f"Everything is in {out}. Next: unmask decode --help, unmask evaluate --help")


def _pretrain(config: Pretrain, out: Path, resume: bool) -> None:
    with progress_bar("{task.description}", "canvases") as progress:
        bar = progress.add_task("training", total=config.training.steps * config.training.batch)
        for record in pretrain(config, out, resume):
            text = f"loss {record['loss']:.3f}, hidden cells guessed {record['token_accuracy']:.1%}"
            progress.update(bar, completed=record["samples"], description=text)
        progress.update(bar, completed=config.training.steps * config.training.batch)
    console.print(f"the denoiser is in {out / 'denoiser'}")


def _evaluate(
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


def _decode_one(
    board: np.ndarray,
    solution: np.ndarray,
    model: Any,
    order: Any,
    regime: Regime,
    seed: int,
    scheduler: str,
    name: str,
    as_json: bool,
) -> None:
    tokens, truth = (torch.from_numpy(cells.astype(np.int64))[None] for cells in (board, solution))
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    path = unmask(
        model, order, tokens, regime, reference=truth, region=everywhere, seeds=torch.tensor([seed]), record=False
    )
    answer, rank = path.tokens[0].numpy(), path.rank[0].numpy()
    wrong = answer != truth[0].numpy()
    first_wrong = next((k for k, cell in enumerate(path.order[0].tolist()) if cell >= 0 and wrong[cell]), None)
    if as_json:
        record = {
            "puzzle": format_board(board),
            "answer": format_board(answer),
            "solved": not bool(wrong.any()),
            "denoiser": name,
            "scheduler": scheduler,
            "order": path.order[0].tolist(),
            "step": path.step[0].tolist(),
            "token_logp": [round(value, 6) for value in path.logp[0].tolist()],
            "path_logp": path.path_logp.item(),
            "first_wrong": first_wrong,
            "denoiser_calls": path.denoiser_calls,
        }
        sys.stdout.write(json.dumps(record) + "\n")
        return
    verdict = "solved" if first_wrong is None else f"wrong: {wrong.sum()} cells, the first at reveal {first_wrong + 1}"
    console.print(f"{scheduler} order, {name}: {verdict}; {path.denoiser_calls} denoiser calls, {path.seconds:.2f} s")
    grid = Table.grid(padding=(0, 6))
    grid.add_row(
        f"the answer (blue first, red last{', ! is wrong' if wrong.any() else ''})", "the order of its reveals"
    )
    grid.add_row(terminal.board(answer, rank, wrong), terminal.ranks(rank))
    console.print(grid)


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


def _load_for_boards(name: str) -> tuple[Any, int]:
    """A denoiser and the size of the boards it fills."""
    model = load_denoiser(name)
    size = round(model.config.max_length**0.5)
    if (model.config.max_length, model.config.vocab_size, model.mask_id) != (size * size, size + 1, 0):
        raise ValueError(f"{name} is not a denoiser of Sudoku boards: expected digits 1..n, and 0 for a hidden cell")
    return model, size


def _regimes(blocks: tuple[int, ...], steps: tuple[int, ...], paces: tuple[str, ...]) -> dict[str, Regime]:
    regimes = {f"block {b}": Regime(block=b) for b in blocks}
    regimes |= {f"{t} steps": Regime(steps=t) for t in steps}
    regimes |= {name: Regime(pace=load_pace(name)) for name in paces}
    return regimes or {"sequential": Regime()}


COMMANDS: dict[str, Callable[..., None]] = {
    "data": data,
    "pretrain": pretrain_command,
    "train": train,
    "evaluate": evaluate_command,
    "decode": decode,
    "verify": verify,
    "presets": presets,
    "demo": demo,
}


def main() -> None:
    """The order of thought of masked diffusion language models."""
    run(COMMANDS, "unmask", str(main.__doc__))


if __name__ == "__main__":
    main()
