"""Rewards against hand computations: terminal, dense, hybrid, and the price of a position given all others."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch

from support.trainings import DATA, TRAINING, TwoPositions, small
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas, Scheduler, Trajectory
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.heuristics import left_to_right, right_to_left
from unmask.training.policy import rewards as reward
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.decisions import Decisions, Draws
from unmask.training.policy.methods import choose_method
from unmask.training.policy.rollout import collect


def config(**changes: Any) -> PolicyTraining:
    return dataclasses.replace(TRAINING, **{"steps": 2, "correctness": 0.0, **changes})


def test_speed_reward_is_larger_for_fewer_steps() -> None:
    fields: dict[str, Any] = {name: torch.zeros(3, 4) for name in ("logp", "order_logp", "score")}
    trajectory = Trajectory(
        tokens=torch.tensor([[1, 2, 3, 4]] * 3),
        order=torch.arange(4).expand(3, 4),
        step=torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 2, 3]]),
        states=None,
        denoiser_calls=0,
        steps=4,
        seconds=0.0,
        denoiser_seconds=0.0,
        **fields,
    )
    target = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 3]])
    assert reward.terminal(trajectory, target).tolist() == [1, 1, 0]
    assert reward.terminal(trajectory, target, share=True).tolist() == [1, 1, 0.75]
    one = dataclasses.replace(
        trajectory, order=torch.tensor([[2, -1, -1, -1]] * 3), step=torch.tensor([[0, -1, -1, -1]] * 3)
    )
    assert reward.terminal(one, target, exponent=2.0).tolist() == [1, 1, 1]
    assert reward.terminal(trajectory, target, exponent=2.0).tolist() == pytest.approx([1, (3 / 4) ** 2, 0])


def test_terminal_and_hybrid_rewards_use_the_judge() -> None:
    """The judge gets the whole group: the decoded tokens, or the best token at each decision along the truth."""
    denoiser, policy = small()
    canvas = DATA(0, 4)
    judged_tokens: list[torch.Tensor] = []

    def judge(target: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        assert torch.equal(target, canvas.repeated(3).truth)
        judged_tokens.append(tokens)
        return torch.arange(len(tokens)) % 3 == 0

    for kind in ("terminal", "hybrid"):
        training = config(reward=kind, advantage="reward_to_go", normalise=False, hybrid=100.0)
        method = choose_method(training, policy, judge=judge)
        judged = collect(denoiser, method, canvas, torch.arange(12))
        # One of three is right: it is 2/3 above its group's mean, the others 1/3 below.
        scale = 1.0 if kind == "terminal" else 100.0
        assert {0.7, -0.3} <= {round(float(value) / scale, 1) for value in judged.advantage}
    free, forced = judged_tokens
    hidden = canvas.repeated(3).tokens == 0
    assert not (free == 0).any() and torch.equal(free[~hidden], canvas.repeated(3).tokens[~hidden])
    assert torch.equal(forced[~hidden], canvas.repeated(3).truth[~hidden])


@pytest.mark.parametrize(("scheduler", "bonus"), [(left_to_right, 0.0), (right_to_left, 7.0)])
def test_hybrid_rewards_without_a_judge(scheduler: Scheduler, bonus: float) -> None:
    """From left to right the best guess at the first position is wrong. The bonus comes with the last decision."""
    denoiser: Any = TwoPositions(1.0, 3.0, 5.0)
    canvas = TwoPositions.problems(0, 2)
    trajectory = unmask(denoiser, scheduler, canvas, forced=True)
    states = trajectory.states
    assert states is not None and states.target_logp is not None
    decisions = Decisions.per_reveal(trajectory, states)
    draws = Draws(canvas, trajectory, states, decisions, states.target_logp)
    dense = reward.decision_rewards(draws, config(reward="self_aware"))
    assert decisions.timeline(dense, 2).tolist() == [pytest.approx(row) for row in trajectory.logp.tolist()]
    hybrid = reward.decision_rewards(draws, config(reward="hybrid", hybrid=7.0))
    assert decisions.timeline(hybrid - dense, 2).tolist() == [pytest.approx([0, bonus])] * 2
    assert reward.self_aware(states).tolist() == pytest.approx(dense[decisions.state.argsort()].tolist())


def test_leave_one_out_logp_of_padded_rows() -> None:
    denoiser: Any = load_denoiser("arithmetic")
    alone = torch.tensor([[5, 6, denoiser.mask_id, 8, denoiser.mask_id, 9]])
    target = torch.tensor([[5, 6, 7, 8, 4, 9]])
    pads = torch.full((1, 3), 10)
    padded = Canvas(
        torch.cat([alone, pads], 1), torch.cat([target, pads], 1), attention=torch.arange(9)[None] < alone.shape[1]
    )
    expected = reward.leave_one_out_logp(denoiser, Canvas(alone, target))
    found = reward.leave_one_out_logp(denoiser, padded)
    assert torch.allclose(found[:, :6], expected, atol=1e-4) and not found[:, 6:].any() and bool((expected < 0).any())


def test_leave_one_out_logp_against_single_forwards() -> None:
    """Positions that are no candidates stay hidden and have price 0."""
    denoiser: Any = load_denoiser("sudoku-4x4-imperfect")
    canvas = DATA(0, 3)
    candidates = torch.ones_like(canvas.tokens, dtype=torch.bool)
    candidates[0, int((canvas.tokens[0] == 0).nonzero()[0, 0])] = False
    canvas = dataclasses.replace(canvas, candidates=candidates)
    found = reward.leave_one_out_logp(denoiser, canvas, at_once=5)
    hidden = (canvas.tokens == 0) & candidates
    assert not found[~hidden].any()
    for row, place in torch.nonzero(hidden).tolist():
        tokens = torch.where(candidates[row], canvas.truth[row], canvas.tokens[row])
        tokens[place] = 0
        logits = denoiser.logits(denoiser.hidden(tokens[None]))[0, place].float()
        logits[0] = -torch.inf
        expected = logits.log_softmax(0)[canvas.truth[row, place]]
        assert found[row, place].item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize("relative", [False, True])
def test_the_time_in_the_denoiser_has_all_of_its_forwards(relative: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser, policy = small()
    forward, spent = denoiser.hidden, [0.0]

    def hidden(*given: Any, **named: Any) -> torch.Tensor:
        began = time.perf_counter()
        found = forward(*given, **named)
        time.sleep(0.01)
        spent[0] += time.perf_counter() - began
        return found

    monkeypatch.setattr(denoiser, "hidden", hidden)
    method = choose_method(config(relative=relative), policy)
    began = time.perf_counter()
    rollout = collect(denoiser, method, DATA(0, 2), torch.arange(2 * method.config.group))
    assert spent[0] <= rollout.totals["denoiser_seconds"][0] < time.perf_counter() - began


def test_relative_rewards_change_the_return_by_a_constant() -> None:
    denoiser: Any = load_denoiser("sudoku-4x4-imperfect")
    _, policy = small()
    canvas, plain = DATA(0, 4), config(advantage="trajectory", normalise=False)
    seeds = torch.arange(12)
    one = collect(denoiser, choose_method(plain, policy), canvas, seeds)
    other = collect(denoiser, choose_method(dataclasses.replace(plain, relative=True), policy), canvas, seeds)
    assert torch.allclose(one.advantage, other.advantage, atol=1e-4) and bool(one.advantage.abs().max() > 0.01)
    assert not torch.allclose(one.reward, other.reward, atol=1e-2)
