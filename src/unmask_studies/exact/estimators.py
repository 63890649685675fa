"""The exact policy gradient of one canvas, and how far from it each estimator of the trainer falls.

``n`` hidden positions, ``S = 2^n`` states, ``F`` parameters φ, ``K`` groups of ``G`` orders. With d(s) the chance to visit s,

    ∇E[R] = Σ_s d(s) Σ_j v(j|s) (Q(s, j) − V(s)) ∇log v(j|s).

The derivatives ∇log v(j|s) of all states are computed once; then an estimate is a weighted sum of them, and thousands of groups are
one matrix product. Estimates are in units of ∇E[R]: the trainer's mean over decisions is the same divided by n − 1.

What is known without sampling (``expected_gradient``): the group's mean as a baseline contains the rollout itself, so it shrinks
what is credited against it by 1 − 1/G. For ``trajectory``, ``reward_to_go`` and ``critic`` that is the length of a step. For
``all_action`` it is the weight of the future against the present, and with G = 1 no future is left: the estimate is myopic. Leaving
the rollout out of its own baseline multiplies the credit by G/(G − 1), which is unbiased; the trainer does so with ``future`` =
G/(G − 1).

Two more, which no trainer can have, show what is left to win: ``exact_baseline``, reward to go against the true V(s), the best that
baselines can do; and ``exact_future``, Σ_j ∇v(j|s) Q(s, j) in the visited states, where no future is sampled at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.schedulers.policy import OrderPolicy
from unmask.theory.lattice import Lattice
from unmask.theory.orders import action_values, policy_gradient, sample_orders, state_values, visits
from unmask.theory.states import choice_logp
from unmask.training.policy.advantages import advantages
from unmask.training.policy.rewards import to_go

SAMPLED = ("trajectory", "reward_to_go", "all_action", "critic")
BOUNDS = ("exact_baseline", "exact_future")
BASELINES = ("group", "leave_one_out")


@dataclass(frozen=True, eq=False)
class Slopes:
    """One canvas under one policy, in every state: ``reward`` r(s, j), ``logv``, and ``slope`` = ∂log v(j|s)/∂φ.

    Where ``j`` is revealed they are −inf, −inf and 0.
    """

    reward: Float[Tensor, "S n"]
    logv: Float[Tensor, "S n"]
    slope: Float[Tensor, "S n F"]

    def combine(self, weight: Float[Tensor, "*K S n"]) -> Float[Tensor, "*K F"]:
        """Σ_{s,j} weight·∇log v(j|s)."""
        hidden = self.logv > -torch.inf  # half of the entries: the others have no slope
        return weight[..., hidden] @ self.slope[hidden]


def compute_slopes(
    lattice: Lattice, policy: OrderPolicy, reward_floor: float = -10.0, states_at_once: int = 8
) -> Slopes:
    """Differentiate the policy's choice in every state; ``reward_floor`` is the trainer's."""
    S, n = lattice.logp.shape
    tau, positions = policy.config.temperature, lattice.positions
    parameters = list(policy.parameters())
    scores = torch.full((S, n), -torch.inf, dtype=torch.float64)
    slope = torch.zeros(S, n, sum(p.numel() for p in parameters), dtype=torch.float64)
    for index, view in lattice.start.views(lattice.canvases, policy, rows_at_once=states_at_once):
        # Every (state, position) of the batch is differentiated by itself, all in one backward pass.
        one = policy.score(policy.observe(view))[:, positions]
        basis = torch.eye(one.numel(), device=one.device).view(-1, *one.shape)
        parts = torch.autograd.grad(one, parameters, basis, is_grads_batched=True, materialize_grads=True)
        rows = torch.cat([part.flatten(1) for part in parts], 1).view(*one.shape, -1)
        hidden = view.eligible[:, positions]
        scores[index.cpu()] = one.detach().double().masked_fill(~hidden, -torch.inf).cpu()
        slope[index.cpu()] = rows.double().cpu()
    logv = choice_logp(scores, tau)
    v = logv.exp()
    slope = (slope - (v[..., None] * slope).sum(1, keepdim=True)) / tau
    return Slopes(
        reward=lattice.logp.clamp(min=reward_floor).masked_fill(scores == -torch.inf, -torch.inf),
        logv=logv,
        slope=slope.masked_fill((scores == -torch.inf)[..., None], 0.0),
    )


def exact_gradient(canvas: Slopes) -> Float[Tensor, "F"]:
    """∇_φ E_{σ∼v}[R]."""
    return canvas.combine(policy_gradient(canvas.reward, canvas.logv))


def immediate_gradient(canvas: Slopes) -> Float[Tensor, "F"]:
    """E[Σ_t Σ_j ∇v(j|s_t) r(s_t, j)]: the part of ∇E[R] that all_action computes without sampling."""
    return canvas.combine(visits(canvas.logv)[:, None] * _weighted(canvas, canvas.reward))


@dataclass(frozen=True)
class Estimator:
    """``advantage`` of SAMPLED or BOUNDS; ``baseline`` group (the trainer's) or leave_one_out; ``normalised`` by the group's std.

    The paper's is ``Estimator("trajectory", "group", normalised=True)``. Only trajectory and reward_to_go can be normalised.
    """

    advantage: str
    baseline: str = "leave_one_out"
    normalised: bool = False

    def __post_init__(self) -> None:
        if self.advantage not in SAMPLED + BOUNDS or self.baseline not in BASELINES:
            raise ValueError(
                f"expected an advantage among {', '.join(SAMPLED + BOUNDS)} and a baseline among {', '.join(BASELINES)}, "
                f"got {self.advantage!r} and {self.baseline!r}"
            )
        if self.normalised and self.advantage not in ("trajectory", "reward_to_go"):
            raise ValueError(f"{self.advantage} is in nats, like the reward that it adds: it is not normalised")

    def credit(self, group: int) -> float:
        """What the group's centred returns are multiplied by."""
        return group / (group - 1) if self.baseline == "leave_one_out" and group > 1 else 1.0


def expected_gradient(canvas: Slopes, estimator: Estimator, group: int) -> Float[Tensor, "F"]:
    """The mean of an estimator that is not normalised, exactly."""
    if estimator.normalised:
        raise ValueError("a normalised estimator has no closed form: sample it with sample_gradients")
    whole = exact_gradient(canvas)
    if estimator.advantage in BOUNDS:
        return whole
    sampled = (1 - 1 / group) * estimator.credit(group)
    if estimator.advantage != "all_action":
        return sampled * whole
    now = immediate_gradient(canvas)
    return now + sampled * (whole - now)


def sample_gradients(
    canvas: Slopes, estimator: Estimator, orders: Int[Tensor, "K G n"], std_floor: float = 0.1
) -> Float[Tensor, "K F"]:
    """The estimate of each group of orders, as ``policy_loss`` would make it at the policy that drew them."""
    K, G, n = orders.shape
    chosen = orders.flatten(0, 1)
    bits = 1 << chosen
    state = bits.cumsum(1) - bits
    rewards = canvas.reward[state, chosen]
    kind, credit = estimator.advantage, torch.zeros_like(rewards)
    if kind in SAMPLED:
        hidden = canvas.reward.masked_fill(canvas.reward == -torch.inf, 0.0).sum(1)
        credit, live = advantages(rewards, G, kind, std_floor, estimator.normalised, hidden[state])
        dead = ~live[:, None] & (kind in ("trajectory", "reward_to_go"))
        credit = credit.masked_fill(dead, 0.0) * estimator.credit(G)
    elif kind == "exact_baseline":
        credit = to_go(rewards) - state_values(canvas.reward, canvas.logv)[state]
    weight = torch.zeros(K, 2**n * n, dtype=torch.float64)
    weight = weight.scatter_add(1, (state * n + chosen).view(K, -1), credit.reshape(K, -1) / G).view(K, -1, n)
    if kind in ("all_action", "exact_future"):
        known = canvas.reward if kind == "all_action" else action_values(canvas.reward, canvas.logv)
        passed = torch.zeros(K, 2**n, dtype=torch.float64)
        passed = passed.scatter_add(1, state.view(K, -1), torch.full((K, G * n), 1 / G, dtype=torch.float64))
        weight = weight + passed[..., None] * _weighted(canvas, known)
    return canvas.combine(weight)


@dataclass(frozen=True)
class Quality:
    """An estimator, sampled in groups of ``group`` orders, against ∇E[R] averaged over canvases.

    ``bias`` = ‖mean − exact‖/‖exact‖; an unbiased estimator would show about ``bias_error``. ``known_bias`` is the same without
    sampling, where there is a closed form. ``cosine`` is that of the mean with the exact gradient. ``variance`` is the trace of the
    covariance times G, so that all group sizes are compared at the same number of orders.
    """

    advantage: str
    baseline: str
    normalised: bool
    group: int
    bias: float
    bias_error: float
    known_bias: float | None
    cosine: float
    variance: float


def measure_quality(
    canvases: Sequence[Slopes], estimators: Sequence[Estimator], group: int, groups: int = 1000, seed: int = 0
) -> list[Quality]:
    """Sample every estimator on the same orders."""
    generator = torch.Generator().manual_seed(seed)
    draws = [sample_orders(c.logv, groups * group, generator).view(groups, group, -1) for c in canvases]
    exact = torch.stack([exact_gradient(canvas) for canvas in canvases]).mean(0)
    return [_compare(list(zip(canvases, draws, strict=True)), exact, estimator) for estimator in estimators]


def _compare(
    sample: Sequence[tuple[Slopes, Int[Tensor, "K G n"]]], exact: Float[Tensor, "F"], estimator: Estimator
) -> Quality:
    groups, group = sample[0][1].shape[:2]
    estimates = [sample_gradients(canvas, estimator, orders) for canvas, orders in sample]
    spreads = [float((one - one.mean(0)).square().sum()) / (groups - 1) for one in estimates]
    mean = torch.stack([one.mean(0) for one in estimates]).mean(0)
    known = None
    if not estimator.normalised:
        expected = torch.stack([expected_gradient(canvas, estimator, group) for canvas, _ in sample]).mean(0)
        known = float((expected - exact).norm() / exact.norm())
    return Quality(
        advantage=estimator.advantage,
        baseline=estimator.baseline,
        normalised=estimator.normalised,
        group=group,
        bias=float((mean - exact).norm() / exact.norm()),
        bias_error=(sum(spreads) / groups) ** 0.5 / len(spreads) / float(exact.norm()),
        known_bias=known,
        cosine=float(torch.cosine_similarity(mean, exact, dim=0)),
        variance=group * sum(spreads) / len(spreads),
    )


def _weighted(canvas: Slopes, values: Float[Tensor, "S n"]) -> Float[Tensor, "S n"]:
    """v(j|s)·values, 0 where ``j`` is revealed."""
    return canvas.logv.exp() * values.masked_fill(canvas.logv == -torch.inf, 0.0)
