"""The race of heuristics before the first step: its winner is what is kept if no step is better."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.trainings import DATA
from unmask.decoding.loop import unmask
from unmask.denoisers.loading import load_denoiser
from unmask.runs.run import Run
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import margin
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training
from unmask.training.policy.validation import best_step

RUN = PolicyRun(
    "sudoku-4x4-imperfect",
    PolicyConfig(kind="general", width=96, n_layers=1, n_heads=3),
    data=DATA,
    training=PolicyTraining(
        steps=2, prompts=2, states=16, validate=4, validate_every=2, save_every=1, race=("margin", "left_to_right")
    ),
)


@pytest.mark.parametrize("after", [0.75, 0.8])
def test_the_best_heuristic_is_kept_where_no_step_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: float
) -> None:
    """The start has 0.5, margin 0.75, left to right 0.25. A resumed run knows the winner without measuring it again."""
    measured = iter([0.5, 0.75, 0.25, after])
    monkeypatch.setattr("unmask.training.policy.trainer.validate_free_running", lambda *_: {"accuracy": next(measured)})
    next(run_policy_training(RUN, tmp_path / "run", stop=lambda: True))
    list(run_policy_training(RUN, tmp_path / "run", resume=True))
    metrics = Run(tmp_path / "run").metrics()
    assert (metrics[0]["race_margin"], metrics[0]["race_left_to_right"]) == (0.75, 0.25)
    denoiser, canvas = load_denoiser("sudoku-4x4-imperfect"), DATA(0, 4)
    policy = load_scheduler(str(tmp_path / "run"), denoiser)
    assert isinstance(policy, OrderPolicy)
    kept = after == 0.75
    assert best_step(metrics) == (0 if kept else 2)
    assert policy.config.base == ("margin" if kept else "confidence")
    assert bool(policy.network.readout.weight.any()) != kept
    if kept:
        ours, theirs = (unmask(denoiser, one, canvas) for one in (policy, margin))
        assert torch.equal(ours.order, theirs.order)


def test_unknown_heuristics_are_refused() -> None:
    with pytest.raises(ValueError, match=r"race must be one of confidence, .*got 'marginn'; did you mean 'margin'"):
        PolicyTraining(race=("marginn",))


def test_a_head_is_not_kept_as_it_began() -> None:
    """An untrained policy is a heuristic, an untrained head nothing, even where its decodings happen to be right."""
    metrics = [{"step": 1, "start_accuracy": 1.0}, {"step": 2, "accuracy": 0.9}]
    assert best_step(metrics) == 0 and best_step(metrics, starts=False) == 2
    assert best_step(metrics[:1], starts=False) is None
