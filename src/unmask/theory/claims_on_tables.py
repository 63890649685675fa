"""Claims, and the paper's theorems as claims on models that are written down.

π is the data's law, "the denoiser" a table of arbitrary conditionals, "the policy" arbitrary scores; "perfect" means the
conditionals of π. Each theorem with an assumption is also tried without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.theory.enumerable import (
    block_correlation,
    entropy,
    exact_conditionals,
    forced,
    joint_kl,
    kl,
    marginal_mismatch,
    policy_table,
    rows,
    sas_loss,
    total_correlation,
    total_variation,
)
from unmask.theory.orders import all_orders, along, block_return, log_p_seq, return_variance

TOLERANCE = 1e-6
"""Relative: what must be equal may differ by rounding."""
APART = 1e-4
"""What must differ is farther apart than this."""
V, N = 3, 4
BLOCKS = [[0, 1], [2, 3]]
OTHER_BLOCKS = [[2, 0], [1, 3]]
NOISE = 1.5


@dataclass(frozen=True)
class Claim:
    """``left relation right``. ``label`` is the paper's; ``!=`` and ``>`` mark variants that lack an assumption and must fail.

    Over several canvases the sides are means, and the claim holds if it holds on each.
    """

    claim: str
    label: str
    left: float
    relation: str
    right: float
    holds: bool
    note: str = ""


def check(
    claim: str,
    label: str,
    left: float | Sequence[float],
    relation: str,
    right: float | Sequence[float],
    note: str = "",
    within: float | Sequence[float] = TOLERANCE,
) -> Claim:
    """``within`` is the tolerance of ``=``, ``<=``, ``>=`` (relative) and of ``~`` (absolute)."""
    lefts, rights = ([float(x)] if isinstance(x, int | float) else [float(v) for v in x] for x in (left, right))
    widths = [within] * len(lefts) if isinstance(within, int | float) else list(within)
    holds = all(_related(a, relation, b, w) for a, b, w in zip(lefts, rights, widths, strict=True))
    return Claim(claim, label, _mean(lefts), relation, _mean(rights), holds, note)


def _related(a: float, relation: str, b: float, within: float) -> bool:
    slack = within * (1 + max(abs(a), abs(b)))
    match relation:
        case "=":
            return abs(a - b) <= slack
        case "<=":
            return a <= b + slack
        case ">=":
            return a >= b - slack
        case "~":
            return abs(a - b) <= within
        case "!=":
            return abs(a - b) > APART
        case ">":
            return a > b + APART
    raise ValueError(f"a relation must be one of = <= >= ~ != >, got {relation!r}")


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def table_claims(seed: int = 0) -> list[Claim]:
    """Every theorem on random tables drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    states = (V + 1) ** N

    def normal(*shape: int) -> Tensor:
        return NOISE * torch.randn(shape, generator=generator, dtype=torch.float64)

    law, other = (normal(V**N).softmax(0) for _ in range(2))
    rough = normal(states, N, V).log_softmax(-1)
    scores = normal(states, N)
    soft, greedy = (forced(policy_table(scores, V, tau), V) for tau in (1.0, 0.0))
    return [
        *_sequential(law, forced(rough, V), soft, greedy),
        *_realizable(law, rough, soft),
        *_perfect(law, forced(rough, V), soft),
        *_parallel(law, other, forced(rough, V)),
        *_dirac(law, forced(rough, V)),
    ]


def _sequential(law: Tensor, logp: Tensor, soft: Tensor, greedy: Tensor) -> list[Claim]:
    p_seq = log_p_seq(logp, soft).exp()
    loss, h = sas_loss(law, logp, soft), entropy(law)
    fit, fit_greedy = (float(law @ log_p_seq(logp, v)) for v in (soft, greedy))
    joint = joint_kl(law, logp, soft)
    return [
        check("P_seq is a law: it sums to 1 over all sequences", "eq:sequential_dist", float(p_seq.sum()), "=", 1.0),
        check("E log P_seq = −KL(π‖P_seq) − H(π)", "eq:obj_mle", fit, "=", -kl(law, p_seq) - h),
        check("E log P_seq ≥ E R", "thm:elbo", fit, ">=", -loss, "a stochastic policy"),
        check("E log P_seq = E R", "thm:elbo", fit, "!=", -loss, "fails: equality needs a deterministic policy"),
        check("E log P_seq = E R", "thm:elbo", fit_greedy, "=", -sas_loss(law, logp, greedy), "a deterministic policy"),
        check("L_SAS − H(π) = KL(Q‖P)", "eq:joint_identity", loss - h, "=", joint, "left by subsets, right by orders"),
        check("KL(π‖P_seq) ≤ L_SAS − H(π)", "thm:sas_joint_bound", kl(law, p_seq), "<=", loss - h),
    ]


