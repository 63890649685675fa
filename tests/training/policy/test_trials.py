"""Candidates are tried before the first step: what validates best is trained, and a resumed run knows what was found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support.denoisers import text_denoiser
from support.trainings import DATA
from unmask.denoisers.loading import load_denoiser
from unmask.runs.run import Run
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.opinion import Opinion
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy import trainer, trials
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training
from unmask.training.policy.trials import Choice, Trial, read_choice

OTHER = """
[policy]
kind = "mlp"
width = 8

[training]
objective = "regression"
prompts = 3
lr = 1e-3
steps = 77
"""


@pytest.fixture
def config(tmp_path: Path) -> PolicyRun:
    preset = tmp_path / "other.toml"
    preset.write_text(OTHER)
    training = PolicyTraining(steps=4, prompts=2, states=16, validate=4, validate_every=4, save_every=1)
    policy = PolicyConfig(kind="transformer", width=8, n_layers=1, n_heads=2)
    return PolicyRun(
        "sudoku-4x4-imperfect", policy, data=DATA, training=training, candidates=(str(preset),), trial_steps=2
    )


def measure(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> list[float]:
    """Validations have these accuracies one after another; returns what is left of them."""
    monkeypatch.setattr(trainer, "validate_free_running", lambda *_: {"accuracy": values.pop(0)})
    return values


@pytest.mark.parametrize(
    ("own", "other", "kind"), [(0.6, 0.7, "mlp"), (0.7, 0.6, "transformer"), (0.6, 0.6, "transformer")]
)
def test_the_best_candidate_is_trained(
    config: PolicyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: float, other: float, kind: str
) -> None:
    """Each trial is validated at its start and at its end; the training of the winner then begins anew."""
    left = measure(monkeypatch, [0.5, own, 0.5, other, 0.5, 0.9])
    heard: list[Trial | Choice] = []
    records = list(run_policy_training(config, tmp_path / "run", on_trial=heard.append))
    assert not left and [record["step"] for record in records] == [1, 2, 3, 4]
    name = "other"
    choice = Choice({"transformer": own, name: other})
    assert heard == [*(Trial("transformer", k, 2) for k in range(3)), *(Trial(name, k, 2) for k in range(3)), choice]
    assert read_choice(Run(tmp_path / "run")) == choice
    policy = load_scheduler(str(tmp_path / "run"), load_denoiser(config.denoiser))
    assert isinstance(policy, OrderPolicy) and policy.config.kind == kind


def test_a_candidate_has_the_length_and_the_seed_of_the_run(config: PolicyRun, tmp_path: Path) -> None:
    config = replace(config, training=replace(config.training, seed=3))
    list(run_policy_training(config, tmp_path / "run"))
    place = tmp_path / "run" / trials.FOLDER / "other" / "config.json"
    training = json.loads(place.read_text())["training"]
    assert (training["objective"], training["prompts"], training["lr"]) == ("regression", 3, 1e-3)
    assert (training["steps"], training["seed"], training["validate"]) == (4, 3, 4)


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_a_run_that_was_stopped_in_its_trials_goes_on(config: PolicyRun, tmp_path: Path, after: int) -> None:
    """Wherever it stops, the resumed run ends with the weights of one that did not."""
    whole = list(run_policy_training(config, tmp_path / "whole"))
    asked = iter(range(1, 100))
    records = list(run_policy_training(config, tmp_path / "run", stop=lambda: next(asked) >= after))
    records += run_policy_training(config, tmp_path / "run", resume=True)
    untimed = lambda record: {name: x for name, x in record.items() if not name.endswith("seconds")}  # noqa: E731
    assert [*map(untimed, records)] == [*map(untimed, whole)]
    ours, theirs = (tmp_path / name / "policy" / "model.safetensors" for name in ("run", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()


def test_damaged_choices_are_one_line(config: PolicyRun, tmp_path: Path) -> None:
    next(run_policy_training(config, tmp_path / "run", stop=lambda: False))
    (tmp_path / "run" / trials.FOLDER / trials.CHOICE).write_text('{"scores": [1]}')
    with pytest.raises(ValueError, match=r"choice\.json is damaged .*delete it, and resume"):
        list(run_policy_training(config, tmp_path / "run", resume=True))


def test_an_opinion_is_tried_for_small_denoisers_of_many_tokens() -> None:
    assert Opinion.is_worth_trying(load_denoiser("arithmetic"))
    assert not Opinion.is_worth_trying(text_denoiser())
    assert not Opinion.is_worth_trying(load_denoiser("sudoku-4x4"))
    assert not Opinion.is_worth_trying(object())


def test_a_denoiser_that_is_too_large_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.schedulers.opinion.LARGEST", 100)
    assert not Opinion.is_worth_trying(load_denoiser("arithmetic"))


def test_candidates_that_cannot_be_told_apart(config: PolicyRun) -> None:
    with pytest.raises(ValueError, match="which is called transformer after its policy"):
        replace(config, candidates=("presets/transformer.toml",))
    with pytest.raises(ValueError, match="trial_steps must be at least 1, got 0"):
        replace(config, trial_steps=0)


def test_options_of_a_recipe_leave_nothing_to_try(command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    small = ("--steps", "1", "--training.prompts", "2", "--training.validate", "2", "--out")
    words = ("train", "--task", "arithmetic", "--denoiser", "arithmetic", *small)
    code, out, err = command(*words, "both")
    assert code == 0 and "after the trials: general " in err and "opinion" in err and "the policy is in" in out
    code, _, err = command(*words, "one", "--training.objective", "regression")
    assert code == 0 and "trials" not in err and not (tmp_path / "one" / trials.FOLDER).exists()


@pytest.mark.parametrize(("accuracy", "select"), [(0.0, "nll"), (0.02, "nll"), (0.25, "accuracy")])
def test_auto_selects_by_likelihood_where_nothing_is_solved(
    config: PolicyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accuracy: float, select: str
) -> None:
    """A resumed run selects as it began; it does not measure the start again."""
    free, likelihood = [accuracy, 0.9, 0.9], [3.0, 2.0, 1.0]
    monkeypatch.setattr(trainer, "validate_free_running", lambda *_: {"accuracy": free.pop(0)})
    monkeypatch.setattr(trainer, "greedy_nll", lambda *_: likelihood.pop(0))
    training = replace(config.training, select="auto", steps=2, validate_every=1)
    config = replace(config, training=training, candidates=())
    next(run_policy_training(config, tmp_path / "run", stop=lambda: True))
    list(run_policy_training(config, tmp_path / "run", resume=True))
    first, second = Run(tmp_path / "run").metrics()
    measured = (2, 0) if select == "nll" else (0, 3)
    assert (len(free), len(likelihood)) == measured
    assert (f"start_{select}" in first, select in first, select in second) == (True, True, True)
