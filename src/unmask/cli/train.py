"""``unmask train``: a policy that orders the reveals of a frozen denoiser."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from unmask.cli.shell import Inline, console, find_option, progress_bar, with_config
from unmask.runs.jsonable import read_json
from unmask.runs.presets import change_training
from unmask.runs.run import Run
from unmask.tasks.kinds import find_kind
from unmask.training.cost.preflight import Needs
from unmask.training.policy.run import PolicyRun, load_run, run_policy_training
from unmask.training.policy.trials import Choice, Trial
from unmask.training.policy.validation import best_step

C = TypeVar("C", bound=Any)
OWN_RECIPE = ("--policy.", "--training.objective", "--start")
"""Options that describe a recipe: no other is tried beside it."""


@dataclass(frozen=True)
class Train:
    """Learn an order for a frozen denoiser. Self-Aware Scheduling, or one of its rivals.

    $ unmask train --denoiser sudoku-9x9-imperfect --out runs/order
    $ unmask evaluate --denoiser sudoku-9x9-imperfect --schedulers confidence,margin,runs/order
    $ unmask train --task text --denoiser llada-folder --data train.jsonl --out runs/text-order
    """

    out: Path  # The run's folder: configuration, versions, metrics, checkpoints, and at the end the best policy.
    config: Annotated[PolicyRun, Inline]  # The preset, each of whose fields is an option.
    task: str | None = None
    """sudoku, text, arithmetic, ordered, code, countdown, characters, antibody or reaction. The preset's; without one, sudoku."""
    preset: str | None = None
    """The name of a preset, or your own TOML file; by default the task's, or `default`. See `unmask presets`."""
    data: Path | None = None  # The file to train on, where problems are read; short for --data.file.
    resume: bool = False  # Continue a run that was interrupted. Without it an existing folder is refused.
    steps: int | None = None  # Training steps; short for --training.steps.
    seed: int | None = None  # Another seed for weights, problems and orders; sets --training.seed and --data.seed.

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Any:
        preset, task = find_option(words, "--preset"), find_option(words, "--task")
        if task is not None:
            find_kind(task)
        config = load_run(task, preset, find_option(words, "--denoiser"))
        if any(word.startswith(OWN_RECIPE) for word in words):
            config = replace(config, candidates=())
        return with_config(cls, config)

    def run(self) -> None:
        config = read_from(change_training(self.config, self.seed, steps=self.steps), self.data)
        show_learning(config, self.out, self.resume)
        metrics = Run(self.out).metrics()
        if (done := metrics[-1]["step"]) < config.training.steps:
            console.print(f"ended after step {done}: the last {config.training.patience} validations were no better")
        step = best_step(metrics, starts=config.training.purpose == "order")
        base = read_json(self.out / "policy" / "config.json")["base"]
        began = "as it began" if base == config.policy.base else f"it orders as {base}"
        after = {None: "", 0: f": {began}, since no step made it better"}.get(step, f": as it was after step {step}")
        console.print(f"the policy is in {self.out / 'policy'}{after}")


def read_from(config: C, file: Path | None) -> C:
    """The configuration with another file of problems, where one is given."""
    return config if file is None else replace(config, data=config.data.with_file(str(file)))


def show_learning(config: PolicyRun, out: Path, resume: bool) -> None:
    """Train with a live line. Ctrl-C and SIGTERM end it at once: the run is saved as it was when the step began."""

    def show_needs(needs: Needs) -> None:
        for line in (*needs.lines, f"the denoiser runs on {config.describe()}"):
            console.print(line, soft_wrap=True)

    def show_trial(trial: Trial | Choice) -> None:
        if isinstance(trial, Trial):
            progress.update(bar, total=trial.steps, completed=trial.step, description=f"trying {trial.name}")
            return
        show = (lambda nll: f"{nll:.3f}") if trial.measure == "nll" else (lambda share: f"{share:.1%}")
        what = "nats per held-out token" if trial.measure == "nll" else "held-out problems solved"
        scores = ", ".join(f"{name} {show(score)}" for name, score in trial.scores.items())
        progress.console.print(f"{what} after the trials: {scores}; training {trial.name}", soft_wrap=True)
        progress.update(bar, total=config.training.steps, completed=0, description="learning")

    records = run_policy_training(config, out, resume, needs=show_needs, on_trial=show_trial)
    with hand_over_interrupts(records), progress_bar("{task.description}", "steps") as progress:
        bar = progress.add_task("learning", total=config.training.steps)
        accuracy = ""
        for record in records:
            if (noise := record.get("noise")) is not None:
                labels = "relative to that" if record["relative"] else "as they are"
                found = f"{noise:.0%} of the tokens are less likely than not even where all others are known"
                progress.console.print(f"{found}: prices are taken {labels}", soft_wrap=True)
            for start in ("start_", ""):
                if (nll := record.get(f"{start}nll")) is not None:
                    accuracy = f", {nll:.3f} nats per held-out token"
                elif (share := record.get(f"{start}accuracy")) is not None:
                    accuracy = f", {share:.1%} of held-out problems solved"
            text = f"return {record['return']:.2f}, wrong reveals {record['wrong_reveals']:.2f}{accuracy}"
            shares = (record[f"{part}_seconds"] / record["seconds"] for part in ("denoiser", "update"))
            text += ", {:.0%} of the time in the denoiser, {:.0%} in updates".format(*shares)
            progress.update(bar, completed=record["step"], description=text)


@contextlib.contextmanager
def hand_over_interrupts(records: Any) -> Iterator[None]:
    """An interrupt between two records of a training goes to the training, which saves what it has."""
    try:
        yield
    except KeyboardInterrupt as stop:
        records.throw(stop)
        raise
