"""Four processes over gloo: the training and the evaluation of one, a clear end when one of them is killed, and any number resumes.

The processes are forks of this one, which has imported everything; tests/test_processes.py starts them by ``accelerate launch``.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.processes import together
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import EvaluationOptions, Report, evaluate
from unmask.runs.processes import current_group
from unmask.runs.run import Run
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training

pytestmark = pytest.mark.usefixtures("unchecked")

CONFIG = PolicyRun(
    "sudoku-4x4-imperfect",
    PolicyConfig(width=4, n_layers=1),
    data=SudokuData(size=4, puzzles=40, clues="8-10"),
    training=PolicyTraining(
        steps=4,
        prompts=5,
        group=2,
        states=16,
        advantage="reward_to_go",
        correctness=0.5,
        validate=6,
        validate_every=2,
        save_every=1,
    ),
)


def train(config: PolicyRun, folder: Path, resume: bool = False) -> None:
    for _ in run_policy_training(config, folder, resume):
        pass


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in load_file(folder / "policy" / "model.safetensors").values()])


def same_training(one: Path, other: Path) -> None:
    first, second = Run(one).metrics(), Run(other).metrics()
    assert [record["step"] for record in second] == [1, 2, 3, 4]
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        assert a["denoiser_calls"] == b["denoiser_calls"]
        for name in {name for name in a if "seconds" not in name}:
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), name
    assert torch.allclose(weights(one), weights(other), atol=2e-3)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    list(run_policy_training(CONFIG, folder))
    return folder


def test_four_processes_train_like_one(one: Path, tmp_path: Path) -> None:
    codes, _ = together(4, lambda rank: train(CONFIG, tmp_path / "run"), tmp_path / "log")
    assert codes == [0] * 4, (tmp_path / "log.0").read_text()
    same_training(one, tmp_path / "run")


def test_resume_with_a_different_number_of_processes_after_a_kill(one: Path, tmp_path: Path) -> None:
    """One of four is killed in the middle of a step, the others end with an error; two processes resume."""

    def work(rank: int) -> None:
        for record in run_policy_training(CONFIG, tmp_path / "run"):
            if rank == 3 and record["step"] == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    codes, seconds = together(4, work, tmp_path / "log")
    assert codes[3] == -signal.SIGKILL
    assert codes[:3] == [2, 2, 2]
    assert seconds < 120
    for rank in range(3):
        output = (tmp_path / f"log.{rank}").read_text()
        assert "another process of this run has died or does not answer" in output, output
        assert "--resume" in output
    checkpoint = Run(tmp_path / "run").load_latest()
    assert checkpoint is not None and checkpoint.step in (2, 3) and not checkpoint.skipped
    codes, _ = together(2, lambda rank: train(CONFIG, tmp_path / "run", resume=True), tmp_path / "log")
    assert codes == [0, 0], (tmp_path / "log.0").read_text()
    same_training(one, tmp_path / "run")


def test_more_processes_than_prompts_and_held_out_problems_train_like_one(tmp_path: Path) -> None:
    few = replace(CONFIG, training=replace(CONFIG.training, prompts=2, validate=2))
    train(few, tmp_path / "one")
    codes, _ = together(3, lambda rank: train(few, tmp_path / "run"), tmp_path / "log")
    assert codes == [0, 0, 0], (tmp_path / "log.2").read_text()
    same_training(tmp_path / "one", tmp_path / "run")


def evaluated(limit: int) -> Report:
    denoiser = load_denoiser("sudoku-4x4-imperfect")
    orders = {name: load_scheduler(name, denoiser, "sudoku-4x4-imperfect") for name in ("random", "confidence", "sas")}
    problems = SudokuTask.generate(limit, 4, "5-7", "test", 0)
    decodings = {"sequential": Decoding(), "3 steps": Decoding(steps=3)}
    return evaluate(
        problems, denoiser, orders, decodings, options=EvaluationOptions(batch=4), processes=current_group()
    )


@pytest.mark.parametrize("limit", [13, 3])
def test_evaluation_by_four_processes_equals_one(limit: int, tmp_path: Path) -> None:
    """Also where there are fewer problems than processes. Every process has the whole report."""
    alone = evaluated(limit)
    codes, _ = together(4, lambda rank: evaluated(limit).write(tmp_path / f"{rank}.json"), tmp_path / "log")
    assert codes == [0] * 4, (tmp_path / "log.0").read_text()
    alone.write(tmp_path / "alone.json")
    expected = json.loads((tmp_path / "alone.json").read_text())
    for rank in range(4):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for a, b in zip(expected["rows"], found["rows"], strict=True):
            assert (
                a["solved"] == b["solved"] and a["denoiser_calls"] == b["denoiser_calls"] and a["steps"] == b["steps"]
            )
            for name in ("exact", "exact_low", "cell", "cell_high", "nll", "nll_low", "nll_high"):
                assert a[name] == pytest.approx(b[name], rel=1e-5), name
            assert a["versus"] == b["versus"] and a["strata"] == b["strata"]
    assert len(asdict(alone)["rows"]) == 6
