"""The policy trainer: counted forwards, forced steps without a loss, resume bit for bit, and a policy that learns."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from support.trainings import DATA, TRAINING, TwoPositions, small
from unmask.runs.processes import ProcessGroup, start_accelerator
from unmask.runs.run import Run
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.decisions import Rollout
from unmask.training.policy.learner import Learner, Recorded
from unmask.training.policy.methods import choose_method
from unmask.training.policy.objectives import countable, policy_loss
from unmask.training.policy.rollout import collect
from unmask.training.policy.trainer import PolicyJob, train_policy
from unmask.training.policy.validation import best_step


@pytest.mark.parametrize("advantage", ["trajectory", "reward_to_go", "all_action", "critic"])
def test_a_step_costs_at_most_one_forward_per_trajectory_step(advantage: str) -> None:
    denoiser, policy = small()
    config = dataclasses.replace(TRAINING, advantage=advantage)
    before = denoiser.forwarded
    canvas = DATA(0, 4)
    rollout = collect(denoiser, choose_method(config, policy), canvas, torch.arange(12))
    forwards = denoiser.forwarded - before
    steps = int((canvas.tokens == 0).sum()) * config.group
    assert rollout.summary["trajectory_steps"] == steps
    # The group shares its first state, so there are strictly fewer forwards than steps.
    assert forwards <= steps - 4 * (config.group - 1)
    loss, _ = policy_loss(choose_method(config, policy), rollout, torch.arange(len(rollout)))
    loss.backward()
    assert denoiser.forwarded - before == forwards


def test_forced_steps_carry_no_loss() -> None:
    denoiser, policy = small()
    canvas = DATA(0, 4)
    rollout = collect(denoiser, choose_method(TRAINING, policy), canvas, torch.arange(12))
    assert int(rollout.eligible.sum(1).min()) == 2
    assert len(rollout) == (int((canvas.tokens == 0).sum()) - 4) * TRAINING.group


def test_the_denoiser_is_frozen() -> None:
    denoiser, policy = small()
    before = {name: p.clone() for name, p in denoiser.named_parameters()}
    list(train_policy(PolicyJob(denoiser, policy, DATA, dataclasses.replace(TRAINING, steps=2))))
    assert all(torch.equal(p, before[name]) for name, p in denoiser.named_parameters())


@pytest.mark.parametrize(
    ("stops", "beta", "ema", "replay"), [((1, 4), 0.1, 0.0, 0), ((3,), 0.0, 0.9, 0), ((1, 3), 0.0, 0.0, 2)]
)
def test_resume_is_bit_for_bit(tmp_path: Path, stops: tuple[int, ...], beta: float, ema: float, replay: int) -> None:
    config = dataclasses.replace(TRAINING, prompts=2, group=2, beta=beta, outer=2, ema=ema, replay=replay)
    held_out = dataclasses.replace(DATA, split="validation", puzzles=4)(0, 4)

    def train(folder: Path, leave_after: int | None) -> dict[str, torch.Tensor]:
        denoiser, policy = small()
        run = Run.create(folder, config, resume=True)
        records = train_policy(PolicyJob(denoiser, policy, DATA, config, held_out, run))
        list(records if leave_after is None else itertools.islice(records, leave_after))
        return {name: p.detach().clone() for name, p in policy.named_parameters()}

    whole = train(tmp_path / "whole", None)
    strip = lambda run: [{k: v for k, v in r.items() if "seconds" not in k} for r in run.metrics()]  # noqa: E731
    for stop_after in stops:
        parts = tmp_path / f"parts-{stop_after}"
        train(parts, stop_after)
        resumed = train(parts, None)
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)
        assert strip(Run(tmp_path / "whole")) == strip(Run(parts))


def record_updates(monkeypatch: pytest.MonkeyPatch, policy: OrderPolicy) -> list[int]:
    """The decisions that a learner updates on from now on; their loss is zero."""
    taken: list[int] = []

    def loss(_: Any, __: Any, rows: torch.Tensor, *___: Any) -> tuple[torch.Tensor, dict[str, float]]:
        taken.extend(rows.tolist())
        zero = torch.stack([p.sum() for p in policy.parameters()]).sum() * 0.0
        return zero, {"loss": 0.0, "clip_fraction": 0.0, "kl": 0.0}

    monkeypatch.setattr("unmask.training.policy.learner.policy_loss", loss)
    return taken


def test_a_part_of_a_pass_takes_a_part_of_the_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser, policy = small()
    config = dataclasses.replace(TRAINING, steps=1)
    rollout = collect(denoiser, choose_method(config, policy), DATA(0, 4), torch.arange(12))
    taken = record_updates(monkeypatch, policy)
    for mu, least in ((0.5, 0), (1.5, 1)):
        taken.clear()
        own = dataclasses.replace(config, mu=mu)
        learner = Learner(policy, own, torch.device("cpu"))
        learner.update(choose_method(own, policy), rollout, 0, ProcessGroup(start_accelerator()))
        assert len(taken) == math.ceil(mu * len(rollout))
        assert set(torch.bincount(torch.tensor(taken), minlength=len(rollout)).tolist()) == {least, least + 1}


def test_few_decisions_are_passed_over_until_there_are_enough_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser, policy = small()
    config = dataclasses.replace(TRAINING, steps=1, mu=0.5, states=8, minibatches=20)
    rollout = collect(denoiser, choose_method(config, policy), DATA(0, 2), torch.arange(6))
    assert len(rollout) < 20 * 8
    taken = record_updates(monkeypatch, policy)
    for states, decisions in ((8, 20 * 8), (1, math.ceil(0.5 * len(rollout)))):
        taken.clear()
        own = dataclasses.replace(config, states=states)
        Learner(policy, own, torch.device("cpu")).update(
            choose_method(own, policy), rollout, 0, ProcessGroup(start_accelerator())
        )
        assert len(taken) == decisions
        counted = torch.bincount(torch.tensor(taken), minlength=len(rollout))
        assert int(counted.max() - counted.min()) <= 1


def test_passes_over_the_hardest_decisions_take_those_of_the_greatest_regret(monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser, policy = small()
    config = dataclasses.replace(TRAINING, steps=1, mu=2, hardest=0.25)
    rollout = collect(denoiser, choose_method(config, policy), DATA(0, 4), torch.arange(12))
    v = policy.logv(policy.score(rollout.observed(torch.arange(len(rollout)))), {"eligible": rollout.eligible}).exp()
    regret = (v * (1 - rollout.reward.exp())).sum(1).detach()
    assert torch.allclose(regret, rollout.regret, atol=1e-5)
    taken = record_updates(monkeypatch, policy)
    Learner(policy, config, torch.device("cpu")).update(
        choose_method(config, policy), rollout, 0, ProcessGroup(start_accelerator())
    )
    hardest = rollout.regret.topk(math.ceil(0.25 * len(rollout))).indices.tolist()
    assert sorted(taken) == sorted(2 * hardest)


def test_replay_also_takes_decisions_of_earlier_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as without it, of the last steps alone, with the probabilities that they had when they were drawn."""
    denoiser, policy = small()
    config = dataclasses.replace(TRAINING, steps=4, replay=2, mu=2)
    method, processes = choose_method(config, policy), ProcessGroup(start_accelerator())
    learner = Learner(policy, config, torch.device("cpu"))
    rollouts = [collect(denoiser, method, DATA(step, 2 + step), torch.arange(3 * (2 + step))) for step in range(4)]
    counted: list[list[int]] = []

    def loss(_: Any, rollout: Any, rows: torch.Tensor, *___: Any) -> tuple[torch.Tensor, dict[str, float]]:
        which = next(number for number, one in enumerate(rollouts) if one is rollout)
        counted[-1][which] += len(rows)
        zero = torch.stack([p.sum() for p in policy.parameters()]).sum() * 0.0
        return zero, {"loss": 0.0, "clip_fraction": 0.0, "kl": 0.0}

    monkeypatch.setattr("unmask.training.policy.learner.policy_loss", loss)
    for step, rollout in enumerate(rollouts):
        counted.append([0] * 4)
        learner.update(method, rollout, step, processes)
        assert sum(counted[-1]) == 2 * len(rollout)
    assert [[number > 0 for number in row] for row in counted] == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [False, True, True, True],
    ]
    assert [one.rollout for one in learner.earlier] == [rollouts[3], rollouts[2]]


