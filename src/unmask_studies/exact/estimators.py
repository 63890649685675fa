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
    """An estimator against ∇E[R] averaged over ``canvases``, from ``groups`` groups of ``group`` orders on each.

    ``bias`` = ‖mean − exact‖/‖exact‖; one that is unbiased would show about ``bias_error``. ``known_bias`` is the same without
    sampling, where there is a closed form. ``cosine`` is that of the mean with the exact gradient, ``one_cosine`` the mean cosine
    of a single group's estimate with its canvas's. ``variance`` is the trace of the covariance times G, so that all group sizes
    are compared at the same number of orders; ``signal`` = ‖mean‖²/variance, whatever the estimator's length. ``forwards`` are
    distinct states per order.
    """

    advantage: str
    baseline: str
    normalised: bool
    group: int
    canvases: int
    groups: int
    bias: float
    bias_error: float
    known_bias: float | None
    cosine: float
    one_cosine: float
    variance: float
    signal: float
    forwards: float


def measure_quality(
    canvases: Sequence[Slopes], estimators: Sequence[Estimator], group: int, groups: int = 1000, seed: int = 0
) -> list[Quality]:
    """Sample every estimator on the same orders."""
    generator = torch.Generator().manual_seed(seed)
    draws = [sample_orders(c.logv, groups * group, generator).view(groups, group, -1) for c in canvases]
    exact = [exact_gradient(canvas) for canvas in canvases]
    forwards = sum(_distinct(orders) for orders in draws) / (len(draws) * group)
    return [_quality(canvases, draws, exact, estimator, forwards) for estimator in estimators]


def _quality(
    canvases: Sequence[Slopes],
    draws: Sequence[Int[Tensor, "K G n"]],
    exact: Sequence[Float[Tensor, "F"]],
    estimator: Estimator,
    forwards: float,
) -> Quality:
    groups, group = draws[0].shape[:2]
    whole = torch.stack(list(exact)).mean(0)
    means, spreads, angles = [], [], []
    for canvas, orders, truth in zip(canvases, draws, exact, strict=True):
        estimates = sample_gradients(canvas, estimator, orders)
        means.append(estimates.mean(0))
        spreads.append(float((estimates - means[-1]).square().sum()) / (groups - 1))
        angles.append(float(torch.cosine_similarity(estimates, truth[None], dim=1).mean()))
    mean = torch.stack(means).mean(0)
    noise = sum(spreads) / (groups * len(spreads) ** 2)
    variance = group * sum(spreads) / len(spreads)
    known = None
    if not estimator.normalised:
        expected = torch.stack([expected_gradient(canvas, estimator, group) for canvas in canvases]).mean(0)
        known = float((expected - whole).norm() / whole.norm())
    return Quality(
        advantage=estimator.advantage,
        baseline=estimator.baseline,
        normalised=estimator.normalised,
        group=group,
        canvases=len(canvases),
        groups=groups,
        bias=float((mean - whole).norm() / whole.norm()),
        bias_error=noise**0.5 / float(whole.norm()),
        known_bias=known,
        cosine=float(torch.cosine_similarity(mean, whole, dim=0)),
        one_cosine=sum(angles) / len(angles),
        variance=variance,
        # The square of a noisy mean is too long by the noise.
        signal=max(0.0, float(mean.square().sum()) - noise) / variance,
        forwards=forwards,
    )


def _weighted(canvas: Slopes, values: Float[Tensor, "S n"]) -> Float[Tensor, "S n"]:
    """v(j|s)·values, 0 where ``j`` is revealed."""
    return canvas.logv.exp() * values.masked_fill(canvas.logv == -torch.inf, 0.0)


def _distinct(orders: Int[Tensor, "K G n"]) -> float:
    """Distinct states that a group visits, the mean over groups: what ``share`` has to forward."""
    bits = 1 << orders
    state = (bits.cumsum(2) - bits).flatten(1).sort(1).values
    return 1 + float((state.diff(dim=1) != 0).sum(1).double().mean())
