"""Commands that learn an order, and that check the theory behind it."""

from __future__ import annotations

import json as json_text
import signal
from dataclasses import asdict, replace
from pathlib import Path

from rich.table import Table

from unmask.command_line import console, progress_bar, require_writable
from unmask.learn import Learn, learn
from unmask.presets import load_preset
from unmask.registry import load_denoiser
from unmask.runs import atomic_write
from unmask.tasks.sudoku.task import SudokuTask
from unmask.theory import claims


def train(
    out: Path,
    task: str = "sudoku",
    preset: str = "sas-sudoku-9x9-imperfect",
    denoiser: str | None = None,
    resume: bool = False,
    steps: int | None = None,
    seed: int | None = None,
) -> None:
    """Learn an order for a frozen denoiser (Self-Aware Scheduling).

    $ unmask train --preset sas-sudoku-9x9-imperfect --out runs/order
    $ unmask evaluate --denoiser sudoku-9x9-imperfect --schedulers confidence,margin,runs/order

    Args:
        out: The run's folder: configuration, versions, metrics, checkpoints, and at the end the best policy.
        task: What kind of problem: sudoku.
        preset: The name of a preset, or your own TOML file. See `unmask presets`.
        denoiser: Another denoiser than the preset's: a shipped name, a folder or a hub id.
        resume: Go on with a run that was interrupted. Without it an existing folder is refused.
        steps: Training steps, instead of the preset's number.
        seed: Another seed for weights, problems and orders.
    """
    if task != "sudoku":
        raise ValueError(f"no task {task!r}: expected sudoku")
    config = load_preset(preset, Learn, "train")
    if denoiser is not None:
        config = replace(config, denoiser=denoiser)
    if steps is not None:
        config = replace(config, training=replace(config.training, steps=steps))
    if seed is not None:
        config = replace(config, training=replace(config.training, seed=seed), data=replace(config.data, seed=seed))
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: asked.append(got)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with progress_bar("{task.description}", "steps") as progress:
            bar = progress.add_task("learning", total=config.training.steps)
            accuracy = ""
            for record in learn(config, out, resume, stop=lambda: bool(asked)):
                if "accuracy" in record:
                    accuracy = f", {record['accuracy']:.1%} of held-out problems solved"
                text = f"return {record['return']:.2f}, wrong reveals {record['wrong_reveals']:.2f}{accuracy}"
                progress.update(bar, completed=record["step"], description=text)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        # The step was finished and saved; leave as the signal asks.
        signal.raise_signal(asked[0])
    console.print(f"the policy is in {out / 'policy'}")


def verify(
    denoiser: str = "sudoku-4x4", puzzles: int = 3, clues: int = 8, seed: int = 1, json: Path | None = None
) -> None:
    """Check every theorem of the paper, exactly. On a real small denoiser and on enumerable tables.

    $ unmask verify --json claims.json

    Args:
        denoiser: A denoiser of 4x4 boards.
        puzzles: How many boards; each is enumerated with all its orders.
        clues: Given cells of a board: 8 leave 256 states.
        seed: Which boards, and which random tables.
        json: Also write the rows to this file.
    """
    if json is not None:
        require_writable(json)
    problems = SudokuTask.generated(puzzles, 4, f"{clues}-{clues}", "test", seed)
    rows = claims(load_denoiser(denoiser), problems.canvas(range(puzzles)), seed=seed)
    table = Table(
        "claim", "left", "", "right", "holds", "note", title=f"{denoiser}, {puzzles} boards with {16 - clues} blanks"
    )
    for row in rows:
        table.add_row(
            row.claim, f"{row.left:.6f}", row.relation, f"{row.right:.6f}", "yes" if row.holds else "NO", row.note
        )
    console.print(table)
    if json is not None:
        content = {"denoiser": denoiser, "rows": [asdict(row) for row in rows]}
        atomic_write(json, (json_text.dumps(content, indent=1) + "\n").encode())
    failed = [row.claim for row in rows if not row.holds]
    console.print(f"{len(rows) - len(failed)} of {len(rows)} hold")
    if failed:
        raise ValueError(f"{len(failed)} claims do not hold: {'; '.join(failed)}")
