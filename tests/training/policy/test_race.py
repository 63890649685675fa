"""The race of heuristics before the first step: its winner is what the policy starts as, and what is left if nothing helps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from support.trainings import DATA
from unmask.decoding.loop import unmask
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.heuristics import margin
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import PolicyConfig
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training

RUN = PolicyRun(
    "sudoku-4x4-imperfect",
    PolicyConfig(kind="general", width=96, n_layers=1, n_heads=3),
    data=DATA,
    training=PolicyTraining(steps=1, prompts=2, states=16, validate=4, validate_every=1),
    race=("confidence", "margin", "left_to_right"),
)


def test_the_winner_is_kept_where_no_step_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter([0.5, 0.75, 0.25, 0.75, 0.5])  # the race, the start, the step
    monkeypatch.setattr("unmask.training.policy.trainer.validate_free_running", lambda *_: {"accuracy": next(measured)})
    list(run_policy_training(RUN, tmp_path / "run"))
    assert json.loads((tmp_path / "run/race.json").read_text()) == {
        "confidence": 0.5,
        "margin": 0.75,
        "left_to_right": 0.25,
    }
    denoiser, canvas = load_denoiser("sudoku-4x4-imperfect"), DATA(0, 4)
    ours, theirs = (unmask(denoiser, s, canvas) for s in (load_scheduler(str(tmp_path / "run"), denoiser), margin))
    assert torch.equal(ours.order, theirs.order)
    # A resumed run does not measure again.
    list(run_policy_training(RUN, tmp_path / "run", resume=True))


def test_unknown_heuristics_are_refused() -> None:
    with pytest.raises(ValueError, match=r"race must name bases of policies \(confidence, .*got 'luck'"):
        PolicyRun(race=("luck",))
