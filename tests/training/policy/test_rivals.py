"""Every objective, reward and advantage in one trainer: log-probabilities of decisions, gradients that add up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from support.denoisers import Fixed, view_of
from support.trainings import DATA, TRAINING, small
from unmask.decoding.options import Decoding
from unmask.decoding.paces import bernoulli
from unmask.decoding.protocols import Canvas
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy
from unmask.schedulers.posterior import Posterior
from unmask.training.policy import advantages as grpo
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.method import Method
from unmask.training.policy.methods import choose_method
from unmask.training.policy.objectives import Counts, countable, policy_loss
from unmask.training.policy.rollout import collect
from unmask.training.policy.trainer import PolicyJob, train_policy

RIVALS: dict[str, dict[str, Any]] = {
    "terminal": {"reward": "terminal", "advantage": "trajectory"},
    "upo": {
        "reward": "terminal",
        "advantage": "trajectory",
        "normalise": False,
        "beta": 0.1,
        "reference": "confidence",
    },
    "jazbec": {"objective": "bernoulli", "reward": "speed", "advantage": "trajectory"},
    "adaptive orders": {"future": 0.0, "behaviour": "teacher", "teacher": "random"},
    "where to unmask": {"objective": "ranking"},
    "lo-arm": {"objective": "variational", "advantage": "reward_to_go", "normalise": False},
    "dcolt": {"decoding": Decoding(steps=4), "reward": "terminal", "advantage": "trajectory"},
    "parallel": {"decoding": Decoding(steps=4)},
    "blocks": {"decoding": Decoding(block=4), "advantage": "reward_to_go"},
    "warm start": {"teacher": "expert", "warm_start": 1},
    "relative": {"relative": True, "correctness": 0.5},
}


def config(**changes: Any) -> PolicyTraining:
    return dataclasses.replace(TRAINING, **{"steps": 2, "correctness": 0.0, **changes})


def taught_by(policy: OrderPolicy, training: PolicyTraining, teacher: str) -> Method:
    return choose_method(training, policy, teacher=load_scheduler(teacher))


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_trains(name: str) -> None:
    denoiser, policy = small()
    training = config(**RIVALS[name])
    teacher = load_scheduler(training.teacher) if training.teacher else None
    start = {name: p.detach().clone() for name, p in policy.named_parameters()}
    records = list(train_policy(PolicyJob(denoiser, policy, DATA, training, teacher=teacher)))
    assert [record["step"] for record in records] == [1, 2]
    if records[0]["dead_groups"] < 1:  # a terminal reward may leave every group without spread
        assert any(not torch.equal(p, start[name]) for name, p in policy.named_parameters())


def test_imitation_has_a_loss_without_spread_in_the_group() -> None:
    """All orders of a teacher's group are equal."""
    denoiser, policy = small()
    training = config(advantage="trajectory", teacher="expert", warm_start=2)
    rollout = collect(denoiser, taught_by(policy, training, "expert"), DATA(0, 4), torch.arange(12))
    assert rollout.totals["dead_groups"][0] == 0
    start = {name: p.detach().clone() for name, p in policy.named_parameters()}
    list(train_policy(PolicyJob(denoiser, policy, DATA, training, teacher=load_scheduler("expert"))))
    assert any(not torch.equal(p, start[name]) for name, p in policy.named_parameters())


def test_agreement_counts_candidates_only() -> None:
    """With blocks of four cells most of a board is no candidate."""
    denoiser, policy = small()  # untrained: its order is confidence's
    rollout = collect(denoiser, choose_method(config(decoding=Decoding(block=4)), policy), DATA(0, 4), torch.arange(12))
    assert rollout.summary["agreement"] == 1.0
    taught = config(decoding=Decoding(block=4), teacher="expert", warm_start=1)
    rollout = collect(denoiser, taught_by(policy, taught, "expert"), DATA(0, 4), torch.arange(12))
    assert rollout.summary["agreement"] == 1.0


@pytest.mark.parametrize("name", ["terminal", "jazbec", "dcolt", "parallel", "blocks"])
def test_ratio_is_one_before_the_first_update(name: str) -> None:
    """Before the first update the ratio of new to old probabilities is 1 at every decision."""
    denoiser, policy = small()
    torch.nn.init.normal_(policy.network.readout.weight)
    training = config(**RIVALS[name])
    rollout = collect(denoiser, choose_method(training, policy), DATA(0, 4), torch.arange(12))
    seen = rollout.observed(torch.arange(len(rollout)))
    scores = policy.score(seen)
    if training.objective == "bernoulli":
        now = grpo.bernoulli_logp(scores, rollout.drawn, rollout.eligible)
    else:
        now = policy.logv(scores, seen).gather(1, rollout.chosen[:, None])[:, 0]
    assert torch.allclose(now, rollout.old_logv, atol=1e-5)
    assert bool(rollout.eligible.gather(1, rollout.chosen[:, None]).all())


