"""Commands that train a denoiser, learn an order for it, tune it along one, and check the theory behind them."""

from __future__ import annotations

import contextlib
import json as json_text
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.table import Table

from unmask.cli.shell import console, progress_bar, require_writable
from unmask.denoisers.loading import load_denoiser
from unmask.runs.atomic import atomic_write
from unmask.runs.presets import load_preset
from unmask.runs.run import Run
from unmask.tasks.sources import problem_count, require_kind, require_task, with_file
from unmask.tasks.sudoku.task import SudokuTask
from unmask.theory import claims
from unmask.training.cost.preflight import Needs
from unmask.training.denoiser.pretrain import Pretrain, pretrain
from unmask.training.denoiser.second_stage import SecondStage, run_rounds, run_second_stage
from unmask.training.policy.run import PolicyRun, run_policy_training
from unmask.training.policy.validation import best_step

C = TypeVar("C", Pretrain, PolicyRun, SecondStage)
R = TypeVar("R", PolicyRun, SecondStage)


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
    config = _changed(load_preset(preset, Pretrain, "pretrain"), seed, samples=samples)
    show_pretraining(config, out, resume)
    console.print(f"the denoiser is in {out / 'denoiser'}")


def show_pretraining(config: Pretrain, out: Path, resume: bool) -> None:
    """Train with a live line."""
    with progress_bar("{task.description}", "canvases") as progress:
        bar = progress.add_task("training", total=config.training.steps * config.training.batch)
        for record in pretrain(config, out, resume):
            text = f"loss {record['loss']:.3f}, hidden cells guessed {record['token_accuracy']:.1%}"
            progress.update(bar, completed=record["samples"], description=text)
        progress.update(bar, completed=config.training.steps * config.training.batch)


def train(
    out: Path,
    task: str | None = None,
    preset: str | None = None,
    denoiser: str | None = None,
    data: Path | None = None,
    validation: str | None = None,
    resume: bool = False,
    steps: int | None = None,
    seed: int | None = None,
) -> None:
    """Learn an order for a frozen denoiser. Self-Aware Scheduling, or one of its rivals.

    $ unmask train --preset sas-sudoku-9x9-imperfect --out runs/order
    $ unmask evaluate --denoiser sudoku-9x9-imperfect --schedulers confidence,margin,runs/order
    $ unmask train --task text --denoiser llada-folder --data train.jsonl --out runs/text-order

    Args:
        out: The run's folder: configuration, versions, metrics, checkpoints, and at the end the best policy.
        task: sudoku, text, antibody, arithmetic, ordered, code or countdown. The preset's, or with neither, sudoku.
        preset: The name of a preset, or your own TOML file; by default the task's. See `unmask presets`.
        denoiser: Another denoiser than the preset's: a shipped name, a folder or a hub id.
        data: The file to train on, where problems are read: JSON lines of text, a CSV file of antibodies.
        validation: What is held out: a file of text, a split of antibodies, the clues of puzzles. By default as the preset says.
        resume: Go on with a run that was interrupted. Without it an existing folder is refused.
        steps: Training steps, instead of the preset's number.
        seed: Another seed for weights, problems and orders.
    """
    if task is not None:
        require_task(task)
    config = _changed(load_preset(preset or _preset_of(task), PolicyRun, "train"), seed, steps=steps)
    if task is not None:
        require_kind(config.data, task)
    config = _with_data(config, denoiser, data, validation)
    show_learning(config, out, resume)
    step = best_step(Run(out).metrics())
    after = {None: "", 0: ": as it began, since no step made it better"}.get(step, f": as it was after step {step}")
    console.print(f"the policy is in {out / 'policy'}{after}")


TASK_PRESETS = {
    "sudoku": "sas-sudoku-9x9-imperfect",
    "text": "sas-text",
    "antibody": "sas-antibody-sapiens-h",
}
"""How an order is learned where no preset is named."""


def _preset_of(task: str | None) -> str:
    if (preset := TASK_PRESETS.get(task or "sudoku")) is None:
        raise ValueError(f"no preset goes with the task {task} by itself: name one with --preset")
    return preset


def _with_data(config: R, denoiser: str | None, data: Path | None, validation: str | None) -> R:
    """The configuration with another denoiser, file and held-out problems, where they are given."""
    if denoiser is not None:
        config = replace(config, denoiser=denoiser)
    if data is not None:
        config = replace(config, data=with_file(config.data, str(data)))
    return config if validation is None else replace(config, validation=validation)


def show_learning(config: PolicyRun, out: Path, resume: bool) -> None:
    """Train with a live line. Ctrl-C and SIGTERM let the step end and be saved."""
    with _stops() as asked, progress_bar("{task.description}", "steps") as progress:
        bar = progress.add_task("learning", total=config.training.steps)
        accuracy = ""
        for record in run_policy_training(config, out, resume, stop=lambda: bool(asked), needs=_show_needs):
            for start in ("start_", ""):
                if (nll := record.get(f"{start}nll")) is not None:
                    accuracy = f", {nll:.3f} nats per held-out token"
                elif (share := record.get(f"{start}accuracy")) is not None:
                    accuracy = f", {share:.1%} of held-out problems solved"
            text = f"return {record['return']:.2f}, wrong reveals {record['wrong_reveals']:.2f}{accuracy}"
            progress.update(bar, completed=record["step"], description=text)
    if asked:
        # The step was finished and saved; leave as the signal asks.
        signal.raise_signal(asked[0])


