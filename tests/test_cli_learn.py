"""``unmask train`` and ``unmask verify`` as their users meet them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from test_cli import unmask  # noqa: F401  (a fixture)
from unmask.runs import Run

TINY = """# An order in seconds.
denoiser = "sudoku-4x4"
[policy]
kind = "grid"
width = 4
n_layers = 1
[data]
size = 4
puzzles = 40
clues = "5-7"
[training]
steps = 12
prompts = 2
states = 16
correctness = 0.5
validate = 4
validate_every = 3
save_every = 2
"""


TINY_STAGE = """# A second stage in seconds.
denoiser = "sudoku-4x4"
order = "confidence"
validate = 4
[data]
size = 4
puzzles = 8
clues = "5-7"
[training]
samples = 64
batch = 8
lr = 1e-3
log_every = 4
save_every = 4
"""


def test_a_trained_order_is_a_scheduler(unmask: Callable, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "tiny.toml").write_text(TINY)
    code, out, err = unmask("train", "--preset", "tiny.toml", "--out", "order", "--steps", "3")
    assert (code, err) == (0, "")
    assert "order/policy" in out
    code, out, _ = unmask(
        *(
            "evaluate",
            "--denoiser",
            "sudoku-4x4",
            "--schedulers",
            "confidence,order",
            "--limit",
            "4",
            "--json",
            "o.json",
        )
    )
    assert code == 0
    assert [row["scheduler"] for row in json.loads((tmp_path / "o.json").read_text())["rows"]] == [
        "confidence",
        "order",
    ]
    code, _, err = unmask("evaluate", "--denoiser", "sudoku-9x9-imperfect", "--schedulers", "order", "--limit", "1")
    assert code == 2
    assert "trained for 5 tokens" in err


def test_a_killed_training_resumes_to_the_same_policy(unmask: Callable, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "tiny.toml").write_text(TINY)
    words = ("train", "--preset", "tiny.toml", "--out")
    assert unmask(*words, "whole")[0] == 0
    reached = 0
    for stop, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen(
            [sys.executable, "-m", "unmask.cli", *words, "broken", "--resume"],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 120
        latest = tmp_path / "broken" / "checkpoints" / "latest.json"
        while process.poll() is None and time.monotonic() < deadline:
            if latest.exists() and json.loads(latest.read_text())["step"] > reached:
                process.send_signal(stop)
                break
            time.sleep(0.002)
        _, err = process.communicate(timeout=120)
        assert process.returncode in (code, 0), err  # the last step may have been the one that was running
        checkpoint = Run(tmp_path / "broken").load_latest()
        assert checkpoint is not None
        reached = checkpoint.step
    assert unmask(*words, "broken", "--resume")[0] == 0
    whole, broken = (tmp_path / name / "policy" / "model.safetensors" for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()


def test_a_tuned_denoiser_is_a_denoiser(unmask: Callable, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "tiny.toml").write_text(TINY_STAGE)
    code, out, err = unmask("finetune", "--preset", "tiny.toml", "--out", "tuned", "--order", "margin")
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()[:2]] == ["before", "after"]
    assert "on the path" in out and "off it" in out
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["order"] == "margin"
    code, _, _ = unmask("evaluate", "--denoiser", "tuned", "--schedulers", "confidence", "--limit", "2", "--no-nll")
    assert code == 0
    code, _, err = unmask("finetune", "--preset", "tiny.toml", "--out", "tuned", "--order", "margin")
    assert code == 2 and "resume" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--out", "x", "--preset", "sas-sudoku-9x9-imperfct"), "did you mean"),
        (("train", "--out", "x", "--task", "chess"), "sudoku"),
        (("train", "--out", "x", "--steps", "0"), "steps must be at least 1"),
        (("train", "--out", "x", "--denoiser", "nobody"), "no denoiser"),
        (("finetune", "--out", "x", "--order", "nobody"), "no scheduler"),
        (("finetune", "--out", "x", "--rounds", "0"), "rounds must be at least 1"),
        (("finetune", "--out", "x", "--samples", "3"), "at least one batch"),
    ],
)
def test_bad_input_is_one_line(unmask: Callable, words: tuple[str, ...], message: str) -> None:  # noqa: F811
    code, _, err = unmask(*words)
    assert code == 2
    assert err.count("\n") == 1
    assert message in err


def test_every_claim_holds(unmask: Callable, tmp_path: Path) -> None:  # noqa: F811
    code, out, _ = unmask("verify", "--puzzles", "1", "--json", "claims.json")
    assert code == 0
    rows = json.loads((tmp_path / "claims.json").read_text())["rows"]
    assert len(rows) > 40
    assert all(row["holds"] for row in rows)
    assert {"claim", "left", "right", "holds"} <= rows[0].keys()
    assert f"{len(rows)} of {len(rows)} hold" in out
