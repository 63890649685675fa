"""Four processes over gloo: the training and the evaluation of one, a clear end when one of them is killed, and any number resumes.

The processes are forks of this one, which has imported everything; tests/test_processes.py starts them by ``accelerate launch``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from safetensors.torch import load_file

from unmask.evaluate import Report, evaluate
from unmask.learn import Learn, learn
from unmask.live import Regime
from unmask.policies.policy import PolicyConfig
from unmask.recipe import PolicyTraining
from unmask.registry import load_denoiser, load_scheduler
from unmask.runs import Run
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.together import launched

PATIENCE = 240.0
CONFIG = Learn(
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


def together(count: int, work: Callable[[int], None], log: Path) -> tuple[list[int], float]:
    """``work(rank)`` in so many processes: their exit codes (minus the signal that ended one), and how long they took."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began, children = time.monotonic(), []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            _child(rank, count, port, work, log.with_suffix(f".{rank}"))
        children.append(child)
    codes: dict[int, int] = {}
    while len(codes) < count:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended in children:
            codes[ended] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > began + PATIENCE:
            for child in set(children) - codes.keys():
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            pytest.fail(f"processes hang: {[codes.get(child) for child in children]}")
        else:
            time.sleep(0.02)
    return [codes[child] for child in children], time.monotonic() - began


def _child(rank: int, count: int, port: int, work: Callable[[int], None], log: Path) -> None:
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = open(log, "a", buffering=1)  # noqa: SIM115  (the process ends with it)
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "ACCELERATE_USE_CPU": "true",
        }
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()  # what this process inherited says that it is alone
        work(rank)
        code = 0
    except ValueError as error:
        print(f"unmask: {error}")
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def train(config: Learn, folder: Path, resume: bool = False) -> None:
    for _ in learn(config, folder, resume):
        pass


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in load_file(folder / "policy" / "model.safetensors").values()])


def same_training(one: Path, other: Path) -> None:
    first, second = Run(one).metrics(), Run(other).metrics()
    assert [record["step"] for record in second] == [1, 2, 3, 4]
    for a, b in zip(first, second, strict=True):
        assert a.keys() == b.keys()
        assert a["denoiser_calls"] == b["denoiser_calls"]
        for name in a.keys() - {"seconds"}:
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), name
    assert torch.allclose(weights(one), weights(other), atol=2e-3)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    list(learn(CONFIG, folder))
    return folder


def test_four_processes_train_as_one(one: Path, tmp_path: Path) -> None:
    codes, _ = together(4, lambda rank: train(CONFIG, tmp_path / "run"), tmp_path / "log")
    assert codes == [0] * 4, (tmp_path / "log.0").read_text()
    same_training(one, tmp_path / "run")


def test_one_is_killed_and_the_others_end(one: Path, tmp_path: Path) -> None:
    """In the middle of a step, from one instant to the next; then two processes take up what four began."""

    def work(rank: int) -> None:
        for record in learn(CONFIG, tmp_path / "run"):
            if rank == 3 and record["step"] == 2:
                os.kill(os.getpid(), signal.SIGKILL)

    codes, seconds = together(4, work, tmp_path / "log")
    assert codes[3] == -signal.SIGKILL
    assert codes[:3] == [2, 2, 2]
    assert seconds < 120
    for rank in range(3):
        said = (tmp_path / f"log.{rank}").read_text()
        assert "another process of this run has died or does not answer" in said, said
        assert "--resume" in said
    checkpoint = Run(tmp_path / "run").load_latest()
    assert checkpoint is not None and checkpoint.step in (2, 3) and not checkpoint.skipped
    codes, _ = together(2, lambda rank: train(CONFIG, tmp_path / "run", resume=True), tmp_path / "log")
    assert codes == [0, 0], (tmp_path / "log.0").read_text()
    same_training(one, tmp_path / "run")


def test_more_processes_than_prompts_are_refused_by_all(tmp_path: Path) -> None:
    few = replace(CONFIG, training=replace(CONFIG.training, prompts=2))
    codes, _ = together(3, lambda rank: train(few, tmp_path / "run"), tmp_path / "log")
    assert codes == [2, 2, 2]
    assert "3 processes cannot share 2 prompts" in (tmp_path / "log.1").read_text()


def evaluated(limit: int) -> Report:
    denoiser = load_denoiser("sudoku-4x4-imperfect")
    orders = {name: load_scheduler(name, denoiser, "sudoku-4x4-imperfect") for name in ("random", "confidence", "sas")}
    problems = SudokuTask.generated(limit, 4, "5-7", "test", 0)
    regimes = {"sequential": Regime(), "3 steps": Regime(steps=3)}
    return evaluate(problems, denoiser, orders, regimes, batch=4, together=launched())


@pytest.mark.parametrize("limit", [13, 3])
def test_an_evaluation_is_shared(limit: int, tmp_path: Path) -> None:
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
