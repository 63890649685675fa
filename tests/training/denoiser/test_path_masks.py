"""Masks of the second stage: states along the order, an unbiased estimate of its likelihood, resume bit for bit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.runs.run import Run
from unmask.schedulers.heuristics import confidence, random
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.denoiser.masked_trainer import MaskedTraining, masked_loss
from unmask.training.denoiser.path_masks import PathMasks, draw_orders
from unmask.training.denoiser.second_stage import SecondStage, run_rounds, run_second_stage

DATA = SudokuData(size=4, puzzles=6, clues="5-7")


def setting(**options: Any) -> tuple[Transformer, Canvas, PathMasks]:
    denoiser = load_denoiser("sudoku-4x4")
    assert isinstance(denoiser, Transformer)
    canvas = replace(DATA, augment=False)(0, 6)
    masks = PathMasks(
        canvas, 0, lambda rows: draw_orders(denoiser, confidence, canvas.rows(rows)), random_share=0.0, **options
    )
    return denoiser, canvas, masks


def test_draw_orders_is_teacher_forced_decoding() -> None:
    denoiser, canvas, masks = setting()
    path = unmask(denoiser, confidence, Canvas(canvas.tokens, target=canvas.target), forced=True)
    assert torch.equal(masks.when(0, torch.arange(6)), path.rank)
    blocks = draw_orders(denoiser, confidence, canvas, decoding=Decoding(steps=3))
    assert int(blocks.max()) == 2 and torch.equal(blocks >= 0, canvas.tokens == 0)


def test_draw_orders_does_not_depend_on_the_batch() -> None:
    denoiser, canvas, _ = setting()
    assert torch.equal(
        draw_orders(denoiser, random, canvas, seed=3), draw_orders(denoiser, random, canvas, seed=3, rows_at_once=4)
    )
    assert not torch.equal(draw_orders(denoiser, random, canvas, seed=3), draw_orders(denoiser, random, canvas, seed=4))


def test_masks_hide_what_the_order_has_not_revealed() -> None:
    _, canvas, masks = setting()
    rank = masks.when(0, torch.arange(6))
    for step in range(20):
        rows, drawn = masks.choose_rows(step, 6), masks.masks(masks(step, 6), step)
        for row, hidden, scored in zip(rows.tolist(), drawn.hidden, drawn.scored, strict=True):
            moment = int(rank[row][scored].item())
            assert scored.sum() == 1
            assert torch.equal(hidden, rank[row] >= moment)
            assert not (hidden & (canvas.tokens[row] != 0)).any()


def test_the_loss_estimates_the_likelihood_along_the_order() -> None:
    """Over many draws, the mean loss is −R(x, σ̂) per hidden cell (Eq. second_stage_loss)."""
    denoiser, canvas, masks = setting()
    path = unmask(denoiser, confidence, Canvas(canvas.tokens, target=canvas.target), forced=True)
    exact = -path.total_logp.sum().item() / int((canvas.tokens == 0).sum())
    with torch.no_grad():
        losses = [
            masked_loss(denoiser, shown := masks(step, 60), masks.masks(shown, step), (0,))[0].item()
            for step in range(60)
        ]
    mean, error = torch.tensor(losses).mean().item(), torch.tensor(losses).std().item() / len(losses) ** 0.5
    assert abs(mean - exact) < 4 * error
    assert error < 0.2 * exact  # so that the line above can fail


def test_every_canvas_is_shown_once_per_epoch() -> None:
    _, _, masks = setting()
    drawn = torch.cat([masks.choose_rows(step, 4) for step in range(3)])
    assert sorted(drawn[:6].tolist()) == sorted(drawn[6:].tolist()) == list(range(6))


def test_random_share_masks_as_in_pretraining() -> None:
    _, _, masks = setting()
    masks.random_share = 1.0
    shown = masks(0, 6)
    drawn = masks.masks(shown, 0)
    assert torch.equal(drawn.hidden, drawn.scored)
    assert drawn.hidden.any(1).all() and not (drawn.hidden & (shown.tokens != 0)).any()


def test_symmetry_moves_an_order_with_its_board() -> None:
    _, canvas, masks = setting(vary=DATA.vary)
    shown = masks(5, 6)
    rows = masks.choose_rows(5, 6)
    varied, when = DATA.vary(canvas.rows(rows), masks.when(5, rows), 5)
    assert torch.equal(shown.tokens, varied.tokens) and not torch.equal(shown.tokens, canvas.tokens[rows])
    assert torch.equal(when >= 0, shown.tokens == 0)
    drawn = masks.masks(shown, 5)
    assert torch.equal(drawn.hidden, when >= when[drawn.scored][:, None])


TINY = SecondStage(
    denoiser="sudoku-4x4",
    order="confidence",
    data=DATA,
    validate=4,
    refresh=3,
    training=MaskedTraining(samples=64, batch=8, lr=1e-2, log_every=2, save_every=2),
)


@pytest.fixture(scope="module")
def whole_stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stage") / "whole"
    list(run_second_stage(TINY, folder))
    return folder


@pytest.mark.parametrize("leave_after", [1, 2, 3, 4])
def test_a_second_stage_resumes_bit_for_bit(whole_stage: Path, tmp_path: Path, leave_after: int) -> None:
    list(itertools.islice(run_second_stage(TINY, tmp_path / "parts"), leave_after))
    list(run_second_stage(TINY, tmp_path / "parts", resume=True))
    whole, parts = (folder / "denoiser" / "model.safetensors" for folder in (whole_stage, tmp_path / "parts"))
    assert whole.read_bytes() == parts.read_bytes()
    timeless = [
        [{k: v for k, v in record.items() if k != "samples_per_second"} for record in Run(folder).metrics()]
        for folder in (whole_stage, tmp_path / "parts")
    ]
    assert timeless[0] == timeless[1]
    assert timeless[0][0]["step"] == 0 and "off_path" in timeless[0][0] and "off_path" in timeless[0][-1]


def test_tuning_the_head_keeps_the_trunk(tmp_path: Path) -> None:
    list(run_second_stage(replace(TINY, trained="head", refresh=0), tmp_path / "head"))
    before, after = load_denoiser("sudoku-4x4"), load_denoiser(tmp_path / "head")
    changed = {
        name.split(".")[0]
        for (name, p), q in zip(before.named_parameters(), after.parameters(), strict=True)
        if not torch.equal(p, q)
    }
    assert changed == {"head"}


def test_rounds_continue_with_the_previous_results(tmp_path: Path) -> None:
    from support.trainings import TRAINING
    from unmask.schedulers.config import PolicyConfig
    from unmask.training.policy.run import PolicyRun

    order = PolicyRun(
        policy=PolicyConfig(width=4, n_layers=1), data=DATA, training=replace(TRAINING, steps=2, validate=4)
    )
    seen = [(number, what) for number, what, _ in run_rounds(TINY, order, 2, tmp_path)]
    assert list(dict.fromkeys(seen)) == [(1, "denoiser"), (1, "order"), (2, "denoiser"), (2, "order")]
    config = (tmp_path / "round-2" / "denoiser" / "config.json").read_text()
    assert "round-1/denoiser" in config and "round-1/order" in config
    # Complete rounds are not run again.
    assert list(run_rounds(TINY, order, 2, tmp_path, resume=True)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [({"trained": "tail"}, "head"), ({"loss_on": "all"}, "reveal"), ({"random_share": 2.0}, "random_share")],
)
def test_invalid_options_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **change)  # pyright: ignore
