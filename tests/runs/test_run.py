"""Run directories: what is stored comes back bit for bit, and what is damaged or in use is refused."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unmask.runs import atomic as writing
from unmask.runs import run as runs
from unmask.runs.atomic import atomic_write
from unmask.runs.optimizer import dump_optimizer, load_optimizer
from unmask.runs.run import Run


@dataclass(frozen=True)
class Policy:
    width: int = 8
    betas: tuple[float, float] = (0.9, 0.95)


@dataclass(frozen=True)
class Config:
    steps: int = 10
    data: Path = Path("data")
    clip: float = float("inf")
    policy: Policy = field(default_factory=Policy)


def test_create_writes_config_and_versions(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a" / "b", Config())
    config = json.loads((run.folder / "config.json").read_text(), parse_constant=pytest.fail)
    assert config == {
        "steps": 10,
        "data": "data",
        "clip": "Infinity",
        "policy": {"width": 8, "betas": [0.9, 0.95]},
    }
    versions = json.loads((run.folder / "versions.json").read_text())
    assert versions["torch"] == torch.__version__
    assert versions["threads"] == torch.get_num_threads()
    assert {"python", "unmask", "numba", "platform"} <= versions.keys()


def test_create_refuses(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", Config())
    with pytest.raises(ValueError, match=r"holds config\.json, versions\.json; name another folder, delete"):
        Run.create(tmp_path / "run", Config())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"it has no config\.json"):
        Run.create(tmp_path / "other", Config(), resume=True)
    with pytest.raises(ValueError, match="is a file"):
        Run.create(tmp_path / "other" / "notes.txt", Config())
    with pytest.raises(ValueError, match="dataclass instance"):
        Run.create(tmp_path / "new", {"steps": 1})
    (tmp_path / "empty").mkdir()
    Run.create(tmp_path / "empty", Config())  # an empty folder is fine
    Run.create(tmp_path / "absent", Config(), resume=True)  # and resuming what is not there begins it


def test_resume_compares_configurations(tmp_path: Path) -> None:
    Run.create(tmp_path, Config())
    Run.create(tmp_path, Config(), resume=True)
    changed = Config(steps=20, policy=Policy(width=16))
    with pytest.raises(ValueError, match=r"policy\.width \(stored 8, now 16\); steps \(stored 10, now 20\)"):
        Run.create(tmp_path, changed, resume=True)
    with pytest.raises(ValueError, match=r"policy\.width \(stored 8, now 16\); restore"):
        Run.create(tmp_path, changed, resume=True, may_differ=["steps"])
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 10
    Run.create(tmp_path, changed, resume=True, may_differ=["steps", "policy"])
    assert json.loads((tmp_path / "config.json").read_text())["steps"] == 20


def test_resume_keeps_earlier_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = dict(runs.versions())
    for torch_version in ("1", "1", "2", "3"):
        monkeypatch.setattr(runs, "versions", lambda version=torch_version: {**now, "torch": version})
        Run.create(tmp_path, Config(), resume=True)
    versions = json.loads((tmp_path / "versions.json").read_text())
    assert versions["torch"] == "3"
    assert [earlier["torch"] for earlier in versions["earlier"]] == ["1", "2"]


def test_log_and_rewind(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    assert run.metrics() == []
    run.rewind(3)  # nothing logged yet
    for step in range(5):
        run.log({"step": step, "loss": torch.tensor(0.5), "share": np.float32(0.25), "bad": float("nan")})
    run.log({"note": "belongs to step 4"})
    assert run.metrics()[2] == {"step": 2, "loss": 0.5, "share": 0.25, "bad": "NaN"}
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(b'{"step": 5, "lo')  # as a kill in the middle of a write leaves it
    assert len(run.metrics()) == 6
    run.rewind(4)
    assert [record.get("step") for record in run.metrics()] == [0, 1, 2, 3, 4, None]
    run.log({"step": 5})
    assert run.metrics()[-1] == {"step": 5}
    run.rewind(2)
    assert [record["step"] for record in run.metrics()] == [0, 1, 2]
    run.rewind(None)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_a_whole_looking_line_without_its_end_is_torn(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}')
    run.rewind(9)
    run.log({"step": 2, "loss": 1.0})
    assert run.metrics() == [{"step": 1}, {"step": 2, "loss": 1.0}]


def test_log_refuses_what_json_lacks(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    with pytest.raises(ValueError, match="JSON data at the top, model, got object"):
        run.log({"model": object()})
    with pytest.raises(ValueError, match="text as keys at the top, counts, got 3"):
        run.log({"counts": {3: 1}})
    assert run.metrics() == []


def test_save_and_load_bit_for_bit(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    assert run.load_latest() is None
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(4, 6, generator=generator)
    tensors = {
        "weight": weight,
        "tied": weight,
        "transposed": weight.T,
        "part": weight[1:3],
        "half": weight.bfloat16(),
        "odd": torch.tensor([float("nan"), float("-inf"), -0.0]),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
        "random": generator.get_state(),
        "parameter": torch.nn.Parameter(weight.clone()),
    }
    state = {"best": float("inf"), "third": 1 / 3, "seen": [1, 2], "nested": {"done": None, "ok": True}}
    run.save(7, tensors, state)
    checkpoint = run.load_latest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.state, checkpoint.skipped) == (7, state, ())
    assert checkpoint.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        stored = checkpoint.tensors[name]
        assert stored.dtype == tensor.dtype
        assert stored.shape == tensor.shape
        # As bytes, so that NaN equals itself and -0.0 differs from 0.0.
        assert torch.equal(stored.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name
    again = torch.Generator()
    again.set_state(checkpoint.tensors["random"])
    assert torch.equal(torch.rand(5, generator=again), torch.rand(5, generator=generator))


def test_save_keeps_two_and_points_to_the_last(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    (tmp_path / "checkpoints" / "best").mkdir(parents=True)  # a copy of the user's own
    for step in (1, 2, 3, 3):
        run.save(step, {"x": torch.tensor([step])}, {})
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["best", "latest.json", "step-00000002", "step-00000003"]
    assert json.loads((tmp_path / "checkpoints" / "latest.json").read_text())["folder"] == "step-00000003"
    with pytest.raises(ValueError, match=">= 0"):
        run.save(-1, {}, {})


def test_save_refuses_and_leaves_nothing(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    run.save(1, {"x": torch.ones(1)}, {})
    before = sorted((tmp_path / "checkpoints").iterdir())
    with pytest.raises(ValueError, match="JSON data"):
        run.save(2, {}, {"model": object()})
    assert sorted((tmp_path / "checkpoints").iterdir()) == before


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [_truncate, _flip, Path.unlink])
@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
def test_damaged_checkpoint_falls_back(tmp_path: Path, damage, name: str, caplog: pytest.LogCaptureFixture) -> None:
    run = Run.create(tmp_path, Config())
    for step in (1, 2):
        run.save(step, {"x": torch.full((3,), float(step))}, {"step": step})
    damage(tmp_path / "checkpoints" / "step-00000002" / name)
    checkpoint = run.load_latest()
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.state) == (1, {"step": 1})
    assert checkpoint.tensors["x"].tolist() == [1, 1, 1]
    assert len(checkpoint.skipped) == 1
    assert "step-00000002" in checkpoint.skipped[0]
    assert [r.getMessage().split(": ")[:2] for r in caplog.records] == [
        ["a damaged checkpoint is passed over, the run goes on from step-00000001", "step-00000002"]
    ]
    damage(tmp_path / "checkpoints" / "step-00000001" / name)
    with pytest.raises(ValueError, match=r"every checkpoint in .* is damaged"):
        run.load_latest()


def test_a_run_that_fell_back_drops_the_abandoned_future(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    for step in (1, 5):
        run.save(step, {"x": torch.ones(1)}, {})
    _truncate(tmp_path / "checkpoints" / "step-00000005" / "state.json")
    run.save(3, {"x": torch.ones(1)}, {})
    assert [path.name for path in run._checkpoints()] == ["step-00000003", "step-00000001"]


@pytest.mark.parametrize("content", [None, b"", b"[]", b'{"folder": "step-00000009"}'])
def test_load_without_a_good_pointer(tmp_path: Path, content: bytes | None) -> None:
    run = Run.create(tmp_path, Config())
    for step in (1, 2):
        run.save(step, {"x": torch.ones(1)}, {})
    pointer = tmp_path / "checkpoints" / "latest.json"
    pointer.unlink() if content is None else pointer.write_bytes(content)
    checkpoint = run.load_latest()
    assert checkpoint is not None
    assert checkpoint.step == 2


def test_lock(tmp_path: Path) -> None:
    run = Run.create(tmp_path, Config())
    script = f"""
