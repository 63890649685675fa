"""The second stage on another device and in another dtype: all tensors are there, and the result is the CPU's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from safetensors.torch import load_file

from support.commands import Call
from support.pretend_device import NAME, THERE, PretendDevice
from support.stages import stage
from support.text import examples
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.placement import device_options
from unmask.runs.run import Run
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.denoiser import second_stage
from unmask.training.denoiser.masked_trainer import MaskedTraining
from unmask.training.denoiser.second_stage import SecondStage, run_second_stage

pytestmark = pytest.mark.usefixtures("unchecked")

TUNE = SecondStage(
    "sudoku-4x4-imperfect",
    data=SudokuData(size=4, puzzles=6, clues="11-12"),
    validate=2,
    refresh=2,
    training=MaskedTraining(samples=12, batch=4, lr=1e-3, ema=0.5, log_every=2, save_every=1),
)


def test_pretend_device_does_not_mix_with_the_cpu() -> None:
    with PretendDevice():
        there, here = torch.ones(3, device=NAME), torch.ones(3)
        assert there.device == THERE and (there + there).device == THERE
        assert (there * torch.tensor(2.0)).cpu().tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(RuntimeError, match="expected all tensors on one device"):
            torch.add(there, here)


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in Run(folder).metrics() if "loss" in record]


def test_weights_orders_and_canvases_are_on_the_device(tmp_path: Path) -> None:
    """A learned order, orders drawn anew, averages, and a resumption between two records."""
    list(run_second_stage(TUNE, tmp_path / "cpu"))
    there = replace(TUNE, device=NAME)
    with PretendDevice() as device:
        denoiser = load_denoiser(TUNE.denoiser, **device_options(NAME))
        policy: Any = load_scheduler("sas", denoiser, TUNE.denoiser)
        assert {p.device for p in (*denoiser.parameters(), *policy.parameters())} == {THERE}
        list(itertools.islice(run_second_stage(there, tmp_path / "there"), 2))
        assert device.seen > 1000
        list(run_second_stage(there, tmp_path / "there", resume=True))
    assert losses(tmp_path / "there") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-5)
    assert len(losses(tmp_path / "cpu")) == 2
    ours, theirs = (load_file(tmp_path / name / "denoiser" / "model.safetensors") for name in ("there", "cpu"))
    before = dict(load_denoiser(TUNE.denoiser).named_parameters())
    assert all(torch.allclose(ours[name].float(), theirs[name].float(), atol=1e-3) for name in theirs)
    assert any(not torch.equal(theirs[name].float(), before[name]) for name in theirs)
    for name in ("turn-0000", "turn-0001"):
        here, there = (sorted((tmp_path / run / "orders" / name).glob("step-*")) for run in ("cpu", "there"))
        assert [file.name for file in here] == [file.name for file in there] and here
        for ours, theirs in zip(map(load_file, here), map(load_file, there), strict=True):
            assert torch.equal(ours["rows"], theirs["rows"]) and torch.equal(ours["when"], theirs["when"])


def test_an_adapter_in_bfloat16_on_the_device(tmp_path: Path) -> None:
    config = stage(tmp_path, "llada", dtype="bfloat16", validate=2)
    examples(tmp_path / "llada.jsonl", "llada", 10)  # an operation of this device is slow
    config = replace(config, training=replace(config.training, samples=16, log_every=1, save_every=1))
    list(run_second_stage(config, tmp_path / "cpu"))
    with PretendDevice():
        records = list(run_second_stage(replace(config, device=NAME), tmp_path / "there"))
        tuned = load_denoiser(tmp_path / "there", torch.bfloat16, **device_options(NAME))
        found = {(p.device, p.dtype) for p in tuned.parameters()}
        assert found == {(THERE, torch.bfloat16), (THERE, torch.float32)}  # the denoiser, its adapter
    # In bfloat16 the composed kernels of the pretend device round where the fused ones of the CPU do not.
    assert losses(tmp_path / "there") == pytest.approx(losses(tmp_path / "cpu"), rel=0.15)
    assert records[-1]["on_path"] < records[0]["on_path"]
    saved = load_file(tmp_path / "there" / "denoiser" / "adapter_model.safetensors")
    assert any(tensor.abs().sum() > 0 for name, tensor in saved.items() if ".lora_B." in name)


def test_dtype_and_device_options_of_the_command(tmp_path: Path, command: Call) -> None:
    stage(tmp_path, "llada")
    (tmp_path / "tiny.toml").write_text(
        'denoiser = "llada"\norder = "confidence"\nadapter = "lora"\nrank = 2\nvalidate = 2\n'
        '[data]\nkind = "text"\nfile = "llada.jsonl"\nlength = 6\nheld_out = 0.3\n[training]\nsamples = 8\nbatch = 4\n'
    )
    given = ["finetune", "--preset", "tiny.toml", "--out", "run"]
    code, _, error = command(*given, "--dtype", "bfloat16", "--device", "cpu")
    assert code == 0, error
    saved = load_file(tmp_path / "run" / "denoiser" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}  # whatever the denoiser is
    assert '"device": "cpu"' in (tmp_path / "run" / "config.json").read_text()
    # A run may go on on another device, though not in another type.
    assert command(*given, "--dtype", "bfloat16", "--resume")[0] == 0
    code, _, error = command(*given, "--resume")
    assert code == 2 and "dtype (stored 'bfloat16', now 'float32')" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cudaa"], "no device 'cudaa': expected auto, cpu, cuda, cuda:1, mps or spread"),
        (["--device", "meta"], "no device 'meta'"),
        (["--device", "xpu"], "there is no device 'xpu' here (Torch not compiled with XPU enabled): name another"),
        (["--dtype", "int8"], "--dtype: expected one of float32, bfloat16, float16, got 'int8'"),
    ],
)
def test_unavailable_device_is_a_one_line_error(
    tmp_path: Path,
    command: Call,
    words: list[str],
    message: str,
) -> None:
    if words[-1] == "xpu" and torch.xpu.is_available():
        pytest.skip("this machine has such a device")
    code, _, error = command("finetune", "--out", "run", *words)
    assert code == 2 and message in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_offloaded_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = cpu_offload(load_denoiser(TUNE.denoiser), execution_device=torch.device("cpu"))
    monkeypatch.setattr(second_stage, "load_denoiser", lambda *_, **__: waiting)
    with pytest.raises(ValueError, match="does not fit the devices and is kept in the CPU's memory"):
        list(run_second_stage(TUNE, tmp_path / "run"))