def test_decisions_of_a_block_multiply_to_plackett_luce() -> None:
    """The decisions of a state multiply to the probability that the loop gave to its block."""
    from unmask.decoding.loop import unmask

    denoiser, policy = small()
    canvas = DATA(0, 4)
    training = config(decoding=Decoding(steps=3), group=1)
    seeds = torch.arange(4)
    trajectory = unmask(
        denoiser,
        policy,
        Canvas(canvas.tokens, target=canvas.target, seeds=seeds),
        Decoding(steps=3, order_temperature=1.0),
        forced=True,
    )
    rollout = collect(denoiser, choose_method(training, policy), canvas, seeds)
    # Forced decisions are left out of the rollout; their log-probability is 0.
    assert rollout.old_logv.sum().item() == pytest.approx(trajectory.order_logp.sum().item(), abs=1e-4)
    assert rollout.totals["return"][0] == pytest.approx(trajectory.total_logp.sum().item(), abs=1e-3)


@pytest.mark.parametrize("name", ["parallel", "upo", "where to unmask", "jazbec"])
def test_gradients_of_parts_add_up_to_the_minibatch(name: str) -> None:
    denoiser, policy = small()
    training = config(**RIVALS[name])
    rollout = collect(denoiser, choose_method(training, policy), DATA(0, 4), torch.arange(12))
    rows = torch.arange(len(rollout))
    counts = Counts.of(countable(rollout))

    def gradient(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        policy.zero_grad()
        for part in parts:
            policy_loss(choose_method(training, policy), rollout, part, counts=counts)[0].backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])

    whole = gradient((rows,))
    assert torch.allclose(whole, gradient(rows.split(7)), atol=1e-6)
    assert whole.abs().max() > 0 or name == "upo"  # all terminal rewards of a group may be equal


def test_micro_batches_are_equal_up_to_rounding() -> None:
    """One minibatch per step, accumulated in one part or in several."""
    first, second = (
        next(iter(train_policy(PolicyJob(*small(), DATA, config(micro=micro, mu=1, states=10**6)))))
        for micro in (None, 5)
    )
    for name in ("loss", "gradient", "kl", "clip_fraction"):
        assert first[name] == pytest.approx(second[name], rel=1e-4, abs=1e-7)


def test_imitation_learns_the_teachers_choices() -> None:
    denoiser, policy = small()
    training = config(steps=30, group=1, prompts=6, lr=3e-2, objective="imitation", teacher="left_to_right")
    policy = type(policy)(dataclasses.replace(policy.config, kind="mlp"))
    list(train_policy(PolicyJob(denoiser, policy, DATA, training, teacher=load_scheduler("left_to_right"))))
    rollout = collect(denoiser, taught_by(policy, training, "left_to_right"), DATA(99, 8), torch.arange(8))
    seen = rollout.observed(torch.arange(len(rollout)))
    followed = policy.logv(policy.score(seen), seen).argmax(1) == rollout.chosen
    assert followed.float().mean() > 0.9


def test_truth_margin_of_the_ranking_target() -> None:
    denoiser, policy = small()
    rollout = collect(denoiser, choose_method(config(objective="ranking"), policy), DATA(0, 4), torch.arange(12))
    # The truth's margin is p(x*) − max of the others: at most p(x*), and positive only where the truth is likeliest.
    truth = rollout.reward.exp()
    inside = rollout.eligible
    assert bool((rollout.truth_margin[inside] <= truth[inside] + 1e-6).all())
    assert bool(((rollout.truth_margin > 0) <= (truth > 1 / 4 - 1e-6))[inside].all())


def test_the_posterior_starts_as_the_policy_and_sees_the_truth() -> None:
    _, policy = small()
    posterior = Posterior()
    scores = torch.randn(3, 16)
    truth, sure = -torch.rand(3, 16), -torch.rand(3, 16)
    assert torch.equal(posterior.score(scores, truth, sure), scores)
    torch.nn.init.normal_(posterior.readout.weight)
    assert not torch.equal(posterior.score(scores, truth, sure), posterior.score(scores, truth.flip(1), sure))
    assert posterior.scheduler(policy).needs_truth


def test_bernoulli_pace_reveals_with_the_probability_of_its_keys() -> None:
    tokens = torch.full((4000, 3), 4)
    view = view_of(Fixed(torch.zeros(3, 5), mask_id=4), tokens)
    keys = torch.tensor([-40.0, 0.0, 1.5]).expand(4000, 3)
    revealed = bernoulli(view, keys, torch.ones(4000, dtype=torch.long))
    assert revealed.any(1).all()
    # If all coins fail, the best one is revealed.
    sure = torch.sigmoid(torch.tensor(1.5)).item()
    expected = [0.0, 0.5, sure + (1 - sure) * 0.5]
    assert torch.allclose(revealed.float().mean(0), torch.tensor(expected), atol=0.04)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objective": "bernoulli"}, "bernoulli"),
        ({"objective": "grpo", "reward": "speed", "advantage": "trajectory"}, "speed"),
        ({"objective": "ranking", "reward": "terminal"}, "self_aware"),
        ({"teacher": "expert"}, "teacher"),
        ({"warm_start": 3}, "teacher"),
        ({"behaviour": "teacher", "teacher": "random"}, "future"),
        ({"objective": "variational", "group": 1}, "group"),
        ({"objective": "reinforce"}, "objective must be one of"),
        ({"decoding": Decoding(pace="factor")}, "rollouts use block, steps"),
        ({"relative": True, "reward": "terminal", "advantage": "trajectory"}, "relative rewards are dense"),
        (
            {"objective": "bernoulli", "advantage": "trajectory", "reward": "hybrid", "group": 2},
            "terminal, share, speed",
        ),
        ({"mixed_precision": "int4"}, "mixed_precision"),
    ],
)
def test_excluded_combinations_of_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**change)
