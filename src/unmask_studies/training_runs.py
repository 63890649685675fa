"""Runs that studies need: policies and denoisers, found among finished runs or trained where they are missing.

A run is called after its preset, ``ablation-mlp``, or after its preset and seed, ``ablation-mlp@8``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from unmask.runs.presets import change_training, load_preset
from unmask.runs.run import Run
from unmask.training.denoiser.pretrain import Pretrain, pretrain
from unmask.training.policy.run import PolicyRun, run_policy_training

LENGTH = ("steps", "validate", "validate_every", "save_every", "seed")
"""Options of a scale, not of a method."""
EVEN_PASSES = {"mu": 0.5, "hardest": 1.0, "minibatches": 1}
"""Over a random half of a step's decisions, easy ones included: for policies that are compared."""


def is_finished(folder: Path, result: str = "policy") -> bool:
    """Has the run come to its end? Its policy, or its denoiser, is written last."""
    return (folder / result / "model.safetensors").exists() and (folder / result / "config.json").exists()


def run_name(preset: str, seed: int | None) -> str:
    return preset if seed is None else f"{preset}@{seed}"


def find_run(name: str, runs: Path | None, result: str = "policy") -> Path | None:
    """The finished run of that name, if there is one. A run that is not finished may be in progress: it is not touched."""
    return runs / name if runs is not None and is_finished(runs / name, result) else None


def ensure_run(name: str, config: PolicyRun | Pretrain, folder: Path, runs: Path | None = None) -> Path:
    """The run of that name: found in ``runs``, else trained in ``folder/runs``, resuming an interrupted one."""
    result = "denoiser" if isinstance(config, Pretrain) else "policy"
    place = find_run(name, runs, result) or folder / "runs" / name
    if not is_finished(place, result):
        place.parent.mkdir(parents=True, exist_ok=True)
        steps = (
            pretrain(config, place, resume=True)
            if isinstance(config, Pretrain)
            else run_policy_training(config, place, resume=True)
        )
        for _ in steps:
            pass
    return place


def load_recipe(
    preset: str,
    seed: int | None = None,
    steps: int | None = None,
    denoiser: str | None = None,
    validate: int | None = None,
) -> PolicyRun:
    """A preset of ``unmask train`` with another seed, length, denoiser or validation, as its options would set them."""
    config = load_preset(preset, PolicyRun, "train")
    every = None if steps is None else min(steps, config.training.validate_every)
    config = change_training(config, seed, steps=steps, validate=validate, validate_every=every)
    return config if denoiser is None else replace(config, denoiser=denoiser)


def transfer_options(rival: PolicyRun, base: PolicyRun, recipe: PolicyRun) -> PolicyRun:
    """``recipe`` with the training options in which ``rival`` differs from ``base``; the length stays the recipe's."""
    changed = {
        option.name: getattr(rival.training, option.name)
        for option in fields(rival.training)
        if option.name not in LENGTH and getattr(rival.training, option.name) != getattr(base.training, option.name)
    }
    return replace(recipe, training=replace(recipe.training, **changed))


def load_pretraining(preset: str, samples: int | None = None) -> Pretrain:
    """A preset of ``unmask pretrain`` for another number of samples."""
    return change_training(load_preset(preset, Pretrain, "pretrain"), samples=samples)


def read_history(run: Path) -> dict[str, Any]:
    """What a training cost and where it ended, from its folder."""
    records, config = Run(run).metrics(), _read_config(run)
    keys = ("start_accuracy", "accuracy")
    accuracy = [record[key] for record in records for key in keys if isinstance(record.get(key), float)]
    training = config.get("training", {})
    return {
        "denoiser": config.get("denoiser"),
        "steps": training.get("steps"),
        "seed": training.get("seed"),
        "objective": training.get("objective"),
        "calls": records[-1].get("denoiser_calls") if records else None,
        "validation": max(accuracy, default=None),
        "validated": training.get("validate"),
    }


def read_curve(run: Path) -> list[tuple[int, float]]:
    """Denoiser calls so far, and the share of held-out problems solved, at every validation; the start has cost nothing."""
    records = Run(run).metrics()
    start = [(0, record["start_accuracy"]) for record in records[:1] if "start_accuracy" in record]
    return start + [(record["denoiser_calls"], record["accuracy"]) for record in records if "accuracy" in record]


def _read_config(run: Path) -> Mapping[str, Any]:
    try:
        config = json.loads((run / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{run} is not a training run: expected its config.json, got {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("training"), dict):
        raise ValueError(f"{run} is not the run of a policy: expected [training] in its config.json")
    return config
