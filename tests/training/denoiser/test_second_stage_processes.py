"""Several processes share the second stage: orders, canvases and measuring; the result is that of one up to rounding."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support.processes import together
from support.stages import stage
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import load_denoiser
from unmask.runs.processes import ProcessGroup
from unmask.runs.run import Run
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.denoiser import second_stage
from unmask.training.denoiser.masked_trainer import (
    MaskedTraining,
    Masks,
    elbo_weight,
    masked_loss,
    random_masks,
    share_loss,
)
from unmask.training.denoiser.second_stage import SecondStage, run_second_stage

pytestmark = pytest.mark.usefixtures("unchecked")

BOARDS = SecondStage(
    denoiser="sudoku-4x4",
    order="confidence",
    data=SudokuData(size=4, puzzles=24, clues="8-10"),
    validate=3,
    refresh=2,
    training=MaskedTraining(samples=35, batch=7, lr=1e-3, ema=0.5, log_every=2, save_every=1),
)


def weights(run: Path) -> dict[str, torch.Tensor]:
    (file,) = (run / "denoiser").glob("*model.safetensors")
    return load_file(file)


def same_training(one: Path, other: Path) -> None:
    first, second = Run(one).metrics(), Run(other).metrics()
    assert [record["step"] for record in first] == [record["step"] for record in second]
    for a, b in zip(first, second, strict=True):
        for name in a.keys() - {"samples_per_second"}:
            assert a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), name
    expected, found = weights(one), weights(other)
    for name, tensor in expected.items():
        assert torch.allclose(tensor.float(), found[name].float(), atol=2e-3), name


def adapter(tmp_path: Path) -> SecondStage:
    config = stage(tmp_path, "llada", order="left_to_right", validate=3)
    return replace(config, training=replace(config.training, samples=24, batch=3, log_every=2, save_every=1))


@pytest.mark.parametrize("kind", ["adapter", "boards"])
def test_three_processes_tune_like_one(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the boards an order is drawn by one process each; a refresh draws them again."""
    config = adapter(tmp_path) if kind == "adapter" else BOARDS
    list(run_second_stage(config, tmp_path / "one"))
    inner, drawn = second_stage.draw_orders, [0]

    def counted(*given: Any, **options: Any) -> Any:
        drawn[0] += len(options["numbers"])
        return inner(*given, **options)

    def work(rank: int) -> None:
        monkeypatch.setattr(second_stage, "draw_orders", counted)
        list(run_second_stage(config, tmp_path / "run"))
        (tmp_path / f"drawn.{rank}").write_text(str(drawn[0]))

    codes, _ = together(3, work, tmp_path / "log")
    assert codes == [0] * 3, (tmp_path / "log.0").read_text()
    same_training(tmp_path / "one", tmp_path / "run")
    counts = [int((tmp_path / f"drawn.{rank}").read_text()) for rank in range(3)]
    kept = [load_file(file) for file in (tmp_path / "run" / "orders").rglob("step-*.safetensors")]
    assert sum(counts) == sum(len(one["rows"]) for one in kept) and max(counts) <= sum(counts) / 3 + 8


def test_a_stage_of_two_is_resumed_by_one_and_back(tmp_path: Path) -> None:
    list(run_second_stage(BOARDS, tmp_path / "one"))

    def begin(rank: int) -> None:
        list(itertools.islice(run_second_stage(BOARDS, tmp_path / "run"), 2))

    def end(rank: int) -> None:
        list(run_second_stage(BOARDS, tmp_path / "run", resume=True))

    codes, _ = together(2, begin, tmp_path / "log")
    assert codes == [0, 0], (tmp_path / "log.0").read_text()
    list(itertools.islice(run_second_stage(BOARDS, tmp_path / "run", resume=True), 2))
    codes, _ = together(2, end, tmp_path / "log")
    assert codes == [0, 0], (tmp_path / "log.0").read_text()
    same_training(tmp_path / "one", tmp_path / "run")


class Alone(ProcessGroup):
    """The ``rank``-th of ``count`` processes, without the others."""

    def __init__(self, rank: int, count: int) -> None:
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "count", count)

    def split(self, count: int) -> torch.Tensor:
        return torch.arange(count).tensor_split(self.count)[self.rank]  # pyright: ignore


@pytest.mark.parametrize("weight", ["hidden", "elbo", "answers"])
def test_parts_of_a_loss_add_up_to_it(weight: str) -> None:
    """Also where there are more processes than rows."""
    denoiser: Any = load_denoiser("sudoku-4x4")
    canvas: Canvas = SudokuData(size=4, puzzles=4, clues="8-10")(0, 4)
    masks = random_masks(denoiser.mask_id, 3, weight)(canvas, 5)
    if weight == "answers":
        answer = canvas.tokens == denoiser.mask_id
        masks = Masks(masks.hidden, masks.scored, elbo_weight(answer, masks.hidden), answers=41)
    wanted = masked_loss(denoiser, canvas, masks)
    parts = [share_loss(denoiser, canvas, masks, (), Alone(rank, 6)) for rank in range(6)]
    for whole, found in zip(wanted, zip(*parts, strict=True), strict=True):
        assert sum(part.item() for part in found) == pytest.approx(whole.item(), rel=1e-5)


def test_one_denoiser_on_all_devices_is_for_one_process(tmp_path: Path) -> None:
    config = replace(BOARDS, device="spread")

    def work(rank: int) -> None:
        list(run_second_stage(config, tmp_path / "run"))

    codes, _ = together(2, work, tmp_path / "log")
    assert codes == [2, 2]
    assert "device spread puts one denoiser on all devices" in (tmp_path / "log.1").read_text()
    assert not (tmp_path / "run").exists()