def _realizable(law: Tensor, rough: Tensor, soft: Tensor) -> list[Claim]:
    """A denoiser that is right only where the revealed positions are a prefix, and a policy that stays there."""
    state = rows(V + 1, N)
    hidden = state == V
    prefix = (hidden.long().diff(dim=1) >= 0).all(1)
    half = torch.where(prefix[:, None, None], exact_conditionals(law, V), rough)
    logp = forced(half, V)
    forward = forced(policy_table(-torch.arange(N).double().expand(len(state), N), V, 0.0), V)
    h, label = entropy(law), "cor:expressivity_tight_bound"
    p_seq = log_p_seq(logp, forward).exp()
    note = "right along one order, arbitrary elsewhere; the policy takes that order"
    return [
        check("KL(Q‖P) = 0 is realizable by an imperfect denoiser", label, joint_kl(law, logp, forward), "=", 0.0, note),
        check("then KL(π‖P_seq) = 0", label, kl(law, p_seq), "=", 0.0, note),
        check("then L_SAS = H(π)", label, sas_loss(law, logp, forward), "=", h, note),
        check("L_SAS = H(π)", label, sas_loss(law, logp, soft), "!=", h, "fails: the same denoiser under another policy"),
    ]  # fmt: skip


def _perfect(law: Tensor, rough: Tensor, soft: Tensor) -> list[Claim]:
    label = "rem:expressivity_exactness"
    perfect = forced(exact_conditionals(law, V), V)
    spread, spread_rough = (_order_range(x) for x in (perfect, rough))
    note = "a perfect denoiser, an arbitrary policy"
    return [
        check("L_SAS = H(π)", label, sas_loss(law, perfect, soft), "=", entropy(law), note),
        check("KL(π‖P_seq) = 0", label, kl(law, log_p_seq(perfect, soft).exp()), "=", 0.0, note),
        check("max_σ R − min_σ R = 0 for every x", label, spread, "=", 0.0, "a perfect denoiser: order is irrelevant"),
        check("Var_σ R = 0 for every x", label, float(return_variance(perfect, soft).max()), "=", 0.0, note),
        check("max_σ R − min_σ R = 0", label, spread_rough, "!=", 0.0, "fails: an imperfect denoiser has better orders"),
    ]  # fmt: skip


