"""Several processes share a step: the same training as one up to rounding, and either resumes the other's run."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.presets import TINY
from support.processes import together
from unmask.runs.presets import load_preset
from unmask.runs.run import Run
from unmask.training.policy.run import PolicyRun, run_policy_training
from unmask_studies.bench import processes
from unmask_studies.bench.measuring import Finding
from unmask_studies.bench.processes import launch, require_same

CONFIG = TINY.replace("prompts = 2", 'prompts = 5\ngroup = 2\nadvantage = "reward_to_go"').replace(
    "steps = 6", "steps = 4"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    (folder / "tiny.toml").write_text(CONFIG)
    config = load_preset(folder / "tiny.toml", PolicyRun)
    list(run_policy_training(config, folder / "one"))
    output = launch(2, folder, "train", "--preset", "tiny.toml", "--out", "two")
    assert output.count("in each of 2 processes") == 1, output  # only the first one prints
    list(itertools.islice(run_policy_training(config, folder / "resumed"), 3))

    def resume(rank: int) -> None:
        list(run_policy_training(config, folder / "resumed", resume=True))

    codes, _ = together(2, resume, folder / "log")
    assert codes == [0, 0], (folder / "log.0").read_text()
    return folder


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in load_file(folder / "policy" / "model.safetensors").values()])


@pytest.mark.parametrize("other", ["two", "resumed"])
def test_two_processes_train_like_one(runs: Path, other: str) -> None:
    one, two = Run(runs / "one").metrics(), Run(runs / other).metrics()
    assert len(one) == len(two) == 4
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        assert a["denoiser_calls"] == b["denoiser_calls"]
        for name in {name for name in a if "seconds" not in name}:
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), name
    assert torch.allclose(weights(runs / "one"), weights(runs / other), atol=2e-3)


def test_benchmark_of_processes_reports_ratios_of_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates from the second step on, over those of one process in the same turn."""
    seconds = {1: [9.0, 4.0, 4.0], 2: [9.0, 2.0, 3.0]}

    def pretended(count: int, folder: Path, *words: str) -> str:
        run = Run(folder / words[-1])
        run.folder.mkdir()
        lines = [json.dumps({"step": n, "return": -1.0 - n, "seconds": s}) for n, s in enumerate(seconds[count])]
        (run.folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        return ""

    monkeypatch.setattr(processes, "launch", pretended)
    one, two, _ = processes.measure_processes(processes.Processes(steps=3, prompts=4, repeats=2))
    assert one == Finding("one process: trajectories per second", 1.0, "/s", 1.0, 1.0, 2, "spread")
    assert two.value == pytest.approx(1.6)


def test_benchmark_refuses_different_trainings() -> None:
    log = {"step": 1, "return": -2.0, "seconds": 1.0}
    require_same(log, {"step": 1, "return": -2.0 - 1e-4, "seconds": 7.0}, 2)
    with pytest.raises(
        ValueError, match="2 processes are not the same training as one: return of step 1 is -3, not -2"
    ):
        require_same(log, {"step": 1, "return": -3.0, "seconds": 1.0}, 2)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_failed_launch_shows_its_output(count: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"(?s)process(es)? ended with exit code \d+.*unknown train preset"):
        launch(count, tmp_path, "train", "--preset", "nonsense", "--out", "run")
