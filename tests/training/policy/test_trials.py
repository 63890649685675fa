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
from unmask.training.cost.preflight import Needs
from unmask.training.policy import trainer, trials
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, run_policy_training
from unmask.training.policy.trials import Choice, Race, Trial, read_choice

OTHER = """
trial_steps = 2

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
    trials = {"candidates": (str(preset),), "trial_steps": 2, "trial_rounds": 1}
    return PolicyRun("sudoku-4x4-imperfect", policy, data=DATA, training=training, **trials)


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
    choice = Choice(name if kind == "mlp" else "transformer", "accuracy", {"transformer": own, name: other})
    assert heard == [*(Trial("transformer", k, 2) for k in range(3)), *(Trial(name, k, 2) for k in range(3)), choice]
    assert read_choice(Run(tmp_path / "run")) == choice
    policy = load_scheduler(str(tmp_path / "run"), load_denoiser(config.denoiser))
    assert isinstance(policy, OrderPolicy) and policy.config.kind == kind


def test_candidates_that_cannot_be_told_apart_are_trained_on(
    config: PolicyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four problems, one more is no difference; two more than none are."""
    measure(monkeypatch, [0.5, 0.5, 0.5, 0.25, 0.0, 0.5, 0.5])
    config = replace(config, training=replace(config.training, steps=7), trial_rounds=3)
    heard: list[Trial | Choice] = []
    next(run_policy_training(config, tmp_path / "run", on_trial=heard.append))
    steps = [(trial.name, trial.step, trial.steps) for trial in heard if isinstance(trial, Trial)]
    first = [(name, step, 2) for name in ("transformer", "other") for step in (0, 1, 2)]
    assert steps == first + [(name, step, 4) for name in ("transformer", "other") for step in (2, 3, 4)]
    assert heard[-1] == Choice("other", "accuracy", {"transformer": 0.0, "other": 0.5})