def _parallel(law: Tensor, other: Tensor, rough: Tensor) -> list[Claim]:
    """``other`` is the joint that a consistent denoiser believes in, wrongly."""
    consistent = forced(exact_conditionals(other, V), V)
    p_par = block_return(consistent, BLOCKS).exp()
    tc = block_correlation(other, V, BLOCKS)
    bound = (0.5 * kl(law, other)) ** 0.5 + (0.5 * tc) ** 0.5
    mixed = (p_par + block_return(consistent, OTHER_BLOCKS).exp()) / 2
    mean_tc = (tc + block_correlation(other, V, OTHER_BLOCKS)) / 2
    rough_seq = along(rough, torch.arange(N)[None])[:, 0].exp()
    rough_kl = kl(rough_seq, block_return(rough, BLOCKS).exp())
    rough_tc = block_correlation(rough_seq, V, BLOCKS)
    whole_gap = rough_tc + marginal_mismatch(rough_seq, V, rough, BLOCKS)
    entropies, factors = total_correlation(other, V, BLOCKS[1], BLOCKS[0]), _conditional_kl(other, BLOCKS[1], BLOCKS[0])
    forms, good = "the two forms of the conditional total correlation", "fixed blocks, consistent marginals"
    wrong = "fails: a denoiser whose marginals are not those of its own law"
    becomes = "fixed blocks, any denoiser: what the identity becomes"
    identity, tv_bound = "KL(P_seq‖P_par) = Σ_k E TC", "TV(π, P_par) ≤ √(KL/2) + √(ΣTC/2)"
    left, right = _tv_counterexample(law)
    return [
        check("P_par sums to 1 over all sequences", "eq:parallel_dist", float(p_par.sum()), "=", 1.0),
        check("Σ H(X_i|X_A) − H(X_B|X_A) = KL(P(X_B|X_A)‖Π P(X_i|X_A))", "sec:tc", entropies, "=", factors, forms),
        check(identity, "thm:tc_gap", kl(other, p_par), "=", tc, good),
        check(identity, "thm:tc_gap", rough_kl, "!=", rough_tc, wrong),
        check(f"{identity} + marginal mismatch", "thm:tc_gap", rough_kl, "=", whole_gap, becomes),
        check("KL(P_seq‖P_par) = E Σ_k E TC", "thm:tc_gap", kl(other, mixed), "!=", mean_tc, "fails: blocks drawn at random"),
        check("KL(P_seq‖P_par) ≤ E Σ_k E TC", "thm:tc_gap", kl(other, mixed), "<=", mean_tc, "what remains: convexity"),
        check(tv_bound, "cor:tv_pi_par", total_variation(law, p_par), "<=", bound, good),
        check(tv_bound, "cor:tv_pi_par", left, ">", right, "fails without consistent marginals"),
    ]  # fmt: skip


def _dirac(law: Tensor, logp: Tensor) -> list[Claim]:
    """Appendix parallel_dirac: with one right answer the parallel return is a divergence; with several it is not."""
    reward = block_return(logp, BLOCKS)
    answer = int(law.argmax())
    dirac = torch.nn.functional.one_hot(torch.tensor(answer), len(law)).double()
    label, several = "sec:parallel_dirac", "fails by H(π): several answers"
    return [
        check("KL(δ‖p_par) = −R_par", label, kl(dirac, reward.exp()), "=", -float(reward[answer]), "one right answer"),
        check("KL(π‖p_par) = −E R_par", label, kl(law, reward.exp()), "!=", -float(law @ reward), several),
    ]


def _tv_counterexample(law: Float[Tensor, "X"]) -> tuple[float, float]:
    """π independent, a denoiser right along the order but wrong about a block's second: the bound is 0, the error is not."""
    marginal = [law.view([V] * N).sum([j for j in range(N) if j != i]) for i in range(N)]
    free = torch.einsum("a,b,c,d->abcd", *marginal).reshape(-1)
    state = rows(V + 1, N)
    table = exact_conditionals(free, V)
    # Positions 1 and 3 are second in their blocks: wrong while their block's first is hidden.
    for first, second in BLOCKS:
        table[state[:, first] == V, second] = table[state[:, first] == V, second].flip(-1)
    logp = forced(table, V)
    p_seq = along(logp, torch.arange(N)[None])[:, 0].exp()
    bound = (0.5 * max(kl(free, p_seq), 0.0)) ** 0.5 + (0.5 * max(block_correlation(p_seq, V, BLOCKS), 0.0)) ** 0.5
    return total_variation(free, block_return(logp, BLOCKS).exp()), bound


def _conditional_kl(law: Float[Tensor, "X"], block: list[int], given: list[int]) -> float:
    """E_{x_A} KL(P(X_B | x_A) ‖ Π_i P(X_i | x_A)) for two positions in B that follow those of A."""
    joint = law.view([V] * N).permute(*given, *block).reshape(-1, V, V)
    known = joint.sum((1, 2), keepdim=True)
    apart = joint.sum(2, keepdim=True) * joint.sum(1, keepdim=True) / known
    return kl(joint, apart)


def _order_range(logp: Float[Tensor, "X S n"]) -> float:
    returns = along(logp, all_orders(N))
    return float((returns.amax(1) - returns.amin(1)).max())
