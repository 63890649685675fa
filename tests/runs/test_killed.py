"""A process killed at any moment, in the middle of a save too, leaves a run that can be resumed."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from unmask.runs import run as runs
from unmask.runs.run import Run


@dataclass(frozen=True)
class Config:
    steps: int = 10


# A child saves after step 1 and is killed with SIGKILL before its n-th system call that makes something durable or
# visible, for every n until a save gets through. Forks of one interpreter, since importing torch is slow.
KILLED_SAVES = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from unmask.runs.run import Run


def save(run, step, seed):
    run.log({"step": step})
    run.save(step, {"x": torch.full((1000,), float(seed))}, {"seed": seed})

def kill_before(name, n, count):
    original = getattr(os, name)
    def call(*args, **kwargs):
        count[0] += 1
        if count[0] == n:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(os, name, call)

def killed_before(n, folder, target):
    run = Run(folder)
    run.folder.mkdir()
    save(run, 1, 1)
    child = os.fork()
    if child == 0:
        count = [0]
        for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
            kill_before(name, n, count)
        save(run, target, 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = run.load_latest()
    assert found is not None and not found.skipped, (n, found)
    seed = found.state["seed"]
    assert seed in (1, 2) and found.step == (target if seed == 2 else 1), (n, found.step, seed)
    assert (found.tensors["x"] == seed).all(), n
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
    else:
        assert os.WEXITSTATUS(status) == 0 and seed == 2, (n, status)
    run.rewind(found.step)
    save(run, target + 1, 3)
    found = run.load_latest()
    assert found.step == target + 1 and found.state["seed"] == 3
    left = {path.name for path in (run.folder / "checkpoints").iterdir() if path.is_dir()}
    assert len(left) == 2 and not any(name.startswith(".") for name in left), (n, left)
    return os.WIFSIGNALED(status)

for target in (2, 1):  # the next step, and the same step again
    n = 1
    while killed_before(n, Path(sys.argv[1]) / f"{target}-{n}", target):
        n += 1
    print(n - 1)
"""


def test_killed_in_the_middle_of_a_save(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_SAVES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=_environment())
    assert done.returncode == 0, done.stderr
    kills = [int(line) for line in done.stdout.split()]
    assert len(kills) == 2
    assert min(kills) >= 8


ENDLESS_SAVES = """
import sys
from pathlib import Path
import torch
from unmask.runs.run import Run

run = Run(Path(sys.argv[1]))
with run.lock():
    checkpoint = run.load_latest()
    step = checkpoint.step if checkpoint else 0
    run.rewind(checkpoint.step if checkpoint else None)
    while True:
        step += 1
        run.log({"step": step, "text": "x" * 3000})
        run.save(step, {"x": torch.full((300_000,), float(step))}, {"step": step})
"""


def test_killed_at_any_time_and_resumed(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    reached = 0
    for delay in (0.0, 0.017):
        process = subprocess.Popen([sys.executable, "-c", ENDLESS_SAVES, str(tmp_path)], env=_environment())
        try:
            target = tmp_path / "checkpoints" / f"step-{reached + 3:08d}"
            deadline = time.monotonic() + 60
            while not target.exists() and time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.002)
            with pytest.raises(ValueError, match=f"in use by process {process.pid}"), run.lock():
                pass
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        with run.lock():  # a killed process leaves no lock behind
            checkpoint = run.load_latest()
        assert checkpoint is not None
        assert checkpoint.step >= reached + 2
        assert (checkpoint.tensors["x"] == checkpoint.step).all()
        reached = checkpoint.step
        run.rewind(reached)
        assert [record["step"] for record in run.metrics()] == list(range(1, reached + 1))


def _environment() -> dict[str, str]:
    source = str(Path(runs.__file__).parents[2])
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
