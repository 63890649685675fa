"""Group Relative Policy Optimisation: advantages and terms of the objective, from tensors.

``B = P·G`` rollouts, the ``G`` of a prompt next to each other; ``S`` decisions; ``T`` steps.

Where we depart from Alg. grpo_order_short:
1. The mean is over live, unforced steps: a state with one candidate has no decision and carries no loss.
2. The group's standard deviation has a floor, and groups without spread are skipped and counted: dividing by noise amplifies it.
3. Besides the paper's advantage of whole trajectories there are three others. ``reward_to_go`` credits a choice only with later
   rewards. ``all_action`` knows r(s, i) of *every* candidate, because the forward that the policy reads prices them all: the
   gradient of the immediate reward, Σ_i ∇v(i|s) r(s, i), is exact, and only the future is sampled. ``critic`` compares the return
   to go with the denoiser's own prediction of it, Φ(s) = Σ_{i∈M} log p_θ(x_i | s): a baseline that needs no training. Credit is
   then what a reveal contributes to the others: r_t + Φ(s_{t+1}) − Φ(s_t) = Σ_{j∈M∖i} log p(x_j|s_{t+1}) − log p(x_j|s_t).
4. KL to a reference policy is exact over the candidates, not an estimate from the one drawn.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from unmask.training.policy.config import CHOICES
from unmask.training.policy.rewards import to_go


def advantages(
    rewards: Float[Tensor, "B T"],
    group: int,
    kind: str,
    floor: float = 0.1,
    normalise: bool = True,
    expected: Float[Tensor, "B T"] | None = None,
    decay: float = 1.0,
) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B"]]:
    """Â of every step, and which rollouts belong to a live group (one with spread).

    trajectory: (R − μ_G)/max(σ_G, floor), the same at every step. reward_to_go: the return from t on against the group's mean
    from t on, over the same σ_G. all_action: the return from t + 1 on against the group's mean, in nats like the reward at t
    itself, which is in :func:`expected_reward`. critic: Σ_k decay^k δ_{t+k} with δ_t = r_t + Φ_{t+1} − Φ_t, against the group's
    mean and over the group's spread of it (generalised advantage estimation with ``expected`` Φ as the values; decay = 1 is the
    return to go minus Φ_t). ``normalise`` divides by the spread.
    """
    if kind not in CHOICES["advantage"]:
        raise ValueError(f"advantage must be one of {', '.join(CHOICES['advantage'])}, got {kind!r}")
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
    elif kind == "critic":
        if expected is None:
            raise ValueError("advantage critic needs expected, the predicted return of every state")
        centred = _discounted_sum(rewards, expected, decay).unflatten(0, (-1, group))
        centred = centred - centred.mean(1, keepdim=True) * (group > 1)
        scale = centred.flatten(1).std(1, correction=0).clamp(min=floor) if normalise else scale
    else:
        future = torch.cat([grouped[..., 1:], torch.zeros_like(grouped[..., :1])], dim=-1)
        centred = future - future.mean(1, keepdim=True)
    return (centred / scale[:, None, None]).flatten(0, 1), live


def _discounted_sum(
    rewards: Float[Tensor, "B T"], expected: Float[Tensor, "B T"], decay: float
) -> Float[Tensor, "B T"]:
    """Σ_k decay^k δ_{t+k} with δ_t = r_t + Φ_{t+1} − Φ_t, and Φ = 0 after the end."""
    after = torch.cat([expected[:, 1:], torch.zeros_like(expected[:, :1])], dim=1)
    surprise = rewards + after - expected
    out, carried = torch.empty_like(surprise), torch.zeros_like(surprise[:, 0])
    for t in reversed(range(surprise.shape[1])):
        carried = surprise[:, t] + decay * carried
        out[:, t] = carried
    return out


def clipped_objective(
    logv: Float[Tensor, "S"], old_logv: Float[Tensor, "S"], advantage: Float[Tensor, "S"], epsilon: float
) -> tuple[Float[Tensor, "S"], Float[Tensor, "S"]]:
    """min(g Â, clip(g, 1 ± ε) Â) of each decision (Eq. grpo_objective), and whether it was clipped."""
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
    """log-probability of a set when every candidate is revealed independently, with probability σ(score)."""
    logp = torch.where(drawn, F.logsigmoid(scores), F.logsigmoid(-scores))
    return logp.masked_fill(~eligible, 0.0).sum(1)
