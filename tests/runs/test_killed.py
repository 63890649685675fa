"""A process killed at any moment, in the middle of a save too, leaves a run that can be resumed."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from support.forks import Fork, latest_step
from unmask.runs.run import Run


@dataclass(frozen=True)
class Config:
    steps: int = 10


def save(run: Run, step: int, seed: int) -> None:
    run.log({"step": step})
    run.save(step, {"x": torch.full((1000,), float(seed))}, {"seed": seed})


def save_and_die(run: Run, step: int, before: int) -> None:
    """The process is killed before its n-th system call that makes something durable or visible."""
    count = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == before:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args, **kwargs)

        return call

    for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    save(run, step, 2)


def is_killed_before(n: int, folder: Path, target: int) -> bool:
    run = Run(folder)
    run.folder.mkdir()
    save(run, 1, 1)
    child = Fork(lambda: save_and_die(run, target, n), folder)
    _, err = child.communicate()
    found = run.load_latest()
    assert found is not None and not found.skipped, (n, found)
    seed = found.state["seed"]
    assert seed in (1, 2) and found.step == (target if seed == 2 else 1), (n, found.step, seed)
    assert (found.tensors["x"] == seed).all(), n
    killed = child.returncode == -signal.SIGKILL
    assert killed or (child.returncode == 0 and seed == 2), (n, err)
    run.rewind(found.step)
    save(run, target + 1, 3)
    found = run.load_latest()
    assert found is not None and found.step == target + 1 and found.state["seed"] == 3
    left = {path.name for path in (run.folder / "checkpoints").iterdir() if path.is_dir()}
    assert len(left) == 2 and not any(name.startswith(".") for name in left), (n, left)
    return killed


@pytest.mark.parametrize("target", [2, 1], ids=["the next step", "the same step again"])
def test_killed_in_the_middle_of_a_save(tmp_path: Path, target: int) -> None:
    kills = 0
    while is_killed_before(kills + 1, tmp_path / str(kills), target):
        kills += 1
    assert kills >= 8


def save_without_end(folder: Path) -> None:
    run = Run(folder)
    with run.lock():
        checkpoint = run.load_latest()
        step = checkpoint.step if checkpoint else 0
        run.rewind(checkpoint.step if checkpoint else None)
        while True:
            step += 1
            run.log({"step": step, "text": "x" * 3000})
            run.save(step, {"x": torch.full((300_000,), float(step))}, {"step": step})


def test_killed_at_any_time_and_resumed(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    reached = 0
    for delay in (0.0, 0.017):
        process = Fork(lambda: save_without_end(tmp_path), tmp_path)
        try:
            assert process.until(lambda: latest_step(tmp_path) >= reached + 3)  # noqa: B023
            with pytest.raises(ValueError, match=f"in use by process {process.pid}"), run.lock():
                pass
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        with run.lock():  # a killed process leaves no lock behind
            checkpoint = run.load_latest()
        assert checkpoint is not None
        assert checkpoint.step >= reached + 2
        assert (checkpoint.tensors["x"] == checkpoint.step).all()
        reached = checkpoint.step
        run.rewind(reached)
        assert [record["step"] for record in run.metrics()] == list(range(1, reached + 1))
