"""The objective of the default recipe: scores learn the price of the truth in the states that greedy orders visit."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from support.trainings import DATA, TRAINING, TwoPositions, small
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.runs.run import Run
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.methods import choose_method
from unmask.training.policy.objectives import policy_loss
from unmask.training.policy.rewards import share_of_noise
from unmask.training.policy.rollout import collect
from unmask.training.policy.trainer import PolicyJob, train_policy

REGRESSION = dataclasses.replace(
    TRAINING, steps=2, group=1, correctness=0.0, objective="regression", rollout_temperature=0.0
)


@pytest.mark.parametrize("label", ["price", "right"])
def test_the_loss_is_the_cross_entropy_of_every_hidden_position(label: str) -> None:
    denoiser, policy = small()
    torch.nn.init.normal_(policy.network.readout.weight, generator=torch.Generator().manual_seed(3))
    method = choose_method(dataclasses.replace(REGRESSION, label=label), policy)
    canvas = DATA(0, 4)
    rollout = collect(denoiser, method, canvas, torch.arange(4))
    rows = torch.arange(len(rollout))
    seen = rollout.observed(rows)
    target = rollout.reward[rows].exp()
    if label == "right":  # a state's row is the one whose revealed tokens agree with the canvas's solution
        logp = denoiser.logits(denoiser.hidden(seen["tokens"])).index_fill(-1, torch.tensor([0]), -torch.inf).argmax(-1)
        agrees = ((seen["tokens"][:, None] == canvas.truth) | (seen["tokens"][:, None] == 0)).all(-1)
        assert bool((agrees.sum(1) == 1).all())
        target = (logp == canvas.truth[agrees.int().argmax(1)]).float()
    total, count = 0.0, 0
    for score, price, hidden in zip(policy.score(seen), target, seen["hidden"], strict=True):
        for u, p in zip(score[hidden].tolist(), price[hidden].tolist(), strict=True):
            total -= p * math.log(1 / (1 + math.exp(-u))) + (1 - p) * math.log(1 / (1 + math.exp(u)))
            count += 1
    loss, stats = policy_loss(method, rollout, rows)
    assert count > 100
    assert loss.item() == pytest.approx(total / count, rel=1e-4)
    assert stats["clip_fraction"] == 0.0


@pytest.mark.parametrize("kind", ["grid", "general"])
def test_with_the_label_tokens_every_token_is_fitted_and_the_likeliest_has_the_score(kind: str) -> None:
    denoiser, policy = small(kind, token_width=4)
    torch.nn.init.normal_(policy.network.readout.weight, generator=torch.Generator().manual_seed(3))
    method = choose_method(dataclasses.replace(REGRESSION, label="tokens"), policy)
    canvas = DATA(0, 4)
    rollout = collect(denoiser, method, canvas, torch.arange(4))
    rows = torch.arange(len(rollout))
    seen = rollout.observed(rows)
    hidden = seen["hidden"]
    scores, logits = policy.score_tokens(seen)
    torch.testing.assert_close(scores[hidden], policy.score(seen)[hidden])
    assert logits.shape == (int(hidden.sum()), 4)
    total = 0.0
    for u, truth in zip(logits.tolist(), seen["truth"][hidden].tolist(), strict=True):
        total += sum(math.log1p(math.exp(-u[k] if k + 1 == truth else u[k])) for k in range(4))
    loss, _ = policy_loss(method, rollout, rows)
    assert loss.item() == pytest.approx(total / len(logits), rel=1e-4)


def test_the_label_tokens_needs_a_vector_for_every_token() -> None:
    denoiser, policy = small("mlp")
    method = choose_method(dataclasses.replace(REGRESSION, label="tokens"), policy)
    rollout = collect(denoiser, method, DATA(0, 2), torch.arange(2))
    with pytest.raises(ValueError, match="expected kind grid, or kind general"):
        policy_loss(method, rollout, torch.arange(4))


def test_rollouts_of_temperature_zero_follow_the_greedy_order() -> None:
    denoiser, policy = small()
    torch.nn.init.normal_(policy.network.readout.weight, generator=torch.Generator().manual_seed(3))
    canvas = DATA(0, 4)
    greedy = unmask(denoiser, policy, canvas, Decoding(), forced=True)
    first = [order[order >= 0].tolist() for order in greedy.order]
    for temperature, equal in ((0.0, True), (5.0, False)):
        config = dataclasses.replace(REGRESSION, rollout_temperature=temperature)
        rollout = collect(denoiser, choose_method(config, policy), canvas, torch.arange(4))
        rest = [order[:-1] for order in first]  # the last position is no decision
        assert (rollout.chosen.tolist() == [one for order in rest for one in order]) == equal


def test_groups_without_spread_are_learned_from() -> None:
    """Two greedy orders of one prompt are equal: there is nothing to compare, and still something to learn."""
    denoiser, policy = small()
    start = {name: p.detach().clone() for name, p in policy.named_parameters()}
    records = list(train_policy(PolicyJob(denoiser, policy, DATA, dataclasses.replace(REGRESSION, group=2))))
    assert records[0]["dead_groups"] == 0
    assert any(not torch.equal(p, start[name]) for name, p in policy.named_parameters())


def test_a_sure_and_wrong_position_is_learned_to_wait() -> None:
    """Position 0 is sure of a wrong token until position 1 is known; confidence begins there, the learned order does not."""

    denoiser, policy = TwoPositions(first=0.0, sure=4.0, second=2.0), TwoPositions.policy()
    decode = lambda: unmask(denoiser, policy, denoiser.problems(0, 1), Decoding()).tokens.tolist()  # noqa: E731
    assert decode() == [[2, 2]]
    config = PolicyTraining(steps=40, prompts=8, objective="regression", rollout_temperature=0.0, lr=2e-2, states=64)
    list(train_policy(PolicyJob(denoiser, policy, denoiser.problems, config)))
    assert decode() == [[1, 2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"correctness": 0.5}, "leave correctness at 0"),
        ({"label": "right", "relative": True}, "without relative prices"),
        ({"label": "tokens", "relative": True}, "without relative prices"),
        ({"label": "tokens", "objective": "grpo", "rollout_temperature": None}, "use objective regression"),
        ({"reward": "terminal", "advantage": "trajectory"}, "self_aware"),
        ({"objective": "grpo"}, "rollout_temperature goes with"),
        ({"rollout_temperature": -1.0}, "rollout_temperature must be"),
        ({"replay": -1}, "replay must be"),
        ({"replay": 1, "warm_start": 2, "teacher": "confidence"}, "one method for all steps"),
        ({"relative_above": 2.0}, "relative_above must be a share"),
        ({"rollout_temperature": math.nan}, "NaN"),
    ],
)
def test_what_does_not_go_with_it_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(REGRESSION, **change)


@pytest.mark.parametrize(("second", "noise"), [(2.0, 0.0), (-2.0, 0.5)])
def test_prices_are_relative_where_tokens_are_noise(second: float, noise: float, tmp_path: Path) -> None:
    """With ``second`` below 0 the token of position 1 is unlikely whatever is known; a resumed run chooses the same."""
    config = PolicyTraining(steps=3, prompts=4, objective="regression", rollout_temperature=0.0, save_every=1)
    weights = []
    for name, change in (("chosen", {"relative_above": 0.2}), ("given", {"relative": noise > 0})):
        denoiser, policy = TwoPositions(first=0.0, sure=4.0, second=second), TwoPositions.policy()
        run = Run.create(tmp_path / name, config)
        job = PolicyJob(denoiser, policy, denoiser.problems, dataclasses.replace(config, **change), run=run)
        records = list(train_policy(dataclasses.replace(job, stop=lambda: True)))
        records += list(train_policy(job))
        assert ("noise" in records[0]) == (name == "chosen")
        if name == "chosen":
            assert (records[0]["noise"], records[0]["relative"]) == (noise, float(noise > 0))
        weights.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    assert torch.equal(*weights)


def test_noise_is_the_share_of_tokens_that_nothing_makes_likely() -> None:
    """Every second of the four tokens is looked at; the first of each row is likely when the other is known."""
    denoiser = TwoPositions(first=0.0, sure=4.0, second=-2.0)
    assert share_of_noise(denoiser, denoiser.problems(0, 2)) == 0.5
    assert share_of_noise(denoiser, denoiser.problems(0, 2), at_once=1, sample=2) == 0.0
    assert share_of_noise(denoiser, denoiser.problems(0, 0)) == 0.0
