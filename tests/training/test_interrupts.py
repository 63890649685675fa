"""Ctrl-C and SIGTERM in the middle of a step: training ends at once, is saved, and goes on to the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from unmask.runs.run import Run
from unmask.schedulers.config import PolicyConfig
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.denoiser import second_stage
from unmask.training.denoiser.masked_trainer import MaskedTraining
from unmask.training.denoiser.second_stage import SecondStage, run_second_stage
from unmask.training.policy import learner, trainer
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training

pytestmark = pytest.mark.usefixtures("unchecked")

DATA = SudokuData(size=4, puzzles=24, clues="8-10")
POLICY = PolicyRun(
    denoiser="sudoku-4x4",
    policy=PolicyConfig(kind="mlp", width=8),
    data=DATA,
    training=PolicyTraining(
        steps=4, prompts=2, group=2, advantage="trajectory", validate=2, validate_every=2, save_every=4
    ),
)
TUNE = SecondStage(
    denoiser="sudoku-4x4",
    order="confidence",
    data=DATA,
    validate=2,
    training=MaskedTraining(samples=48, batch=8, lr=1e-3, log_every=2, save_every=6),
)


def interrupt_call(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    """The ``number``-th call of a function is interrupted, as by a signal."""
    inner, calls = getattr(owner, name), iter(range(1, 1000))

    def called(*args: Any, **options: Any) -> Any:
        if next(calls) == number:
            raise KeyboardInterrupt
        return inner(*args, **options)

    monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize(
    ("owner", "name", "number", "saved"),
    [
        (trainer, "collect", 4, 3),  # in the rollouts
        (learner.Learner, "_accumulate", 3, 2),  # in the update
        (trainer, "validate_free_running", 2, 1),  # in a validation; the first one is that of the start
    ],
)
def test_a_policy_training_loses_only_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, saved: int
) -> None:
    list(run_policy_training(POLICY, tmp_path / "whole"))
    with monkeypatch.context() as patched:
        interrupt_call(patched, owner, name, number)
        with pytest.raises(KeyboardInterrupt):
            list(run_policy_training(POLICY, tmp_path / "broken"))
    checkpoint = Run(tmp_path / "broken").load_latest()
    assert checkpoint is not None and checkpoint.step == saved
    list(run_policy_training(POLICY, tmp_path / "broken", resume=True))
    whole, broken = (load_file(tmp_path / run / "policy" / "model.safetensors") for run in ("whole", "broken"))
    assert all(torch.equal(whole[key], broken[key]) for key in whole)
    numbers = [
        [{k: v for k, v in r.items() if "seconds" not in k} for r in Run(tmp_path / run).metrics()]
        for run in ("whole", "broken")
    ]
    assert numbers[0] == numbers[1]


def test_an_interrupt_between_steps_is_handed_to_the_training(tmp_path: Path) -> None:
    from unmask.cli.train import hand_over_interrupts

    records: Iterator[Any] = run_policy_training(POLICY, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), hand_over_interrupts(records):
        next(records)
        next(records)
        raise KeyboardInterrupt
    checkpoint = Run(tmp_path / "run").load_latest()
    assert checkpoint is not None and checkpoint.step == 2


@pytest.mark.parametrize("refresh", [0, 2])
def test_orders_are_drawn_while_training_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refresh: int
) -> None:
    """Of 24 canvases the first step draws 8. A run that is interrupted while it draws those of the third step has the others."""
    config = replace(TUNE, refresh=refresh)
    drawn: list[int] = []
    records = run_second_stage(config, tmp_path / "whole", progress=drawn.append)
    next(records)  # measured before the first step
    assert sum(drawn) == 0
    next(records)
    assert sum(drawn) == 16
    list(records)
    with monkeypatch.context() as patched:
        interrupt_call(patched, second_stage, "draw_orders", 3)
        with pytest.raises(KeyboardInterrupt):
            list(run_second_stage(config, tmp_path / "broken"))
    checkpoint = Run(tmp_path / "broken").load_latest()
    assert checkpoint is not None and checkpoint.step == 2
    again: list[int] = []
    list(run_second_stage(config, tmp_path / "broken", resume=True, progress=again.append))
    assert sum(again) == sum(drawn) - 16
    whole, broken = (load_file(tmp_path / run / "denoiser" / "model.safetensors") for run in ("whole", "broken"))
    assert all(torch.equal(whole[key], broken[key]) for key in whole)
