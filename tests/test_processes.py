"""Several processes share a step: the same training as one, but for rounding, and each resumes what the other began."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from test_cli_learn import TINY
from unmask.learn import Learn, learn
from unmask.presets import load_preset
from unmask.runs import Run

CONFIG = TINY.replace("prompts = 2", 'prompts = 5\ngroup = 2\nadvantage = "reward_to_go"').replace(
    "steps = 12", "steps = 4"
)


def launch(processes: int, folder: Path, *words: str) -> str:
    """`accelerate launch`, as the documentation says; what was printed."""
    options = ["--cpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    command = [sys.executable, "-m", "accelerate.commands.launch", *options, "--num_processes", str(processes)]
    port = 20_000 + os.getpid() % 20_000  # several tests may launch at once
    command += ["--main_process_port", str(port), "-m", "unmask.cli", *words]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    (folder / "tiny.toml").write_text(CONFIG)
    config = load_preset(folder / "tiny.toml", Learn)
    list(learn(config, folder / "one"))
    launch(2, folder, "train", "--preset", "tiny.toml", "--out", "two")
    list(itertools.islice(learn(config, folder / "resumed"), 3))
    launch(2, folder, "train", "--preset", "tiny.toml", "--out", "resumed", "--resume")
    return folder


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in load_file(folder / "policy" / "model.safetensors").values()])


@pytest.mark.parametrize("other", ["two", "resumed"])
def test_two_processes_train_as_one(runs: Path, other: str) -> None:
    one, two = Run(runs / "one").metrics(), Run(runs / other).metrics()
    assert len(one) == len(two) == 4
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        assert a["denoiser_calls"] == b["denoiser_calls"]
        for name in a.keys() - {"seconds"}:
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), name
    assert torch.allclose(weights(runs / "one"), weights(runs / other), atol=2e-3)