import fcntl, sys
file = open({str(tmp_path / ".lock")!r}, "a")
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(9)
"""
    with run.lock():
        assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
        with pytest.raises(ValueError, match=f"in use by process {os.getpid()} on"), run.lock():
            pass
        with pytest.raises(ValueError, match="in use"):
            Run.create(tmp_path, Config(), resume=True)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    with run.lock():
        pass


def test_atomic_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atomic_write(tmp_path / "a", b"old")
    atomic_write(str(tmp_path / "a"), b"new")
    assert (tmp_path / "a").read_bytes() == b"new"

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        atomic_write(tmp_path / "a", b"lost")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"new"


def _model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))


def _optimizer(model: torch.nn.Module, lr: float = 1e-2) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": lr / 3}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), amsgrad=True)


def _train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 5, generator=generator)).square().mean().backward()
        optimizer.step()


def test_optimizer_goes_on_bit_for_bit(tmp_path: Path) -> None:
    model = _model(0)
    optimizer = _optimizer(model)
    _train(model, optimizer, 5, seed=1)
    optimizer.param_groups[0]["lr"] = 1 / 3  # as a schedule would
    run = Run.create(tmp_path, Config())
    tensors, state = dump_optimizer(optimizer)
    run.save(5, {**model.state_dict(prefix="model."), **tensors}, {"optimizer": state})
    stored = optimizer.state_dict()
    copies = {name: tensor.clone() for name, tensor in tensors.items()}

    checkpoint = run.load_latest()
    assert checkpoint is not None
    other = _model(9)
    weights = {k.removeprefix("model."): v for k, v in checkpoint.tensors.items() if k.startswith("model.")}
    other.load_state_dict(weights)
    other_optimizer = _optimizer(other, lr=0.7)
    load_optimizer(other_optimizer, checkpoint.tensors, checkpoint.state["optimizer"])
    assert other_optimizer.state_dict()["param_groups"] == stored["param_groups"]
    assert other_optimizer.state_dict()["state"].keys() == stored["state"].keys()
    for name, tensor in dump_optimizer(other_optimizer)[0].items():
        assert torch.equal(tensor, copies[name]), name
        assert tensor.dtype == copies[name].dtype

    _train(model, optimizer, 5, seed=2)
    _train(other, other_optimizer, 5, seed=2)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for name, copy in copies.items():  # restoring copied: training on has not changed the checkpoint
        assert torch.equal(checkpoint.tensors[name], copy)


def test_optimizer_fresh_and_mismatched() -> None:
    fresh = _optimizer(_model(0))
    tensors, state = dump_optimizer(fresh)
    assert tensors == {}
    load_optimizer(_optimizer(_model(0)), tensors, json.loads(json.dumps(state)))
    model = _model(0)
    optimizer = _optimizer(model)
    _train(model, optimizer, 1, seed=0)
    tensors, state = dump_optimizer(optimizer)
    with pytest.raises(ValueError, match=r"parameter groups of sizes \[1\], got \[2, 2\]"):
        load_optimizer(torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))]), tensors, state)
    wider = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Linear(8, 3))
    with pytest.raises(ValueError, match=r"of shape \(8, 5\), got \(7, 5\)"):
        load_optimizer(_optimizer(wider), tensors, state)


def test_nothing_is_pickled(tmp_path: Path) -> None:
    run = Run.create(tmp_path, replace(Config(), steps=1))
    folder = run.save(1, {"x": torch.ones(2)}, {})
    assert sorted(path.name for path in folder.iterdir()) == ["state.json", "state.safetensors"]
    assert load_file(folder / "state.safetensors")["x"].tolist() == [1, 1]
    for module in (runs, writing):
        assert "pickle" not in Path(str(module.__file__)).read_text().replace("Nothing is\npickled", "")
