"""``unmask pretrain``: a small denoiser, trained from random weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from unmask.cli.shell import Inline, console, find_option, progress_bar, with_config
from unmask.runs.presets import change_training, load_preset
from unmask.training.denoiser.pretrain import Pretrain as Config
from unmask.training.denoiser.pretrain import pretrain

PRESET = "sudoku-9x9-imperfect"


@dataclass(frozen=True)
class Pretrain:
    """Train a small masked diffusion model from random weights. The presets made the denoisers that ship with the package.

    $ unmask pretrain --preset sudoku-9x9-imperfect --out runs/mine
    """

    out: Path  # The run's folder: configuration, versions, metrics, checkpoints, and at the end the denoiser.
    config: Annotated[Config, Inline]  # The preset, each of whose fields is an option.
    preset: str = PRESET  # The name of a preset, or your own TOML file. See `unmask presets`.
    resume: bool = False  # Continue a run that was interrupted. Without it an existing folder is refused.
    samples: int | None = None  # Canvases to train on; short for --training.samples.
    seed: int | None = None  # Another seed for weights, data and masks; sets --training.seed and --data.seed.

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Any:
        config = load_preset(find_option(words, "--preset") or PRESET, Config, "pretrain")
        return with_config(cls, config)

    def run(self) -> None:
        show_pretraining(change_training(self.config, self.seed, samples=self.samples), self.out, self.resume)
        console.print(f"the denoiser, trained on {self.config.describe()}, is in {self.out / 'denoiser'}")


def show_pretraining(config: Config, out: Path, resume: bool) -> None:
    """Train with a live line."""
    with progress_bar("{task.description}", "canvases") as progress:
        bar = progress.add_task("training", total=config.training.steps * config.training.batch)
        for record in pretrain(config, out, resume):
            text = f"loss {record['loss']:.3f}, hidden cells guessed {record['token_accuracy']:.1%}"
            progress.update(bar, completed=record["samples"], description=text)
        progress.update(bar, completed=config.training.steps * config.training.batch)