def test_a_race_is_no_longer_than_its_rounds_and_the_training(
    config: PolicyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of two rounds fit into five; then the best one wins, however narrowly."""
    measure(monkeypatch, [0.5] * 20)
    config = replace(config, training=replace(config.training, steps=5), trial_rounds=9)
    heard: list[Trial | Choice] = []
    next(run_policy_training(config, tmp_path / "run", on_trial=heard.append))
    assert [trial.steps for trial in heard if isinstance(trial, Trial)] == [2] * 6 + [4] * 6
    assert heard[-1] == Choice("transformer", "accuracy", {"transformer": 0.5, "other": 0.5})


def test_a_candidates_trial_has_its_own_length(
    config: PolicyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps a round where its file says so, beside the run's two; neither goes on after the training's four."""
    measure(monkeypatch, [0.5] * 20)
    file = Path(config.candidates[0])
    file.write_text(file.read_text().replace("trial_steps = 2", "trial_steps = 3"))
    heard: list[Trial | Choice] = []
    next(run_policy_training(replace(config, trial_rounds=2), tmp_path / "run", on_trial=heard.append))
    ends = [(trial.name, trial.steps) for trial in heard if isinstance(trial, Trial) and trial.step == trial.steps]
    assert ends == [("transformer", 2), ("other", 3), ("transformer", 4), ("other", 4)]


@pytest.mark.parametrize(
    ("scores", "leaders"),
    [
        ({"a": 0.78, "b": 0.76}, ["a", "b"]),
        ({"a": 0.70, "b": 0.82}, ["b"]),
        ({"a": 0.855, "b": 0.98}, ["b"]),
        ({"a": 1.0, "b": 1.0, "c": 0.9}, ["a", "b"]),
    ],
)
def test_leaders_are_those_within_a_standard_error(scores: dict[str, float], leaders: list[str]) -> None:
    assert Race(4, problems=200).leaders(scores, "accuracy") == leaders


def test_likelihood_leads_alone() -> None:
    assert Race(4, problems=200).leaders({"a": 0.130, "b": 0.129}, "nll") == ["b"]


def test_a_candidate_has_the_length_and_the_seed_of_the_run(config: PolicyRun, tmp_path: Path) -> None:
    config = replace(config, training=replace(config.training, seed=3))
    list(run_policy_training(config, tmp_path / "run"))
    place = tmp_path / "run" / trials.FOLDER / "other" / "config.json"
    training = json.loads(place.read_text())["training"]
    assert (training["objective"], training["prompts"], training["lr"]) == ("regression", 3, 1e-3)
    assert (training["steps"], training["seed"], training["validate"]) == (4, 3, 4)


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 6, 7, 8, 9])
def test_a_run_that_was_stopped_in_its_trials_goes_on(
    config: PolicyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Wherever it stops, in either round, the resumed run ends with the weights of one that did not."""
    monkeypatch.setattr(Race, "leaders", lambda race, scores, measure: list(scores))
    config = replace(config, trial_rounds=2)
    whole = list(run_policy_training(config, tmp_path / "whole"))
    calls = iter(range(1, 100))
    records = list(run_policy_training(config, tmp_path / "run", stop=lambda: next(calls) >= after))
    records += run_policy_training(config, tmp_path / "run", resume=True)
    untimed = lambda record: {name: x for name, x in record.items() if not name.endswith("seconds")}  # noqa: E731
    assert [*map(untimed, records)] == [*map(untimed, whole)]
    ours, theirs = (tmp_path / name / "policy" / "model.safetensors" for name in ("run", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()


DAMAGED = [
    '{"scores": [1]}',
    "{}",
    '{"chosen": "mlp", "measure": "accuracy", "scores": {}}',
    '{"chosen": "mlp", "measure": "accuracy", "scores": {"mlp": NaN}}',
    '{"chosen": "mlp", "measure": "loss", "scores": {"mlp": 1}}',
    "[[[[",
]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_choices_are_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / trials.FOLDER).mkdir()
    (tmp_path / trials.FOLDER / trials.CHOICE).write_text(content)
    with pytest.raises(ValueError, match=r"choice\.json is damaged \(.*\): delete it, and resume the run"):
        read_choice(Run(tmp_path))


def test_a_resumed_run_refuses_another_candidate(config: PolicyRun, tmp_path: Path) -> None:
    """Its file is not part of the run's configuration: its contents at the trial are kept with the trial."""
    next(run_policy_training(config, tmp_path / "run", stop=lambda: False))
    chosen = Run(tmp_path / "run").folder / trials.FOLDER / trials.CHOICE
    chosen.write_text('{"chosen": "other", "measure": "accuracy", "scores": {"other": 0.2}}')
    preset = Path(config.candidates[0])
    preset.write_text(OTHER.replace("prompts = 3", "prompts = 2"))
    with pytest.raises(ValueError, match=r"other with another configuration: training\.prompts \(stored 3, now 2\)"):
        next(run_policy_training(config, tmp_path / "run", resume=True))
    chosen.write_text('{"chosen": "missing", "measure": "accuracy", "scores": {"missing": 0.1}}')
    with pytest.raises(
        ValueError, match="its trials chose 'missing', which is not among its candidates: transformer, other"
    ):
        next(run_policy_training(config, tmp_path / "run", resume=True))


def test_a_trial_that_lost_its_log_is_named(config: PolicyRun, tmp_path: Path) -> None:
    next(run_policy_training(config, tmp_path / "run", stop=lambda: False))
    place = tmp_path / "run" / trials.FOLDER
    (place / trials.CHOICE).unlink()
    (place / "other" / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"other/metrics\.jsonl lacks the validation of step 2: delete "):
        next(run_policy_training(config, tmp_path / "run", resume=True))


def test_a_run_that_fails_at_once_can_begin_otherwise(
    config: PolicyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(needs: Needs) -> None:
        raise ValueError("it does not fit into memory")

    with monkeypatch.context() as patched:
        patched.setattr(Needs, "require", refuse)
        with pytest.raises(ValueError, match="does not fit"):
            next(run_policy_training(config, tmp_path / "run"))
    smaller = replace(config, training=replace(config.training, at_once=1))
    next(run_policy_training(smaller, tmp_path / "run", stop=lambda: False))


def test_all_candidates_are_judged_as_the_first_one(
    config: PolicyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one solves nothing and is judged by likelihood; so is the other, whatever it solves. Less is better."""
    monkeypatch.setattr(trainer, "validate_free_running", lambda *_: {"accuracy": 0.0})
    measured = iter([3.0, 2.0, 3.0, 1.5, 3.0, 1.0])
    monkeypatch.setattr(trainer, "greedy_nll", lambda *_: next(measured))
    config = replace(config, training=replace(config.training, select="auto"))
    records = list(run_policy_training(config, tmp_path / "run"))
    assert read_choice(Run(tmp_path / "run")) == Choice("other", "nll", {"transformer": 2.0, "other": 1.5})
    assert "start_nll" in records[0] and records[-1]["nll"] == 1.0


def test_an_opinion_is_tried_for_small_denoisers_of_many_tokens() -> None:
    assert Opinion.is_worth_trying(load_denoiser("arithmetic"))
    assert not Opinion.is_worth_trying(text_denoiser())
    assert not Opinion.is_worth_trying(load_denoiser("sudoku-4x4"))
    assert not Opinion.is_worth_trying(object())


def test_a_denoiser_that_is_too_large_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.schedulers.opinion.LARGEST", 100)
    assert not Opinion.is_worth_trying(load_denoiser("arithmetic"))


def test_candidates_that_cannot_be_told_apart(config: PolicyRun) -> None:
    for candidates in (("presets/transformer.toml",), ("a/other.toml", "b/other.toml")):
        with pytest.raises(ValueError, match=r"expected different names, got transformer, .*; rename a file, or set"):
            replace(config, candidates=candidates)
    with pytest.raises(ValueError, match=r"start = 'sas' has the weights of one policy: set candidates = \[\]"):
        replace(config, start="sas")
    for option in ("trial_steps", "trial_rounds"):
        with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
            replace(config, **{option: 0})


def test_options_of_a_recipe_leave_nothing_to_try(command: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    small = ("--steps", "1", "--training.prompts", "2", "--training.validate", "2", "--out")
    words = ("train", "--task", "arithmetic", "--denoiser", "arithmetic", *small)
    code, out, err = command(*words, "both")
    assert code == 0 and "after the trials: general " in err and "; training " in err and "the policy is in" in out
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


def test_the_preset_of_an_opinion_is_for_every_task(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    small = ("--steps", "1", "--training.prompts", "2", "--training.validate", "2", "--out")
    words = ("train", "--preset", "opinion", "--task", "arithmetic")
    assert command(*words, "--denoiser", "arithmetic", *small, "run")[0] == 0
    assert json.loads((tmp_path / "run" / "policy" / "config.json").read_text())["kind"] == "opinion"
    code, _, err = command(*words, *small, "other")
    assert code == 2 and "which denoiser is to learn an order for the task arithmetic? Name it with --denoiser" in err


def test_the_command_says_that_a_training_has_ended_early(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "validate_free_running", lambda *_: {"accuracy": 0.5})
    words = (
        "train",
        "--denoiser",
        "sudoku-4x4",
        "--candidates",
        "--training.race",
        "--training.patience",
        "2",
        "--steps",
        "5",
    )
    small = ("--training.prompts", "2", "--training.validate", "4", "--training.validate-every", "1")
    code, out, _ = command(*words, *small, "--out", "run")
    assert code == 0 and "ended after step 2: the last 2 validations were no better" in " ".join(out.split())