def test_a_replayed_minibatch_has_the_gradient_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser, policy = small()
    config = dataclasses.replace(TRAINING, steps=2, replay=1, mu=1, states=10_000)
    method, processes = choose_method(config, policy), ProcessGroup(start_accelerator())
    first, second = (collect(denoiser, method, DATA(step, 2), torch.arange(6)) for step in range(2))
    learner = Learner(policy, config, torch.device("cpu"))
    learner.earlier = [Recorded(first, countable(first))]
    taken: list[tuple[Any, torch.Tensor]] = []

    def noted(_: Any, rollout: Any, rows: torch.Tensor, *rest: Any) -> Any:
        taken.append((rollout, rows))
        return policy_loss(method, rollout, rows, *rest)

    monkeypatch.setattr("unmask.training.policy.learner.policy_loss", noted)
    monkeypatch.setattr(learner.optimizer, "step", lambda: None)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.zeros(()))
    learner.update(method, second, 1, processes)
    assert {id(rollout) for rollout, _ in taken} == {id(first), id(second)}
    got = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    both = Rollout.concatenate([second, first])
    rows = torch.cat([rows + (len(second) if rollout is first else 0) for rollout, rows in taken])
    policy.zero_grad()
    policy_loss(method, both, rows)[0].backward()
    expected = [p.grad for p in policy.parameters() if p.grad is not None]
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(got, expected, strict=True))


