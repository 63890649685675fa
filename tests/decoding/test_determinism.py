"""Same seed, same configuration, same number of threads: the same bits, in this process and the next. What a soak would notice."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import kill_harness, soak

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
import torch
torch.set_num_threads(1)
from support import kill_harness
for _ in kill_harness.JOBS["policy"](Path(sys.argv[1])):
    pass
print(hash("order"))
"""


def read(folder: Path) -> dict[str, object]:
    """The digest of a training's weights, and its metrics without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records = [{name: value for name, value in line.items() if "seconds" not in name} for line in lines]
    weights = (folder / "policy" / "model.safetensors").read_bytes()
    return {"weights": hashlib.sha256(weights).hexdigest(), "metrics": records}


@pytest.mark.usefixtures("unchecked")
def test_two_processes_train_the_same_bits(tmp_path: Path) -> None:
    """Python's own hashing differs between the two: no order of a set or a dictionary may leak into a training."""
    hashing = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "there"), str(Path(__file__).parents[1])],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": hashing},
        check=True,
        timeout=280,
        capture_output=True,
        text=True,
    )
    assert int(done.stdout) != hash("order")
    for _ in kill_harness.JOBS["policy"](tmp_path / "here"):
        pass
    assert read(tmp_path / "there") == read(tmp_path / "here")


def test_growth_is_distinguished_from_noise() -> None:
    steady = [500 * 2**20 + (step * 7919) % 4096 * 16 for step in range(600)]
    assert not soak.growth(steady).leaks
    leaking = [size + 20_000 * step for step, size in enumerate(steady)]
    found = soak.growth(leaking)
    assert found.leaks and found.low < 20_000 < found.high
    settling = [min(step, 150) * 10**6 + size for step, size in enumerate(steady)]
    assert not soak.growth(settling).leaks  # the first third is warm-up
    with pytest.raises(ValueError, match="soak for longer"):
        soak.growth(steady[:50])
