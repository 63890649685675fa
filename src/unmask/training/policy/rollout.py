"""Rollouts of a training step (Alg. grpo_order_short): draw orders, price them, reward them, compare them within their group.

``B = P·G`` rows, the ``G`` of a prompt next to each other; ``Z`` states; ``S`` decisions. Everything comes from the forwards of the
rollouts themselves. What differs between methods is in :class:`~unmask.training.policy.methods.Method`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas, DeclaredScheduler, Denoiser, States, Trajectory, needs_truth
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy import rewards
from unmask.training.policy.advantages import advantages, entropy
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.decisions import Draws, Rollout
from unmask.training.policy.methods import Method, choose_method


@torch.no_grad()
def collect(
    denoiser: Denoiser,
    policy: OrderPolicy,
    canvas: Canvas,
    config: PolicyTraining,
    seeds: Int[Tensor, "B"],
    method: Method | None = None,
) -> Rollout:
    """Draw a group of orders for each canvas and credit every decision; without a method, that of the first step."""
    method = method or choose_method(config, policy)
    prompts = max(1, (config.at_once or len(seeds)) // config.group)
    rows = torch.arange(len(canvas.tokens)).split(prompts)
    parts = zip(rows, seeds.split(prompts * config.group), strict=True)
    collected = [_collect(denoiser, policy, canvas.rows(part), config, own, method) for part, own in parts]
    return collected[0] if len(collected) == 1 else Rollout.concatenate(collected)


def _collect(
    denoiser: Denoiser,
    policy: OrderPolicy,
    canvas: Canvas,
    config: PolicyTraining,
    seeds: Int[Tensor, "B"],
    method: Method,
) -> Rollout:
    """:func:`collect` of canvases that are decoded together."""
    sampler, many = method.sampler, canvas.repeated(config.group)

    # Sample G orders σ ∼ v_old for each canvas, every hidden position priced on the way.
    trajectory = _draw_orders(denoiser, many.seeded(seeds), config, method)
    states = trajectory.states
    assert states is not None
    decisions = sampler.decisions(trajectory, states)

    # r(s, i) of every candidate, then r of every decision.
    candidate_reward = _candidate_rewards(denoiser, canvas, config, states, method)
    draws = Draws(many, trajectory, states, decisions, candidate_reward)
    scores = sampler.policy_scores(states)
    reward = sampler.adjust(method.reward(draws), scores, states, decisions)

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
        seen=states.observed,
        state=decisions.state[decided],
        eligible=decisions.eligible[decided],
        chosen=decisions.chosen[decided],
        old_logv=sampler.ratio_logp(scores, states, decisions)[decided],
        advantage=advantage[decisions.row, decisions.k][decided],
        live=live[decisions.row][decided],
        reward=candidate_reward[decisions.state][decided],
        truth_margin=_truth_margin(draws)[decisions.state][decided],
        drawn=sampler.drawn(states)[decisions.state][decided],
        totals=_statistics(policy, draws, scores, decided, live),
    )


def _draw_orders(denoiser: Denoiser, canvas: Canvas, config: PolicyTraining, method: Method) -> Trajectory:
    sampler = method.sampler
    # The policy learns from the prices of all hidden positions, also those that the scheduler does not read.
    scheduler = DeclaredScheduler(sampler.scheduler, needs_truth(sampler.scheduler), prices_all=True)
    decoding = replace(sampler.decoding(config.decoding), share=config.group > 1)
    forced = sampler.forced or not config.free
    return unmask(denoiser, scheduler, canvas, decoding, forced=forced, observe=sampler.observe)


def _candidate_rewards(
    denoiser: Denoiser, canvas: Canvas, config: PolicyTraining, states: States, method: Method
) -> Float[Tensor, "Z L"]:
    """The dense reward of every position of every state."""
    assert states.target_logp is not None
    reward = states.target_logp.clamp(min=config.reward_floor)
    if not method.relative:
        return reward
    baseline = rewards.leave_one_out_logp(denoiser, canvas, config.at_once or rewards.AT_ONCE)
    baseline = baseline.clamp(min=config.reward_floor).repeat_interleave(config.group, dim=0)
    return reward - baseline[states.row]


def _expected_reward(draws: Draws) -> Float[Tensor, "S"]:
    """Φ of every decision: the prices of all that is still hidden, as if it were revealed at once."""
    states, table = draws.states, draws.decisions
    drawn = states.eligible[table.state] & ~table.eligible
    waiting = states.observed["hidden"][table.state] & ~drawn
    return draws.candidate_reward[table.state].masked_fill(~waiting, 0.0).sum(1)


def _truth_margin(draws: Draws) -> Float[Tensor, "Z L"]:
    """p(truth) minus the largest other probability."""
    states, truth = draws.states, draws.canvas.truth
    assert states.target_logp is not None
    is_best = states.best == truth[states.row]
    margin = torch.where(is_best, states.margin, states.target_logp.exp() - states.confidence.exp())
    return margin.masked_fill(~states.eligible, 0.0)


def _statistics(
    policy: OrderPolicy, draws: Draws, scores: Float[Tensor, "Z L"], decided: Bool[Tensor, "S"], live: Bool[Tensor, "B"]
) -> dict[str, tuple[float, float]]:
    """Sums and denominators for the log."""
    states, table = draws.states, draws.decisions
    rows, decisions = len(draws.canvas.tokens), int(decided.sum())
    right = states.best[table.state, table.chosen] == draws.canvas.truth[table.row, table.chosen]
    logv = policy.logv(scores[table.state], {"eligible": table.eligible})
    best = lambda values: values.masked_fill(~states.eligible, -torch.inf).argmax(1)[table.state]  # noqa: E731
    agrees = best(scores) == best(states.confidence)
    totals = {
        "return": (rewards.self_aware(states).sum(), rows),
        "wrong_reveals": ((~right).sum(), rows),
        "entropy": (entropy(logv)[decided].sum(), decisions),
        "agreement": (agrees[decided].sum(), decisions),
        "dead_groups": ((~live).sum(), rows),
        "forwards_per_step": (draws.trajectory.denoiser_calls, len(states)),
        "trajectory_steps": (len(states), 0),
    }
    return {name: (float(above), float(below)) for name, (above, below) in totals.items()}