def _show_needs(needs: Needs) -> None:
    for line in needs.lines:
        console.print(line, soft_wrap=True)


@contextlib.contextmanager
def _stops() -> Iterator[list[int]]:
    """The signals to stop that have come, instead of what they would do."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: asked.append(got)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def finetune_command(
    out: Path,
    preset: str = "stage2-sudoku-9x9-imperfect",
    denoiser: str | None = None,
    order: str | None = None,
    data: Path | None = None,
    validation: str | None = None,
    resume: bool = False,
    samples: int | None = None,
    seed: int | None = None,
    rounds: int | None = None,
    order_preset: str = "sas-sudoku-9x9-imperfect",
    dtype: str | None = None,
    device: str | None = None,
) -> None:
    """Fine-tune a denoiser along an order (the second stage). The order is a learned policy's, the expert's, or any scheduler's.

    $ unmask finetune --preset stage2-sudoku-9x9-imperfect --out runs/tuned
    $ unmask finetune --order expert --out runs/tuned-expert
    $ unmask finetune --rounds 2 --out runs/rounds
    $ unmask finetune --preset lora-text --denoiser llada-folder --order runs/text-order --data train.jsonl --out runs/adapter
    $ unmask finetune --preset lora-text --data train.jsonl --dtype bfloat16 --device cuda --out runs/adapter-8b

    Args:
        out: The run's folder: configuration, versions, metrics, checkpoints, and at the end the denoiser.
        preset: The name of a preset, or your own TOML file. See `unmask presets`.
        denoiser: Another denoiser than the preset's: a shipped name or a folder.
        order: Another order than the preset's: a scheduler's name, a policy's folder, or sas.
        data: The file to train on, where problems are read: JSON lines of text, a CSV file of antibodies.
        validation: What is held out: a file of text, a split of antibodies, the clues of puzzles. By default as the preset says.
        resume: Go on with a run that was interrupted. Without it an existing folder is refused.
        samples: Canvases to train on, instead of the preset's number.
        seed: Another seed for canvases and masks.
        rounds: Tune the denoiser, learn an order for it, and again, so many times.
        order_preset: With --rounds: how the orders are learned.
        dtype: float32 or bfloat16, the denoiser's, instead of the preset's.
        device: Such as cuda; auto spreads the denoiser over all devices. A resumed run may stand on another.
    """
    config = _changed(load_preset(preset, SecondStage, "finetune"), seed, samples=samples)
    config = _with_data(config, denoiser, data, validation)
    given = {"order": order, "dtype": dtype, "device": device}
    config = replace(config, **{name: value for name, value in given.items() if value is not None})
    if rounds is None:
        show_tuning(config, out, resume)
        console.print(f"the denoiser is in {out / 'denoiser'}")
        return
    learning = load_preset(order_preset, PolicyRun, "train")
    with progress_bar("{task.description}", "steps") as progress:
        bar = progress.add_task("rounds", total=None)
        for number, what, record in run_rounds(config, learning, rounds, out, resume):
            progress.update(bar, completed=record["step"], description=f"round {number}, {what}")
            if "on_path" in record:
                console.print(f"round {number}, denoiser at step {record['step']}: {_measured(record)}")
            elif "accuracy" in record:
                solved = f"{record['accuracy']:.1%} of held-out problems solved"
                console.print(f"round {number}, order at step {record['step']}: {solved}")
    console.print(
        f"the denoiser is in {out / f'round-{rounds}' / 'denoiser'}, its order in {out / f'round-{rounds}' / 'order'}"
    )


def show_tuning(config: SecondStage, out: Path, resume: bool) -> None:
    """The second stage with two progress lines: orders drawn, canvases seen. Prints what it did on held-out problems."""
    with progress_bar("{task.description}", "canvases") as progress:
        drawing = progress.add_task("drawing orders", total=problem_count(config.data))
        bar = progress.add_task("tuning", total=config.training.steps * config.training.batch)
        for record in run_second_stage(config, out, resume, lambda count: progress.update(drawing, advance=count)):
            if "on_path" in record:
                when = "before" if record["step"] == 0 else "after"
                console.print(f"{when}: {_measured(record)}")
            else:
                text = f"loss {record['loss']:.3f}, asked cells guessed {record['token_accuracy']:.1%}"
                progress.update(bar, completed=record["samples"], description=text)


def _measured(record: dict[str, Any]) -> str:
    solved = f"{record['accuracy']:.1%} [{record['accuracy_low']:.1%}, {record['accuracy_high']:.1%}] solved"
    return f"{solved}; −log p per cell {record['on_path']:.4f} on the path, {record['off_path']:.4f} off it"


def _changed(config: C, seed: int | None, **length: int | None) -> C:
    """The preset with another seed for its data and its training, and another length."""
    training = {name: value for name, value in length.items() if value is not None}
    if seed is not None:
        training["seed"] = seed
        config = replace(config, data=replace(config.data, seed=seed))
    return replace(config, training=replace(config.training, **training))


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
