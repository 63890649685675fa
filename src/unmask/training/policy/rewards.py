"""Rewards of drawn orders, from their own forwards.

``S`` decisions of ``B = P·G`` rows. The dense reward is r_t = Σ_{i∈B_k} log p_θ^i(x_i | x̃^{(t−1)}) (Eq. self_aware_reward; one
position per step in sequential decoding, a block in parallel, which is R_par of appendix "Parallel Decoding for Unique Solution").
Terminal rewards come with the last decision of a free-running rollout.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.decoding.kv_store import Place
from unmask.decoding.pricing import price
from unmask.decoding.protocols import Canvas, Denoiser, States, Trajectory
from unmask.tasks.kinds import Judge
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.decisions import Draws

AT_ONCE = 256
"""Canvases with one gap that are priced together by default."""


def decision_rewards(draws: Draws, config: PolicyTraining, judge: Judge | None = None) -> Float[Tensor, "S"]:
    """r of every decision, as ``config.reward`` says. ``judge`` says which answers are right; without one, only the target is."""
    if config.free:
        exponent = config.alpha if config.reward == "speed" else 0.0
        value = terminal(draws.trajectory, draws.canvas.truth, config.reward == "share", exponent, judge)
        return torch.where(draws.decisions.last, value[draws.decisions.row], 0.0)
    dense = draws.candidate_reward[draws.decisions.state, draws.decisions.chosen]
    return dense + config.hybrid * _last_right(draws, judge) if config.reward == "hybrid" else dense


def _last_right(draws: Draws, judge: Judge | None) -> Float[Tensor, "S"]:
    """1 at the last decision of a right answer. Teacher forcing reveals the truth: the answer is the best token of each state."""
    table, truth = draws.decisions, draws.canvas.truth
    answer = truth.index_put((table.row, table.chosen), draws.states.best[table.state, table.chosen])
    right = (answer == truth).all(1) if judge is None else judge(truth, answer)
    return table.last * right.float()[table.row]


def self_aware(states: States) -> Float[Tensor, "Z"]:
    """r_t of every state: the log-probability of the target at the revealed positions."""
    if states.target_logp is None:
        raise ValueError("the self-aware reward prices the target: decode a canvas that has one")
    return states.target_logp.masked_fill(~states.revealed, 0.0).sum(1)


def terminal(
    trajectory: Trajectory,
    target: Int[Tensor, "B L"],
    share: bool = False,
    exponent: float = 0.0,
    judge: Judge | None = None,
) -> Float[Tensor, "B"]:
    """0/1 (or the share of right tokens) of a free-running rollout, times ((n − steps + 1)/n)^exponent for its n reveals."""
    row, k = torch.nonzero(trajectory.order >= 0, as_tuple=True)
    right = (trajectory.tokens == target)[row, trajectory.order[row, k]].float()
    n = trajectory.reveals.clamp(min=1)
    part = torch.zeros(len(n), device=right.device).index_add(0, row, right) / n
    if share:
        value = part
    else:
        value = (part == 1 if judge is None else judge(target, trajectory.tokens)).float()
    return value * ((n - trajectory.step.amax(1)) / n) ** exponent


def leave_one_out_logp(denoiser: Denoiser, canvas: Canvas, at_once: int = AT_ONCE) -> Float[Tensor, "B L"]:
    """log p_θ^i(x_i | x_∖i) of every hidden position given all others, one forward each; 0 elsewhere.

    Their sum is the pseudo-log-likelihood of x, whatever the order: rewards log p(x_i|s) − log p(x_i|x_∖i) are shaped by the
    potential Σ_{i∈M} log p(x_i|x_∖i) and change the return by a constant.
    """
    hidden = canvas.answer(denoiser.mask_id)
    row, position = torch.nonzero(hidden, as_tuple=True)
    found = torch.zeros(hidden.shape, device=hidden.device)
    return found.index_put((row, position), _price_one_gap(denoiser, canvas, (row, position), at_once))


def share_of_noise(denoiser: Denoiser, canvas: Canvas, at_once: int = AT_ONCE, sample: int = AT_ONCE) -> float:
    """The share of hidden tokens that are less likely than not although everything else is known, from about ``sample`` of them.

    No order can make such a token likely: it is one of several ways to write the same, or the denoiser is wrong.
    """
    row, position = torch.nonzero(canvas.answer(denoiser.mask_id), as_tuple=True)
    every = max(1, len(row) // sample)
    if not len(row):
        return 0.0
    logp = _price_one_gap(denoiser, canvas, (row[::every], position[::every]), at_once)
    return float((logp.exp() < 0.5).float().mean())


@torch.no_grad()
def _price_one_gap(denoiser: Denoiser, canvas: Canvas, at: Place, at_once: int) -> Float[Tensor, "N"]:
    """log p of the truth of the positions ``at``, each hidden in a canvas of its own that shows everything else."""
    hidden = canvas.answer(denoiser.mask_id)
    known = torch.where(hidden, canvas.truth, canvas.tokens)
    found = [torch.zeros(0, device=known.device)]
    for row, position in zip(*(index.split(at_once) for index in at), strict=True):
        n = torch.arange(len(row), device=row.device)
        tokens = known[row].index_put((n, position), torch.tensor(denoiser.mask_id, device=known.device))
        states = denoiser.hidden(tokens, None if canvas.attention is None else canvas.attention[row])
        prices = price(denoiser.logits(states[n, position]), denoiser.forbidden_ids)
        found.append(prices.logp.gather(1, canvas.truth[row, position][:, None])[:, 0])
    return torch.cat(found)


def to_go(rewards: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Σ_{t' ≥ t} r_t'; the first column is the return (Eq. monte_carlo_return)."""
    return rewards.flip(1).cumsum(1).flip(1)
