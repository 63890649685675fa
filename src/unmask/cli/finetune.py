"""``unmask finetune``: a denoiser, tuned along fixed orders."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from unmask.cli.shell import Inline, console, find_option, progress_bar, with_config
from unmask.cli.train import hand_over_interrupts, read_from
from unmask.runs.presets import change_training, load_preset
from unmask.runs.processes import count_processes
from unmask.training.denoiser.second_stage import SecondStage, run_rounds, run_second_stage
from unmask.training.policy.run import PolicyRun

PRESET = "stage2-sudoku-9x9-imperfect"


@dataclass(frozen=True)
class Finetune:
    """Fine-tune a denoiser along an order (the second stage). The order is a learned policy's, the expert's, or any scheduler's.

    $ unmask finetune --preset stage2-sudoku-9x9-imperfect --out runs/tuned
    $ unmask finetune --order expert --out runs/tuned-expert
    $ unmask finetune --rounds 2 --out runs/rounds
    $ unmask finetune --preset lora-text --denoiser llada-folder --order runs/text-order --data train.jsonl --out runs/adapter
    $ unmask finetune --preset lora-text --data train.jsonl --dtype bfloat16 --device cuda --out runs/adapter-8b
    """

    out: Path  # The run's folder: configuration, versions, metrics, checkpoints, and at the end the denoiser.
    config: Annotated[SecondStage, Inline]  # The preset, each of whose fields is an option.
    preset: str = PRESET  # The name of a preset, or your own TOML file. See `unmask presets`.
    data: Path | None = None  # The file to train on, where problems are read; short for --data.file.
    resume: bool = False  # Continue a run that was interrupted. Without it an existing folder is refused.
    samples: int | None = None  # Canvases to train on; short for --training.samples.
    seed: int | None = None  # Another seed for canvases and masks; sets --training.seed and --data.seed.
    rounds: int | None = None  # Tune the denoiser, learn an order for it, and repeat, this many times.
    order_preset: str = "sas-sudoku-9x9-imperfect"  # With --rounds: how the orders are learned.

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Any:
        config = load_preset(find_option(words, "--preset") or PRESET, SecondStage, "finetune")
        return with_config(cls, config)

    def run(self) -> None:
        config = read_from(change_training(self.config, self.seed, samples=self.samples), self.data)
        if self.rounds is None:
            show_tuning(config, self.out, self.resume)
            console.print(f"the denoiser is in {self.out / 'denoiser'}")
            return
        learning = load_preset(self.order_preset, PolicyRun, "train")
        with progress_bar("{task.description}", "steps") as progress:
            bar = progress.add_task("rounds", total=None)
            for number, what, record in run_rounds(config, learning, self.rounds, self.out, self.resume):
                progress.update(bar, completed=record["step"], description=f"round {number}, {what}")
                if "on_path" in record:
                    console.print(f"round {number}, denoiser at step {record['step']}: {_describe(record)}")
                elif "accuracy" in record:
                    solved = f"{record['accuracy']:.1%} of held-out problems solved"
                    console.print(f"round {number}, order at step {record['step']}: {solved}")
        last = self.out / f"round-{self.rounds}"
        console.print(f"the denoiser is in {last / 'denoiser'}, its order in {last / 'order'}")


def show_tuning(config: SecondStage, out: Path, resume: bool) -> None:
    """The second stage with two progress lines: orders, canvases. Prints its effect on held-out problems."""
    if (processes := count_processes()) > 1:
        console.print(f"the canvases of a step are shared by {processes} processes")
    with ExitStack() as stack, progress_bar("{task.description}", "canvases") as progress:
        drawing = progress.add_task("decoding orders", total=config.data.problem_count)
        bar = progress.add_task("tuning", total=config.training.steps * config.training.batch)
        records = run_second_stage(config, out, resume, lambda count: progress.update(drawing, advance=count))
        stack.enter_context(hand_over_interrupts(records))
        for record in records:
            if "on_path" in record:
                when = f"before, on {config.describe()}" if record["step"] == 0 else "after"
                console.print(f"{when}: {_describe(record)}")
            else:
                text = f"loss {record['loss']:.3f}, priced cells guessed {record['token_accuracy']:.1%}"
                progress.update(bar, completed=record["samples"], description=text)


def _describe(record: dict[str, Any]) -> str:
    solved = f"{record['accuracy']:.1%} [{record['accuracy_low']:.1%}, {record['accuracy_high']:.1%}] solved"
    return f"{solved}; −log p per cell {record['on_path']:.4f} on the path, {record['off_path']:.4f} off it"
