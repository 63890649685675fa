"""Several processes share a step: the same training as one up to rounding, and either resumes the other's run."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.presets import TINY
from support.processes import together
from unmask.runs.presets import load_preset
from unmask.runs.run import Run
from unmask.training.policy.run import PolicyRun, run_policy_training
from unmask.training.policy.trials import read_choice
from unmask_studies.bench import processes
from unmask_studies.bench.measuring import Finding
from unmask_studies.bench.processes import launch, require_same

CONFIG = TINY.replace("prompts = 2", 'prompts = 5\ngroup = 2\nadvantage = "reward_to_go"').replace(
    "steps = 6", "steps = 4"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the preset and the training of one process."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "tiny.toml").write_text(CONFIG)
    list(run_policy_training(load_preset(folder / "tiny.toml", PolicyRun), folder / "one"))
    return folder


def weights(folder: Path) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in load_file(folder / "policy" / "model.safetensors").values()])


def same_training(runs: Path, other: Path) -> None:
    one, two = Run(runs / "one").metrics(), Run(other).metrics()
    assert len(one) == len(two) == 4
    for a, b in zip(one, two, strict=True):
        assert a.keys() == b.keys()
        assert a["denoiser_calls"] == b["denoiser_calls"]
        for name in {name for name in a if "seconds" not in name}:
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), name
    assert torch.allclose(weights(runs / "one"), weights(other), atol=2e-3)


@pytest.mark.slow
def test_two_launched_processes_train_like_one(runs: Path) -> None:
    output = launch(2, runs, "train", "--preset", "tiny.toml", "--out", "two")
    assert output.count("in each of 2 processes") == 1, output  # only the first one prints
    same_training(runs, runs / "two")


def test_two_processes_resume_the_run_of_one(runs: Path, tmp_path: Path) -> None:
    config = load_preset(runs / "tiny.toml", PolicyRun)
    list(itertools.islice(run_policy_training(config, tmp_path / "resumed"), 3))

    def resume(rank: int) -> None:
        list(run_policy_training(config, tmp_path / "resumed", resume=True))

    codes, _ = together(2, resume, tmp_path / "log")
    assert codes == [0, 0], (tmp_path / "log.0").read_text()
    same_training(runs, tmp_path / "resumed")


def test_processes_try_candidates_together(runs: Path, tmp_path: Path) -> None:
    """All of them know what one process finds, and train that."""
    (tmp_path / "other.toml").write_text(CONFIG.replace("steps = 4", "steps = 9"))
    config = replace(
        load_preset(runs / "tiny.toml", PolicyRun), candidates=(str(tmp_path / "other.toml"),), trial_steps=1
    )
    list(run_policy_training(config, tmp_path / "one"))

    def train(rank: int) -> None:
        list(run_policy_training(config, tmp_path / "two"))

    codes, _ = together(2, train, tmp_path / "log")
    assert codes == [0, 0], (tmp_path / "log.0").read_text()
    one, two = (read_choice(Run(tmp_path / name)) for name in ("one", "two"))
    assert one == two and one is not None and set(one.scores) == {config.policy.kind, "other"}
    assert torch.allclose(weights(tmp_path / "one"), weights(tmp_path / "two"), atol=2e-3)


def test_replay_is_for_a_single_process(runs: Path, tmp_path: Path) -> None:
    config = load_preset(runs / "tiny.toml", PolicyRun)
    config = replace(config, training=replace(config.training, replay=1))

    def train(rank: int) -> None:
        with pytest.raises(ValueError, match=r"2 share this training: set training\.replay = 0"):
            list(run_policy_training(config, tmp_path / "two"))

    codes, _ = together(2, train, tmp_path / "log")
    assert codes == [0, 0] and not (tmp_path / "two").exists()


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


@pytest.mark.parametrize(
    ("count", "words", "message"),
    [
        (1, ["trane"], "no command 'trane'"),
        pytest.param(2, ["train", "--preset", "nonsense", "--out", "run"], "train preset", marks=pytest.mark.slow),
    ],
)
def test_failed_launch_shows_its_output(count: int, words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"(?s)process(es)? ended with exit code \d+.*{message}"):
        launch(count, tmp_path, *words)
