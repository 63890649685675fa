"""Group Relative Policy Optimisation of an order: advantages and objectives, tensors in, numbers out.

``B = P·G`` rollouts, the ``G`` of a prompt next to each other; ``S`` states; ``T`` steps.

Where we depart from Alg. grpo_order_short:
1. The mean is over live, unforced steps: a state with one candidate has no decision and carries no loss.
2. The group's standard deviation has a floor, and groups without spread are skipped and counted: dividing by noise amplifies it.
3. Besides the paper's advantage of whole trajectories there are two with less variance. ``reward_to_go`` credits a choice only with
   what came after it. ``all_action`` knows r(s, i) of *every* candidate, because the forward that the policy reads prices them all:
   the gradient of the immediate reward, Σ_i ∇v(i|s) r(s, i), is exact, and only the future is sampled.
4. KL to a reference policy is exact over the candidates, not an estimate from the one drawn.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from unmask.recipe import ADVANTAGES
from unmask.reward import to_go


def advantages(
    rewards: Float[Tensor, "B T"], group: int, kind: str, floor: float = 0.1, normalise: bool = True
) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B"]]:
    """Â of every step, and which rollouts belong to a living group.

    trajectory: (R − μ_G)/max(σ_G, floor), the same at every step. reward_to_go: the return from t on against the group's mean
    from t on, over the same σ_G. all_action: the return from t + 1 on against the group's mean, in nats like the reward at t
    itself, which is in :func:`expected_reward`. Without ``normalise`` nothing is divided by σ_G.
    """
    if kind not in ADVANTAGES:
        raise ValueError(f"advantage must be one of {', '.join(ADVANTAGES)}, got {kind!r}")
    ahead = to_go(rewards)
    grouped = ahead.unflatten(0, (-1, group))
    returns = grouped[..., 0]
    spread = returns.std(1, correction=0)
    live = (spread > 1e-6).repeat_interleave(group)
    scale = spread.clamp(min=floor) if normalise and kind != "all_action" else torch.ones_like(spread)
    if kind == "trajectory":
        centred = (returns - returns.mean(1, keepdim=True))[..., None].expand_as(grouped)
    elif kind == "reward_to_go":
        centred = grouped - grouped.mean(1, keepdim=True)
    else:
        future = torch.cat([grouped[..., 1:], torch.zeros_like(grouped[..., :1])], dim=-1)
        centred = future - future.mean(1, keepdim=True)
    return (centred / scale[:, None, None]).flatten(0, 1), live


def clipped_objective(
    logv: Float[Tensor, "S"], old_logv: Float[Tensor, "S"], advantage: Float[Tensor, "S"], epsilon: float
) -> tuple[Float[Tensor, "S"], Float[Tensor, "S"]]:
    """min(g Â, clip(g, 1 ± ε) Â) of each decision (Eq. grpo_objective), and whether the clip bit."""
    ratio = (logv - old_logv).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon)
    return torch.minimum(ratio * advantage, clipped * advantage), (clipped != ratio).float()


def expected_reward(logv: Float[Tensor, "S L"], reward: Float[Tensor, "S L"]) -> Float[Tensor, "S"]:
    """Σ_i v(i | s) r(s, i): the exact expectation of the immediate reward, differentiable in v."""
    return (logv.exp() * reward.masked_fill(logv == -torch.inf, 0.0)).sum(1)


def categorical_kl(logv: Float[Tensor, "S L"], reference_logv: Float[Tensor, "S L"]) -> Float[Tensor, "S"]:
    """KL(v‖v_ref) over the candidates, exact."""
    ratio = (logv - reference_logv).masked_fill(logv == -torch.inf, 0.0)
    return (logv.exp() * ratio).sum(1)


def entropy(logv: Float[Tensor, "S L"]) -> Float[Tensor, "S"]:
    return -(logv.exp() * logv.masked_fill(logv == -torch.inf, 0.0)).sum(1)


def bernoulli_logp(
    scores: Float[Tensor, "S L"], drawn: Bool[Tensor, "S L"], eligible: Bool[Tensor, "S L"]
) -> Float[Tensor, "S"]:
    """log-probability of a set when every candidate is revealed by a coin of its own, with probability σ(score)."""
    fell = torch.where(drawn, F.logsigmoid(scores), F.logsigmoid(-scores))
    return fell.masked_fill(~eligible, 0.0).sum(1)
