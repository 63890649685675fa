"""A policy trained for a given time while its memory is watched: after a warm-up the resident size must not grow.

    python tests/soak.py --seconds 600

A line is fitted to the resident size over the steps after the first third; the bound is on its upper 95 % limit, times the steps of
a long run, so that neither noise nor a short soak passes for a leak or hides one.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from unmask.schedulers.config import PolicyConfig
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training

MEGABYTE = 2**20
BOUND = 64 * MEGABYTE
"""What a run of ``LONG`` steps may gain."""
LONG = 10_000
SMALL = PolicyRun(
    "sudoku-4x4",
    PolicyConfig(width=8, n_layers=1),
    data=SudokuData(size=4, puzzles=200, clues="9-11"),
    training=PolicyTraining(
        steps=1_000_000, prompts=2, states=64, correctness=0.5, validate=4, validate_every=10, save_every=5
    ),
)


@dataclass(frozen=True)
class Growth:
    """Bytes of resident memory per step, with 95 % limits, fitted over ``steps`` steps after the warm-up."""

    steps: int
    per_step: float
    low: float
    high: float

    @property
    def leaks(self) -> bool:
        """Grows for certain, and by enough to matter in a long run."""
        return self.low > 0 and self.per_step * LONG > BOUND


def resident() -> int:
    """Bytes of this process that are in memory."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def growth(sizes: Sequence[int], warm_up: float = 1 / 3, blocks: int = 20) -> Growth:
    """The slope of ``sizes`` over their index. Means of blocks stand for their steps, whose sizes are not independent."""
    kept = np.asarray(sizes[int(len(sizes) * warm_up) :], dtype=float)
    if len(kept) < 2 * blocks:
        raise ValueError(f"expected at least {2 * blocks} steps after the warm-up, got {len(kept)}: soak for longer")
    width = len(kept) // blocks
    means = kept[: width * blocks].reshape(blocks, width).mean(1)
    at = (np.arange(blocks) + 0.5) * width
    centred = at - at.mean()
    slope = float(centred @ means / (centred @ centred))
    rest = means - means.mean() - slope * centred
    error = float(np.sqrt(rest @ rest / (blocks - 2) / (centred @ centred)))
    return Growth(len(kept), slope, slope - 2.1 * error, slope + 2.1 * error)


def soak(seconds: float, folder: Path, config: PolicyRun = SMALL) -> list[int]:
    """Train in ``folder`` for so long; the resident size after every step."""
    sizes: list[int] = []
    end = time.monotonic() + seconds
    for _ in run_policy_training(config, folder, stop=lambda: time.monotonic() > end):
        gc.collect()
        sizes.append(resident())
    return sizes


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    words.add_argument("--seconds", type=float, default=600.0)
    words.add_argument("--seed", type=int, default=0)
    options = words.parse_args()
    torch.set_num_threads(1)
    config = replace(SMALL, training=replace(SMALL.training, seed=options.seed))
    with tempfile.TemporaryDirectory() as place:
        sizes = soak(options.seconds, Path(place) / "run", config)
    try:
        found = growth(sizes)
    except ValueError as error:
        sys.exit(str(error))
    print(
        f"{len(sizes)} steps in {options.seconds:.0f} s; resident {sizes[0] / MEGABYTE:.1f} MB after the first step, "
        f"{sizes[-1] / MEGABYTE:.1f} MB after the last; {found.per_step:.0f} bytes per step "
        f"[{found.low:.0f}, {found.high:.0f}] over the last {found.steps} steps"
    )
    if found.leaks:
        sys.exit(f"memory grows: {found.per_step * LONG / MEGABYTE:.0f} MB in {LONG} steps")


if __name__ == "__main__":
    main()
