"""``unmask train`` and ``unmask verify`` as their users meet them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from support.commands import Call
from support.forks import fork_command, latest_step
from support.presets import TINY, TINY_STAGE
from unmask.runs.run import Run

pytestmark = pytest.mark.usefixtures("unchecked")


def test_a_trained_order_is_a_scheduler(command: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    code, out, err = command("train", "--preset", "tiny.toml", "--out", "order", "--steps", "3")
    assert (code, err) == (0, "")
    assert "order/policy" in out
    code, out, _ = command(
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
    code, _, err = command("evaluate", "--denoiser", "sudoku-9x9-imperfect", "--schedulers", "order", "--limit", "1")
    assert code == 2
    assert "trained for 5 tokens" in err


def test_a_killed_training_resumes_to_the_same_policy(command: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    words = ("train", "--preset", "tiny.toml", "--out")
    assert command(*words, "whole")[0] == 0
    reached = 0
    for stop, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        process = fork_command(tmp_path, *words, "broken", "--resume")
        process.until(lambda: latest_step(tmp_path / "broken") > reached)  # noqa: B023
        process.send_signal(stop)
        _, err = process.communicate()
        assert process.returncode in (code, 0), err  # the last step may have been the one that was running
        checkpoint = Run(tmp_path / "broken").load_latest()
        assert checkpoint is not None
        reached = checkpoint.step
    assert command(*words, "broken", "--resume")[0] == 0
    whole, broken = (tmp_path / name / "policy" / "model.safetensors" for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()


def test_a_tuned_denoiser_is_a_denoiser(command: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY_STAGE)
    code, out, err = command("finetune", "--preset", "tiny.toml", "--out", "tuned", "--order", "margin")
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()[:2]] == ["before, on cpu, float32", "after"]
    assert "on the path" in out and "off it" in out
    assert json.loads((tmp_path / "tuned" / "config.json").read_text())["order"] == "margin"
    code, _, _ = command("evaluate", "--denoiser", "tuned", "--schedulers", "confidence", "--limit", "2", "--no-nll")
    assert code == 0
    code, _, err = command("finetune", "--preset", "tiny.toml", "--out", "tuned", "--order", "margin")
    assert code == 2 and "resume" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--out", "x", "--preset", "sas-sudoku-9x9-imperfct"), "did you mean"),
        (("train", "--out", "x", "--task", "chess"), "sudoku"),
        (("train", "--out", "x", "--steps", "0"), "steps must be at least 1"),
        (("train", "--out", "x", "--denoiser", "absent"), "no denoiser"),
        (("finetune", "--out", "x", "--order", "absent"), "no scheduler"),
        (("finetune", "--out", "x", "--rounds", "0"), "rounds must be at least 1"),
        (("finetune", "--out", "x", "--samples", "3"), "at least one batch"),
    ],
)
def test_bad_input_is_one_line(command: Call, words: tuple[str, ...], message: str) -> None:
    code, _, err = command(*words)
    assert code == 2
    assert err.count("\n") == 1
    assert message in err


def test_every_claim_holds(command: Call, tmp_path: Path) -> None:
    code, out, _ = command("verify", "--puzzles", "1", "--json", "claims.json")
    assert code == 0
    rows = json.loads((tmp_path / "claims.json").read_text())["rows"]
    assert len(rows) > 40
    assert all(row["holds"] for row in rows)
    assert {"claim", "left", "right", "holds"} <= rows[0].keys()
    assert f"{len(rows)} of {len(rows)} hold" in out
