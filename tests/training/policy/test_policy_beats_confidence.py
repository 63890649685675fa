"""Slow, seeded: a trained policy beats confidence on unseen puzzles, with a paired interval that excludes 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import EvaluationOptions, evaluate
from unmask.runs.presets import load_preset
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.policy.run import PolicyRun, run_policy_training


@pytest.mark.slow
def test_fifteen_training_steps_beat_confidence(tmp_path: Path) -> None:
    preset = load_preset("sas-sudoku-9x9-imperfect", PolicyRun, "train")
    config = replace(preset, training=replace(preset.training, steps=15, validate=100, validate_every=15))
    list(run_policy_training(config, tmp_path / "order"))
    denoiser = load_denoiser(config.denoiser)
    policy = load_scheduler(str(tmp_path / "order"), denoiser)
    problems = SudokuTask.generate(500, clues="rao", split="test", seed=5)
    report = evaluate(
        problems, denoiser, {"confidence": confidence, "order": policy}, options=EvaluationOptions(likelihood=False)
    )
    versus = report.row("order").versus
    assert versus is not None
    assert versus.low > 0.02, versus