def test_the_averaged_weights_are_validated_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = dataclasses.replace(DATA, split="validation", puzzles=8)(0, 8)
    denoiser, policy = small()
    seen: list[dict[str, torch.Tensor]] = []
    weights = lambda: {name: p.detach().clone() for name, p in policy.named_parameters()}  # noqa: E731

    def validate(*_: Any) -> dict[str, float]:
        seen.append(weights())
        return {"accuracy": float(len(seen))}

    monkeypatch.setattr("unmask.training.policy.trainer.validate_free_running", validate)
    config = dataclasses.replace(TRAINING, steps=2, validate_every=2, ema=0.9)
    for _ in train_policy(PolicyJob(denoiser, policy, DATA, config, held_out)):
        last = weights()
    assert all(torch.equal(p, seen[1][name]) for name, p in policy.named_parameters())
    assert any(not torch.equal(last[name], seen[1][name]) for name in last)
    between = [(seen[0][name] - last[name]).norm() >= (seen[1][name] - last[name]).norm() for name in last]
    assert all(between)


@pytest.mark.parametrize(("scores", "kept"), [([0.6, 0.5, 0.4], 0), ([0.6, 0.7, 0.7], 2), ([0.6, 0.6, 0.8], 4)])
def test_best_validation_is_kept_including_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[float], kept: int
) -> None:
    """The validation scores are given; the weights after each step are real."""
    config = dataclasses.replace(TRAINING, steps=4, prompts=2, mu=1, validate_every=2)
    held_out = dataclasses.replace(DATA, split="validation", puzzles=8)(0, 8)
    validation = iter(scores)
    monkeypatch.setattr(
        "unmask.training.policy.trainer.validate_free_running", lambda *_: {"accuracy": next(validation)}
    )
    denoiser, policy = small()
    weights = lambda: [p.detach().clone() for p in policy.parameters()]  # noqa: E731
    after, run = [weights()], Run.create(tmp_path / "run", config)
    for _ in train_policy(PolicyJob(denoiser, policy, DATA, config, held_out, run)):
        after.append(weights())
    assert all(torch.equal(p, q) for p, q in zip(policy.parameters(), after[kept], strict=True))
    assert best_step(run.metrics()) == kept and run.metrics()[0]["start_accuracy"] == scores[0]
    assert not all(torch.equal(p, q) for p, q in zip(after[0], after[4], strict=True))


@pytest.mark.parametrize(
    ("patience", "scores", "steps"),
    [(2, [6, 7, 7, 5, 9], 3), (2, [6, 5, 7, 6, 8], 5), (1, [6, 6, 9], 1), (0, [6] * 6, 5)],
)
def test_a_training_ends_where_validations_are_no_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int, scores: list[int], steps: int
) -> None:
    """``patience`` counts validations since the best one, also over a resume; a training that has ended does not go on."""
    config = dataclasses.replace(TRAINING, steps=5, prompts=2, mu=1, validate_every=1, patience=patience)
    held_out = dataclasses.replace(DATA, split="validation", puzzles=8)(0, 8)
    validation = iter([*scores, 0])
    monkeypatch.setattr(
        "unmask.training.policy.trainer.validate_free_running", lambda *_: {"accuracy": next(validation) / 10}
    )
    run = Run.create(tmp_path / "run", config)
    for stop in (True, False, False):
        denoiser, policy = small()
        list(train_policy(PolicyJob(denoiser, policy, DATA, config, held_out, run, stop=lambda stop=stop: stop)))
    assert [record["step"] for record in run.metrics()] == list(range(1, steps + 1))
    assert (run.folder / "policy" / "model.safetensors").exists()


KINDS = ("general", "mlp", "transformer", "hidden", "grid")
REWARDS = ("self_aware", "terminal", "share", "hybrid")


@pytest.mark.parametrize(
    ("kind", "reward"), [*((kind, "self_aware") for kind in KINDS), *(("mlp", reward) for reward in REWARDS[1:])]
)
def test_every_reward_and_every_kind_of_policy_trains(kind: str, reward: str) -> None:
    """A reward is computed from a rollout's prices, whatever the policy is."""
    denoiser, policy = small(kind)
    config = dataclasses.replace(TRAINING, steps=2, reward=reward, advantage="reward_to_go", correctness=0.0)
    start = {name: p.detach().clone() for name, p in policy.named_parameters()}
    records = list(train_policy(PolicyJob(denoiser, policy, DATA, config)))
    assert len(records) == 2
    dense = reward in ("self_aware", "hybrid")
    assert not dense or records[0]["dead_groups"] < 1  # a terminal reward may leave every group without spread
    if dense or records[0]["dead_groups"] < 1:
        assert any(not torch.equal(p, start[name]) for name, p in policy.named_parameters())


def test_learning_finds_the_position_that_helps() -> None:
    """Two positions and a denoiser that guesses the first only after the second: the policy must learn to begin there."""

    denoiser, policy = TwoPositions(first=1.0, sure=1.5, second=0.4), TwoPositions.policy()
    config = PolicyTraining(steps=40, prompts=8, group=8, advantage="reward_to_go", lr=2e-2, states=64)
    records = list(train_policy(PolicyJob(denoiser, policy, denoiser.problems, config)))
    best = sum(r["return"] for r in records[-5:]) / 5
    start = sum(r["return"] for r in records[:5]) / 5
    assert best > start + 0.2
