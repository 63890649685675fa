"""How much faster a training is over several processes: the same steps by one and by more, one thread each, alternately.

Wall time, from the second step on: it needs as many idle cores as there are processes.
Both trainings must take the same first step, or the benchmark stops; after it sums in another order drift apart.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.runs.run import Run
from unmask_studies.bench.measuring import Finding, ratios

RECIPE = """extends = "sas-sudoku-9x9-imperfect"

[training]
steps = {steps}
prompts = {prompts}
validate = 2
validate_every = {later}
save_every = {later}
"""
TOLERANCE = 1e-3
"""Relative, of what a step logs: sums are taken in another order."""


@dataclass(frozen=True)
class Processes:
    """``steps`` of ``prompts`` boards, as many as in the preset, by one process and by as many as ``counts`` says."""

    counts: tuple[int, ...] = (2,)
    steps: int = 4
    prompts: int = 48
    repeats: int = 3


QUICK = Processes(steps=2, prompts=4, repeats=1)


def measure_processes(config: Processes) -> Iterator[Finding]:
    rates: dict[int, list[float]] = {count: [] for count in (1, *config.counts)}
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.toml"
        recipe.write_text(RECIPE.format(steps=config.steps, prompts=config.prompts, later=config.steps + 1))
        for turn in range(config.repeats):
            alone: dict[str, Any] = {}
            for count, found in rates.items():
                name = f"{turn}-{count}"
                launch(count, Path(folder), "train", "--preset", recipe.name, "--out", name)
                metrics = Run(Path(folder) / name).metrics()
                alone = alone or metrics[0]
                require_same(alone, metrics[0], count)
                found.append(config.prompts * (config.steps - 1) / sum(m["seconds"] for m in metrics[1:]))
    yield Finding.median("one process: trajectories per second", rates[1], "/s")
    for count in config.counts:
        yield Finding.median(
            f"{count} processes: trajectories per second over one", ratios(rates[count], rates[1]), "×"
        )
    yield Finding("cores that this process may use", float(len(os.sched_getaffinity(0))), "")


def launch(count: int, folder: Path, *words: str) -> str:
    """`unmask WORDS` in a folder, by ``accelerate launch`` as docs/scaling.md has it, with a thread a process; its output."""
    # With --cpu the launcher starts one process, whatever the number. --multi_gpu starts them all; the environment keeps them here.
    options = ["--multi_gpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    options += ["--num_processes", str(count), "--main_process_port", str(_free_port())]
    launcher = ["-m", "accelerate.commands.launch", *options] if count > 1 else []
    command = [sys.executable, *launcher, "-m", "unmask", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        reason = next((line for line in lines if line.startswith("unmask:")), lines[-1])
        raise ValueError(f"{count} process{'es' * (count > 1)} ended with exit code {done.returncode}: {reason}")
    return done.stdout


def require_same(alone: Mapping[str, Any], shared: Mapping[str, Any], count: int) -> None:
    """Raises unless both logs of a step agree, but for its time."""
    for name in {name for name in alone if "seconds" not in name}:
        if abs(alone[name] - shared[name]) > TOLERANCE * max(1.0, abs(alone[name])):
            raise ValueError(
                f"{count} processes are not the same training as one: {name} of step {alone['step']} is {shared[name]:g}, "
                f"not {alone[name]:g}"
            )


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
