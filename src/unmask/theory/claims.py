"""Every statement of the paper's theory as numbers: on a denoiser's own canvases, and on models that are written down.

``P`` canvases of ``n`` ≤ 8 hidden positions; of the first :data:`FEW` of them the whole law over tokens is enumerated too. The
policy is soft confidence, v ∝ p̂^{1/τ}.
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.loop import trajectory_logp, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser
from unmask.schedulers.heuristics import confidence
from unmask.theory.beam import beam_order
from unmask.theory.claims_on_tables import Claim, check, table_claims
from unmask.theory.enumerable import (
    block_correlation,
    conditionals,
    forced,
    joint_kl,
    kl,
    marginal_mismatch,
    sas_loss,
    scheduler_table,
)
from unmask.theory.lattice import Lattice, lattice, scheduler_logv
from unmask.theory.orders import (
    MOST_ENUMERATED,
    all_orders,
    along,
    best_order,
    block_return,
    expected_return,
    importance_bounds,
    log_p_seq,
    policy_gradient,
    return_variance,
    worst_order,
)
from unmask.theory.states import choice_logp

FEW = 4
ORDERS_DRAWN = 2048
SIGMAS = 5.0


def claims(denoiser: Denoiser, canvas: Canvas, *, tau: float = 1.0, seed: int = 0) -> list[Claim]:
    """Check everything: orders, gradient, laws and parallel decoding of ``denoiser`` on the canvases, then random tables.

    Canvases hide 2 to 8 positions each (every order is listed), for example 4×4 Sudoku with 8 blanks.
    """
    hidden = (canvas.tokens == denoiser.mask_id).sum(1)
    if not len(hidden) or int(hidden.min()) < 2 or int(hidden.max()) > MOST_ENUMERATED:
        raise ValueError(
            f"the claims list every order: expected canvases with 2 to {MOST_ENUMERATED} hidden positions, got {hidden.tolist()}"
        )
    if tau <= 0:
        raise ValueError(f"the claims need a stochastic policy: expected tau > 0, got {tau}")
    grids = [lattice(denoiser, tokens, target) for tokens, target in zip(canvas.tokens, canvas.truth, strict=True)]
    return [
        *_returns(denoiser, canvas, grids, tau, seed),
        *_bounds(grids, tau),
        _gradient(grids[0], tau, seed),
        *_laws(denoiser, canvas, tau),
        *table_claims(seed),
    ]


def _returns(denoiser: Denoiser, canvas: Canvas, grids: list[Lattice], tau: float, seed: int) -> list[Claim]:
    soft = [scheduler_logv(grid, confidence, tau) for grid in grids]
    greedy = [scheduler_logv(grid, confidence, 0.0) for grid in grids]
    exact = _floats(expected_return(g.logp, v) for g, v in zip(grids, soft, strict=True))
    marginal = _floats(log_p_seq(g.logp, v) for g, v in zip(grids, soft, strict=True))
    listed, summed, largest, smallest = [], [], [], []
    for grid, logv in zip(grids, soft, strict=True):
        orders = all_orders(len(grid.positions))
        returns, choice = along(grid.logp, orders), along(logv, orders)
        listed.append(float((choice + returns).logsumexp(0)))
        summed.append(float((choice.exp() * returns).sum()))
        largest.append(float(returns.max()))
        smallest.append(float(returns.min()))
    plain = Canvas(canvas.tokens, canvas.target)
    decoded = unmask(denoiser, confidence, plain, forced=True, record=False).total_logp
    sampled, error = _sample_returns(denoiser, canvas, grids, soft, tau, seed)
    best, worst = ([extreme(grid.logp)[1] for grid in grids] for extreme in (best_order, worst_order))
    beam = [beam_order(denoiser, g.start.tokens, g.target, width=4)[1] for g in grids]
    drawn = f"{ORDERS_DRAWN} orders drawn, {SIGMAS:g} standard errors"
    subsets = "left by subsets, right by orders"
    from_the_loop = "a deterministic policy: left by subsets, right from the decoding loop"
    along_greedy = _floats(log_p_seq(g.logp, v) for g, v in zip(grids, greedy, strict=True))
    return [
        check("log P_seq = log Σ_σ v(σ|x)·p(x|σ)", "eq:sequential_dist", marginal, "=", listed, subsets),
        check("E R = Σ_σ v(σ|x)·R(x,σ)", "eq:self_aware_loss", exact, "=", summed, subsets),
        check("mean of decoded returns ~ E R", "eq:monte_carlo_return", sampled, "~", exact, drawn, error),
        check("log P_seq ≥ E R", "thm:elbo", marginal, ">=", exact, "a stochastic policy"),
        check("log P_seq = R(x, σ(x))", "thm:elbo", along_greedy, "=", _floats(decoded), from_the_loop, 1e-5),
        check("max_σ R by subsets = by orders", "eq:order_obj", best, "=", largest),
        check("min_σ R by subsets = by orders", "eq:order_obj", worst, "=", smallest),
        check("R of confidence ≤ max_σ R", "eq:order_obj", _floats(decoded), "<=", best, "what order learning can gain", 1e-5),
        check("R of confidence ≥ min_σ R", "eq:order_obj", _floats(decoded), ">=", worst, "what a bad order can lose", 1e-5),
        check("a beam of 4 ≤ max_σ R", "eq:order_obj", beam, "<=", best),
        check("log P_seq ≤ max_σ R", "eq:sequential_dist", marginal, "<=", best, "no mixture beats its best order"),
    ]  # fmt: skip


def _sample_returns(
    denoiser: Denoiser, canvas: Canvas, grids: list[Lattice], soft: list[Tensor], tau: float, seed: int
) -> tuple[list[float], list[float]]:
    """The mean return of orders that the decoding loop draws, and the widths it must fall in."""
    tokens, target = (x.repeat_interleave(ORDERS_DRAWN, 0) for x in (canvas.tokens, canvas.truth))
    seeds = torch.randint(2**62, (len(tokens),), generator=torch.Generator().manual_seed(seed))
    decoding = Decoding(order_temperature=tau, share=True)
    canvas = Canvas(tokens, target, seeds=seeds.to(tokens.device))
    trajectory = unmask(denoiser, confidence, canvas, decoding, forced=True, record=False)
    mean = trajectory.total_logp.double().view(len(grids), ORDERS_DRAWN).mean(1)
    variance = _floats(return_variance(g.logp, v) for g, v in zip(grids, soft, strict=True))
    return _floats(mean), [SIGMAS * (x / ORDERS_DRAWN) ** 0.5 + 1e-5 for x in variance]


def _bounds(grids: list[Lattice], tau: float) -> list[Claim]:
    soft = [scheduler_logv(grid, confidence, tau) for grid in grids]
    by_canvas = [importance_bounds(g.logp, v, (1, 2, 8, 64)) for g, v in zip(grids, soft, strict=True)]
    bound = dict(zip((1, 2, 8, 64), zip(*by_canvas, strict=True), strict=True))
    exact = _floats(expected_return(g.logp, v) for g, v in zip(grids, soft, strict=True))
    marginal = _floats(log_p_seq(g.logp, v) for g, v in zip(grids, soft, strict=True))
    name = "E log mean_K p(x|σ_k)"
    return [
        check(f"{name} at K = 1 = E R", "thm:elbo", bound[1], "=", exact, "left by quadrature, right by subsets"),
        check(f"{name}: K = 2 ≥ K = 1", "thm:elbo", bound[2], ">=", bound[1], "more orders tighten the bound"),
        check(f"{name}: K = 8 ≥ K = 2", "thm:elbo", bound[8], ">=", bound[2], "more orders tighten the bound"),
        check(f"{name}: K = 64 ≥ K = 8", "thm:elbo", bound[64], ">=", bound[8], "more orders tighten the bound"),
        check(f"{name} at K = 64 ≤ log P_seq", "thm:elbo", bound[64], "<=", marginal),
    ]


def _gradient(grid: Lattice, tau: float, seed: int) -> Claim:
    """Along a random direction in the space of all scores."""
    scores = scheduler_logv(grid, confidence, 1.0)
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(scores.shape, generator=generator, dtype=torch.float64)
    exact = policy_gradient(grid.logp, choice_logp(scores, tau), tau)
    up, down = (
        float(expected_return(grid.logp, choice_logp(scores + step * direction, tau))) for step in (1e-4, -1e-4)
    )
    claim, note = "Σ d(s)·v(j|s)·(Q − V)/τ = ∂E R", "right by central differences along a random direction"
    return check(claim, "eq:order_obj", float((exact * direction).sum()), "=", (up - down) / 2e-4, note)


def _laws(denoiser: Denoiser, canvas: Canvas, tau: float) -> list[Claim]:
    """The whole law over the first few hidden positions, the others staying hidden; a unique solution makes π a Dirac."""
    total, divergence, loss, joint, kl_dirac, reward, looped, gap, tc, full = ([] for _ in range(10))
    for tokens, target in zip(canvas.tokens, canvas.truth, strict=True):
        few = torch.nonzero(tokens == denoiser.mask_id)[:FEW, 0]
        candidates = torch.zeros_like(tokens, dtype=torch.bool).index_fill(0, few, True)
        table, vocabulary = conditionals(denoiser, tokens, candidates=candidates)
        V, n = len(vocabulary), len(few)
        logp = forced(table, V)
        logv = forced(scheduler_table(denoiser, tokens, confidence, tau, candidates=candidates), V)
        digits = torch.searchsorted(vocabulary, target[few])
        answer = int((digits * V ** torch.arange(n - 1, -1, -1, device=digits.device)).sum())
        dirac = torch.zeros(V**n, dtype=torch.float64).index_fill(0, torch.tensor(answer), 1.0)
        blocks = [list(range(n // 2)), list(range(n // 2, n))]
        p_seq, p_par = log_p_seq(logp, logv).exp(), block_return(logp, blocks).exp()
        total.append(float(p_seq.sum()))
        divergence.append(kl(dirac, p_seq))
        loss.append(sas_loss(dirac, logp, logv))
        joint.append(joint_kl(dirac, logp, logv))
        kl_dirac.append(kl(dirac, p_par))
        reward.append(-float(block_return(logp, blocks)[answer]))
        looped.append(-_parallel_logp(denoiser, tokens, target, few, blocks))
        ordered = along(logp, torch.arange(n)[None])[:, 0].exp()
        gap.append(kl(ordered, p_par))
        tc.append(block_correlation(ordered, V, blocks))
        full.append(tc[-1] + marginal_mismatch(ordered, V, logp, blocks))
    note = f"the law over the first {FEW} hidden positions; a unique solution, so H(π) = 0"
    return [
        check("P_seq sums to 1 over all answers", "eq:sequential_dist", total, "=", [1.0] * len(total)),
        check("L_SAS − H(π) = KL(Q‖P)", "eq:joint_identity", loss, "=", joint, note),
        check("KL(π‖P_seq) ≤ L_SAS − H(π)", "thm:sas_joint_bound", divergence, "<=", loss, note),
        check("KL(δ‖p_par) = −R_par", "sec:parallel_dirac", kl_dirac, "=", reward, note),
        check("−R_par by table = by the decoding loop's prices", "sec:parallel_dirac", reward, "=", looped, note, 1e-5),
        check("KL(P_seq‖P_par) ≥ Σ_k E TC", "thm:tc_gap", gap, ">=", tc, "its marginals are not those of its own law"),
        check("KL(P_seq‖P_par) = Σ_k E TC + marginal mismatch", "thm:tc_gap", gap, "=", full, "the identity for any denoiser"),
    ]  # fmt: skip


def _parallel_logp(
    denoiser: Denoiser,
    tokens: Int[Tensor, "L"],
    target: Int[Tensor, "L"],
    few: Int[Tensor, "n"],
    blocks: list[list[int]],
) -> float:
    """log p_θ(x | β), priced by ``trajectory_logp``: what is not in ``few`` stays as the canvas has it."""
    step = torch.cat([torch.full((len(block),), k) for k, block in enumerate(blocks)]).to(few.device)
    shown = tokens.index_copy(0, few, target[few])
    return float(trajectory_logp(denoiser, shown[None], few[None], step[None]).double().sum())


def _floats(values: object) -> list[float]:
    return [float(value) for value in values]  # pyright: ignore[reportGeneralTypeIssues]
