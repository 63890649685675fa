"""The launch lines of the docs for CPU processes start one training, not several strangers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.runs.run import Run

DOCS = Path(__file__).resolve().parents[3] / "docs" / "scaling.md"
TINY = """denoiser = "sudoku-4x4"
[policy]
kind = "mlp"
width = 4
[data]
size = 4
puzzles = 8
clues = "10-11"
[training]
steps = 1
prompts = 1
group = 2
advantage = "trajectory"
validate = 2
"""


def cpu_lines() -> list[str]:
    """The block behind the words "Several CPU processes"."""
    block = re.search(r"Several CPU processes.*?```\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert block is not None
    return block[1].strip().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_the_documented_line_with_two_processes_and_one_prompt(number: int, tmp_path: Path) -> None:
    """More processes than prompts, too."""
    (tmp_path / "tiny.toml").write_text(TINY)
    line = cpu_lines()[number].replace("sas-sudoku-9x9-imperfect", "tiny.toml").replace("runs/order", "run")
    line = re.sub(r"(--nproc_per_node|--num_processes) \d+", r"\1 2", line)
    words = shlex.split(line)
    settings = dict(word.split("=") for word in words if re.fullmatch(r"[A-Z_]+=\w+", word))
    words = [word for word in words if word.split("=")[0] not in settings]
    runner = {"torchrun": ["-m", "torch.distributed.run"], "accelerate": ["-m", "accelerate.commands.accelerate_cli"]}
    done = subprocess.run(
        [sys.executable, *runner[words[0]], *words[1:]],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": "0", **settings},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "in each of 2 processes" in done.stdout
    assert [record["step"] for record in Run(tmp_path / "run").metrics()] == [1]
