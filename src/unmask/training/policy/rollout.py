"""Rollouts of a training step (Alg. grpo_order_short): draw orders, price them, reward them, compare them within their group.

``B = P·G`` rows, the ``G`` of a prompt next to each other; ``Z`` states; ``S`` decisions. Everything comes from the forwards of the
rollouts themselves. What differs between methods is in :class:`~unmask.training.policy.methods.Method`.
"""

from __future__ import annotations

import time

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas, DeclaredScheduler, Denoiser, States, Trajectory, needs_truth
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy import rewards
from unmask.training.policy.advantages import advantages, entropy
from unmask.training.policy.decisions import Draws, Rollout
from unmask.training.policy.method import Method
from unmask.training.policy.validation import share_before_end


@torch.no_grad()
def collect(denoiser: Denoiser, method: Method, canvas: Canvas, seeds: Int[Tensor, "B"]) -> Rollout:
    """Draw a group of orders for each canvas and credit every decision."""
    config = method.config
    prompts = max(1, (config.at_once or len(seeds)) // config.group)
    rows = torch.arange(len(canvas.tokens)).split(prompts)
    parts = zip(rows, seeds.split(prompts * config.group), strict=True)
    collected = [_collect(denoiser, method, canvas.rows(part), own) for part, own in parts]
    return collected[0] if len(collected) == 1 else Rollout.concatenate(collected)


def _collect(denoiser: Denoiser, method: Method, canvas: Canvas, seeds: Int[Tensor, "B"]) -> Rollout:
    """:func:`collect` of canvases that are decoded together."""
    config, many = method.config, canvas.repeated(method.config.group)

    # Sample G orders σ ∼ v_old for each canvas.
    trajectory = _draw_orders(denoiser, method, many.seeded(seeds))
    states = trajectory.states
    assert states is not None
    decisions = method.decisions(trajectory, states)

    # r(s, i) of every candidate, then r of every decision.
    began = time.perf_counter()
    candidate_reward = _candidate_rewards(denoiser, method, canvas, states)
    in_denoiser = trajectory.denoiser_seconds + (time.perf_counter() - began if method.relative else 0.0)
    draws = Draws(many, trajectory, states, decisions, candidate_reward)
    scores = method.policy_scores(states)
    reward = method.adjust(rewards.decision_rewards(draws, config, method.judge), scores, states, decisions)

    # Group-relative advantages Â.
    rows = len(many.tokens)
    advantage, live = advantages(
        decisions.timeline(reward, rows),
        config.group,
        config.advantage,
        config.std_floor,
        config.normalise,
        decisions.timeline(_expected_reward(draws), rows),
        config.decay,
    )
    live = live if method.compares_rollouts else torch.ones_like(live)

    # A state with one candidate has no decision.
    decided = decisions.eligible.sum(1) > 1
    return Rollout(
        seen=method.seen(trajectory, states),
        state=decisions.state[decided],
        eligible=decisions.eligible[decided],
        chosen=decisions.chosen[decided],
        old_logv=method.old_logp(scores, states, decisions)[decided],
        advantage=advantage[decisions.row, decisions.k][decided],
        live=live[decisions.row][decided],
        reward=candidate_reward[decisions.state][decided],
        truth_margin=_truth_margin(draws)[decisions.state][decided],
        drawn=method.drawn(states)[decisions.state][decided],
        regret=_regret(method.policy, scores, draws)[decided],
        totals=_statistics(method.policy, draws, scores, decided, live)
        | {"denoiser_seconds": (in_denoiser, 0.0)}
        | _ends(denoiser, trajectory),
    )


def _draw_orders(denoiser: Denoiser, method: Method, canvas: Canvas) -> Trajectory:
    # The policy learns from the prices of all hidden positions, also those that the scheduler does not read.
    scheduler = DeclaredScheduler(method.scheduler, needs_truth(method.scheduler), prices_all=True)
    return unmask(denoiser, scheduler, canvas, method.decoding, forced=method.forced, observe=method.observe)


def _candidate_rewards(denoiser: Denoiser, method: Method, canvas: Canvas, states: States) -> Float[Tensor, "Z L"]:
    """The dense reward of every position of every state."""
    config = method.config
    assert states.target_logp is not None
    reward = states.target_logp.clamp(min=config.reward_floor)
    if method.relative:
        baseline = rewards.leave_one_out_logp(denoiser, canvas, config.at_once or rewards.AT_ONCE)
        baseline = baseline.clamp(min=config.reward_floor).repeat_interleave(config.group, dim=0)
        reward = reward - baseline[states.row]
    if canvas.weight is not None:
        reward = reward * canvas.weight.repeat_interleave(config.group, dim=0)[states.row]
    return reward


def _expected_reward(draws: Draws) -> Float[Tensor, "S"]:
    """Φ of every decision: the prices of all that is still hidden, as if it were revealed at once."""
    states, table = draws.states, draws.decisions
    drawn = states.eligible[table.state] & ~table.eligible
    waiting = states.observed["hidden"][table.state] & ~drawn
    if draws.canvas.waiting is not None:
        waiting = waiting & ~draws.canvas.waiting[table.row]
    return draws.candidate_reward[table.state].masked_fill(~waiting, 0.0).sum(1)


def _regret(policy: OrderPolicy, scores: Float[Tensor, "Z L"], draws: Draws) -> Float[Tensor, "S"]:
    """What a draw from the candidates of each decision loses on average."""
    table = draws.decisions
    v = policy.logv(scores[table.state], {"eligible": table.eligible}).exp()
    return (v * (1 - draws.candidate_reward[table.state].exp().clamp(max=1.0))).sum(1)


def _truth_margin(draws: Draws) -> Float[Tensor, "Z L"]:
    """p(truth) minus the largest other probability."""
    states, truth = draws.states, draws.canvas.truth
    assert states.target_logp is not None
    is_best = states.best == truth[states.row]
    margin = torch.where(is_best, states.margin, states.target_logp.exp() - states.confidence.exp())
    return margin.masked_fill(~states.observed["hidden"], 0.0)


def _ends(denoiser: Denoiser, trajectory: Trajectory) -> dict[str, tuple[float, float]]:
    """When the first end token is revealed in the rollouts, for the log."""
    if not denoiser.end_ids:
        return {}
    return {"rollout_before_end": (float(share_before_end(trajectory, denoiser).sum()), float(len(trajectory.tokens)))}


def _statistics(
    policy: OrderPolicy, draws: Draws, scores: Float[Tensor, "Z L"], decided: Bool[Tensor, "S"], live: Bool[Tensor, "B"]
) -> dict[str, tuple[float, float]]:
    """Sums and denominators for the log."""
    states, table = draws.states, draws.decisions
    rows, decisions = len(draws.canvas.tokens), int(decided.sum())
    right = lambda position: states.best[table.state, position] == draws.canvas.truth[table.row, position]  # noqa: E731
    logv = policy.logv(scores[table.state], {"eligible": table.eligible})
    best = lambda values: values.masked_fill(~states.eligible, -torch.inf).argmax(1)[table.state]  # noqa: E731
    greedy = best(scores)
    totals = {
        "return": (rewards.self_aware(states).sum(), rows),
        "wrong_reveals": ((~right(table.chosen)).sum(), rows),
        "greedy_wrong": ((~right(greedy))[decided].sum(), decisions),
        "entropy": (entropy(logv)[decided].sum(), decisions),
        "agreement": ((greedy == best(states.confidence))[decided].sum(), decisions),
        "dead_groups": ((~live).sum(), rows),
        "forwards_per_step": (draws.trajectory.denoiser_calls, len(states)),
        "trajectory_steps": (len(states), 0),
    }
    return {name: (float(above), float(below)) for name, (above, below) in totals.items()}
