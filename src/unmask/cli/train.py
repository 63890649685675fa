"""``unmask train``: a policy that orders the reveals of a frozen denoiser."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from unmask.cli.shell import Inline, console, find_option, progress_bar, with_config
from unmask.runs.presets import change_training, load_preset
from unmask.runs.run import Run
from unmask.tasks.kinds import find_kind, find_preset, require_kind
from unmask.training.cost.preflight import Needs
from unmask.training.policy.run import PolicyRun, run_policy_training
from unmask.training.policy.validation import best_step

C = TypeVar("C", bound=Any)


@dataclass(frozen=True)
class Train:
    """Learn an order for a frozen denoiser. Self-Aware Scheduling, or one of its rivals.

    $ unmask train --preset sas-sudoku-9x9-imperfect --out runs/order
    $ unmask evaluate --denoiser sudoku-9x9-imperfect --schedulers confidence,margin,runs/order
    $ unmask train --task text --denoiser llada-folder --data train.jsonl --out runs/text-order
    """

    out: Path  # The run's folder: configuration, versions, metrics, checkpoints, and at the end the best policy.
    config: Annotated[PolicyRun, Inline]  # The preset, each of whose fields is an option.
    task: str | None = None
    """sudoku, text, antibody, arithmetic, ordered, code or countdown. The preset's, or with neither, sudoku."""
    preset: str | None = None
    """The name of a preset, or your own TOML file; by default the task's. See `unmask presets`."""
    data: Path | None = None  # The file to train on, where problems are read; short for --data.file.
    resume: bool = False  # Continue a run that was interrupted. Without it an existing folder is refused.
    steps: int | None = None  # Training steps; short for --training.steps.
    seed: int | None = None  # Another seed for weights, problems and orders; sets --training.seed and --data.seed.

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Any:
        preset, task = find_option(words, "--preset"), find_option(words, "--task")
        if task is not None:
            find_kind(task)
        config = load_preset(preset or find_preset(task), PolicyRun, "train")
        if task is not None:
            require_kind(config.data, task)
        return with_config(cls, config)

    def run(self) -> None:
        config = read_from(change_training(self.config, self.seed, steps=self.steps), self.data)
        show_learning(config, self.out, self.resume)
        step = best_step(Run(self.out).metrics())
        after = {None: "", 0: ": as it began, since no step made it better"}.get(step, f": as it was after step {step}")
        console.print(f"the policy is in {self.out / 'policy'}{after}")


def read_from(config: C, file: Path | None) -> C:
    """The configuration with another file of problems, where one is given."""
    return config if file is None else replace(config, data=config.data.with_file(str(file)))


def show_learning(config: PolicyRun, out: Path, resume: bool) -> None:
    """Train with a live line. Ctrl-C and SIGTERM let the step end and be saved."""
    with _defer_signals() as received, progress_bar("{task.description}", "steps") as progress:
        bar = progress.add_task("learning", total=config.training.steps)
        accuracy = ""
        for record in run_policy_training(config, out, resume, stop=lambda: bool(received), needs=_show_needs):
            for start in ("start_", ""):
                if (nll := record.get(f"{start}nll")) is not None:
                    accuracy = f", {nll:.3f} nats per held-out token"
                elif (share := record.get(f"{start}accuracy")) is not None:
                    accuracy = f", {share:.1%} of held-out problems solved"
            text = f"return {record['return']:.2f}, wrong reveals {record['wrong_reveals']:.2f}{accuracy}"
            progress.update(bar, completed=record["step"], description=text)
    if received:
        signal.raise_signal(received[0])  # the step was finished and saved: now the signal does what it does


def _show_needs(needs: Needs) -> None:
    for line in needs.lines:
        console.print(line, soft_wrap=True)


@contextlib.contextmanager
def _defer_signals() -> Iterator[list[int]]:
    """The signals to stop that have come; they have no other effect meanwhile."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: received.append(got)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
