"""The options --device and --dtype: the same on every command that runs a denoiser, and honoured."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.canvases import canvases
from support.commands import Call
from support.denoisers import opinionated
from support.pretend_device import NAME, THERE, PretendDevice
from unmask.cli.main import COMMANDS
from unmask.cli.shell import list_options, resolve
from unmask.denoisers.placement import Placement, find_device
from unmask.runs.processes import ProcessGroup
from unmask.theory.claims import claims

RUN_A_DENOISER = [
    *("generate", "evaluate", "lm-eval", "train", "finetune", "pretrain"),
    *("decode", "trace", "play", "demo", "verify"),
]
BOARD = "12.4.41221.34.21"
EVALUATE = [
    "evaluate",
    "--denoiser",
    "sudoku-4x4",
    "--schedulers",
    "margin",
    "--limit",
    "2",
    "--steps",
    "4",
    "--no-nll",
]


@pytest.mark.parametrize("name", RUN_A_DENOISER)
def test_every_command_takes_a_device_and_a_type(name: str) -> None:
    options = list_options(resolve(COMMANDS[name], []))
    assert options["--device"].field.default == "auto"
    assert options["--dtype"].lowered.choices == ("float32", "bfloat16", "float16")


def test_a_device_that_is_not_there_is_one_line(command: Call) -> None:
    code, _, error = command(*EVALUATE, "--device", "cuda")
    assert code == 2
    assert error.count("\n") == 1
    assert "there is no device 'cuda' here" in error
    assert "name another, or auto for the best one" in error
    code, _, error = command(*EVALUATE, "--device", "cuad")
    assert (code, error.count("\n")) == (2, 1)
    assert "did you mean 'cuda'" in error


@pytest.mark.parametrize(
    "line", [["decode", BOARD], ["trace", BOARD, "--denoiser", "sudoku-4x4"], ["play"], ["demo"], ["verify"]]
)
def test_a_missing_device_stops_every_command(command: Call, tmp_path: Path, line: list[str]) -> None:
    out = ["--out", str(tmp_path / "out")] if line[0] in ("trace", "demo") else []
    code, _, error = command(*line, *out, "--device", "cuda")
    assert (code, error.count("\n")) == (2, 1)
    assert "there is no device 'cuda' here" in error
    assert not (tmp_path / "out").exists()


def test_decoded_boards_elsewhere_are_the_same(command: Call, tmp_path: Path) -> None:
    records, traces = [], []
    for device in ("cpu", NAME):
        out = tmp_path / device[:3]
        with PretendDevice() as pretended:
            code, shown, error = command("decode", BOARD, "--json", "--device", device)
            assert code == 0, error
            line = [
                "trace",
                "--limit",
                "1",
                "--denoiser",
                "sudoku-4x4",
                "--schedulers",
                "margin,random",
                "--out",
                str(out),
            ]
            code, recorded, error = command(*line, "--device", device)
            assert code == 0, error
        assert f"recorded on {device}, float32" in recorded
        assert (pretended.seen > 100) == (device == NAME)
        records.append(json.loads(shown))
        traces.append(json.loads((out / "0001.json").read_text()))
    assert records[0]["order"] == records[1]["order"]
    assert [one["order"] for one in traces[0]["trajectories"]] == [one["order"] for one in traces[1]["trajectories"]]


def test_the_best_device_is_chosen_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Placement().describe() == "cpu, float32"
    assert find_device("auto") == torch.device("cpu")
    made = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **options: made(0))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert find_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert find_device("auto") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert Placement(dtype="bfloat16").describe() == "cuda (NVIDIA H200), bfloat16"
    # Of several processes each has a GPU of its own.
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert find_device("auto") == torch.device("cuda:3")


def test_an_evaluation_elsewhere_is_the_same(command: Call, tmp_path: Path) -> None:
    reports = []
    for device in ("cpu", NAME):
        place = tmp_path / f"{device[:3]}.json"
        with PretendDevice() as pretended:
            code, shown, error = command(*EVALUATE, "--device", device, "--json", str(place))
        assert code == 0, error
        assert f"decoded on {device}, float32" in shown
        assert (pretended.seen > 100) == (device == NAME)
        reports.append(json.loads(place.read_text())["rows"])
    for here, there in zip(*reports, strict=True):
        assert {**here, "seconds": 0} == {**there, "seconds": 0}


def test_the_theorems_elsewhere_are_the_same() -> None:
    denoiser, canvas = opinionated(7), canvases(1, 3, seed=5)
    here = claims(denoiser, canvas)
    with PretendDevice() as pretended:
        there = claims(denoiser.to(NAME), canvas.to(NAME))
    assert pretended.seen > 100
    assert [claim.claim for claim in here] == [claim.claim for claim in there]
    assert all(claim.holds for claim in there)
    for side in ("left", "right"):
        values = ([getattr(claim, side) for claim in found] for found in (here, there))
        assert next(values) == pytest.approx(next(values), abs=1e-4)


def test_what_is_summed_over_processes_is_on_their_device() -> None:
    """NCCL refuses tensors of the CPU, which an evaluation and its counts are."""

    def reduce(tensor: Any, how: str) -> Any:
        assert tensor.device == THERE
        return tensor * 2

    with PretendDevice():
        processes = ProcessGroup(SimpleNamespace(num_processes=2, device=THERE, reduce=reduce))  # pyright: ignore
        summed = processes.all_reduce(torch.ones(3, dtype=torch.float64))
        assert summed.device == torch.device("cpu")
        assert summed.tolist() == [2, 2, 2]
        assert processes.sum(3) == 6
