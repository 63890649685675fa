"""The objective of a second opinion: the copy learns the true tokens of hidden positions, the denoiser stays as it is."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from support.trainings import DATA, TRAINING, small
from unmask.decoding.options import Decoding
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.opinion import Opinion
from unmask.schedulers.policy import OrderPolicy, build_policy
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.methods import choose_method
from unmask.training.policy.objectives import policy_loss
from unmask.training.policy.rollout import collect
from unmask.training.policy.run import PolicyRun
from unmask.training.policy.trainer import PolicyJob, train_policy

TOKENS = dataclasses.replace(
    TRAINING,
    steps=6,
    group=1,
    lr=2e-3,
    correctness=0.0,
    objective="tokens",
    behaviour="teacher",
    teacher="confidence",
    decoding=Decoding(steps=3),
)


def opinion() -> tuple[torch.nn.Module, OrderPolicy]:
    denoiser, _ = small()
    return denoiser, build_policy(PolicyConfig(kind="opinion"), denoiser, "denoiser")


def test_the_loss_is_the_cross_entropy_of_the_truth_with_three_states_of_each_problem() -> None:
    denoiser, policy = opinion()
    canvas = DATA(0, 4)
    method = choose_method(TOKENS, policy, teacher=confidence)
    rollout = collect(denoiser, method, canvas, torch.arange(4))  # pyright: ignore[reportArgumentType]
    assert len(rollout) == 3 * 4
    rows = torch.arange(len(rollout))
    seen = rollout.observed(rows)
    assert isinstance(policy.network, Opinion)
    per_state = []
    for tokens, hidden, truth in zip(seen["tokens"], seen["hidden"], seen["truth"], strict=True):
        logits = denoiser.logits(denoiser.hidden(tokens[None])[0, hidden])  # pyright: ignore  # before training they are the same
        logits = logits.masked_fill(policy.network.forbidden[: logits.shape[1]], -torch.inf)
        per_state.append(F.cross_entropy(logits, truth[hidden]).item())
    loss, _ = policy_loss(method, rollout, rows)
    assert loss.item() == pytest.approx(sum(per_state) / len(per_state), rel=1e-4)


def test_the_copy_learns_and_the_denoiser_does_not() -> None:
    denoiser, policy = opinion()
    before = {name: tensor.clone() for name, tensor in denoiser.state_dict().items()}
    config = dataclasses.replace(TOKENS, steps=25)
    job = PolicyJob(denoiser, policy, lambda step, count: DATA(0, count), config, teacher=confidence)  # pyright: ignore[reportArgumentType]
    records = list(train_policy(job))
    assert records[-1]["loss"] < 0.8 * records[0]["loss"]
    assert all(torch.equal(tensor, before[name]) for name, tensor in denoiser.state_dict().items())


def test_objective_and_kind_go_together() -> None:
    with pytest.raises(
        ValueError, match=r"how a policy of kind opinion learns, .* got kind 'opinion' and objective 'grpo'"
    ):
        PolicyRun(policy=PolicyConfig(kind="opinion"))
    with pytest.raises(
        ValueError, match=r"how a policy of kind opinion learns, .* got kind 'grid' and objective 'tokens'"
    ):
        PolicyRun(training=TOKENS)
    assert PolicyRun(policy=PolicyConfig(kind="opinion"), training=TOKENS).training.purpose == "order"
    with pytest.raises(ValueError, match="objective tokens learns from the truth"):
        PolicyTraining(objective="tokens", reward="terminal", advantage="reward_to_go", group=2)
