"""Models small enough to write down: ``n`` positions, ``V`` tokens, so ``X = V^n`` sequences and ``T = (V+1)^n`` masked states.

A sequence or state is a row of digits, the last position fastest; in a state the digit ``V`` means hidden. A denoiser is then a
table ``logp[T, n, V]`` = log p_θ^i(a | s), a policy a table ``[T, n]``, a law over sequences a vector ``[X]``. ``forced`` reads a
table along every sequence's subset lattice, where :mod:`unmask.theory.orders` sums over orders. All of it is float64.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.protocols import Denoiser, Scheduler
from unmask.schedulers.heuristics import left_to_right
from unmask.theory.lattice import revealed
from unmask.theory.orders import all_orders, along, expected_return
from unmask.theory.states import Start, choice_logp

MOST_STATES = 2**17


def rows(base: int, n: int) -> Int[Tensor, "R n"]:
    """All ``base^n`` rows of digits: sequences for base V, states for base V + 1."""
    return torch.cartesian_prod(*[torch.arange(base)] * n).view(-1, n)


def forced(table: Float[Tensor, "T n *V"], V: int) -> Float[Tensor, "X S n"]:
    """A table along every teacher-forced lattice: ``[T, n, V]`` gives log p_θ(x_i | s), ``[T, n]`` the policy's log v(i | s).

    −inf where position ``i`` is revealed.
    """
    n = table.shape[1]
    x, shown = rows(V, n), revealed(n)
    place = (V + 1) ** torch.arange(n - 1, -1, -1)
    state = (torch.where(shown, x[:, None], V) * place).sum(-1)
    values = table[state]
    if table.dim() == 3:
        values = values.gather(-1, x[:, None, :, None].expand(*values.shape[:-1], 1))[..., 0]
    return values.masked_fill(shown, -torch.inf)


def exact_conditionals(law: Float[Tensor, "X"], V: int) -> Float[Tensor, "T n V"]:
    """The perfect denoiser of a law: π(x_i = a | x_revealed). Uniform in states that the law never reaches."""
    n = _length(law, V)
    x, states = rows(V, n), rows(V + 1, n)
    agrees = ((states[:, None] == x) | (states[:, None] == V)).all(-1).double() * law
    mass = torch.stack([agrees @ (x == a).double() for a in range(V)], -1)
    total = mass.sum(-1, keepdim=True)
    return torch.where(total > 0, mass / total.clamp(min=1e-300), 1 / V).log()


def conditionals(
    denoiser: Denoiser,
    tokens: Int[Tensor, "L"],
    *,
    candidates: Bool[Tensor, "L"] | None = None,
    rows_at_once: int = 1024,
) -> tuple[Float[Tensor, "T n V"], Int[Tensor, "V"]]:
    """The table of a real denoiser over the hidden positions of a canvas, and the token id of each digit.

    The digits are the tokens that may be revealed. One forward per state that hides something; what is rounded in float32 is
    normalised again, so that laws sum to 1 exactly.
    """
    start = Start.of(denoiser, tokens, candidates=candidates)
    n = len(start.positions)
    vocabulary = _vocabulary(denoiser, tokens)
    V = len(vocabulary)
    table = torch.full(((V + 1) ** n, n, V), -torch.inf, dtype=torch.float64)
    for index, view in start.views(_canvases(start, vocabulary), left_to_right, rows_at_once=rows_at_once):
        logp = view.prices.logp[:, vocabulary].double().log_softmax(-1).cpu()
        nth = torch.searchsorted(start.positions, view.at[1])
        table[index.cpu()[view.at[0].cpu()], nth.cpu()] = logp
    return table, vocabulary


def scheduler_table(
    denoiser: Denoiser,
    tokens: Int[Tensor, "L"],
    scheduler: Scheduler,
    tau: float = 0.0,
    *,
    candidates: Bool[Tensor, "L"] | None = None,
    seed: int = 0,
) -> Float[Tensor, "T n"]:
    """log v(i | s) of a scheduler in each of those states. Oracles are refused: a policy may not depend on what is hidden."""
    start = Start.of(denoiser, tokens, candidates=candidates)
    return choice_logp(start.scores(_canvases(start, _vocabulary(denoiser, tokens)), scheduler, None, seed), tau)


def policy_table(scores: Float[Tensor, "T n"], V: int, tau: float = 1.0) -> Float[Tensor, "T n"]:
    """log v of a table of scores: revealed positions are no choice."""
    return choice_logp(scores.masked_fill(rows(V + 1, scores.shape[1]) < V, -torch.inf), tau)


def sas_loss(law: Float[Tensor, "X"], logp: Float[Tensor, "X S n"], logv: Float[Tensor, "X S n"]) -> float:
    """L_SAS = −E_{x∼π} E_{σ∼v}[R(x, σ)] (Eq. self_aware_loss) on forced tables."""
    return -float(_expectation(law, expected_return(logp, logv)))


def joint_kl(law: Float[Tensor, "X"], logp: Float[Tensor, "X S n"], logv: Float[Tensor, "X S n"]) -> float:
    """KL(Q ‖ P) of Q(x, σ) = π(x)·v(σ|x) against P(x, σ) = p_θ(x|σ)·v(σ|x), term by term over all x and σ (Eq. joint_identity)."""
    orders = all_orders(logp.shape[-1])
    returns, choice = along(logp, orders), along(logv, orders)
    q = law[:, None] * choice.exp()
    ratio = law.log()[:, None] + choice - (returns + choice)
    return float(_expectation(q, ratio))


def entropy(p: Float[Tensor, "*shape"]) -> float:
    """H(p) in nats."""
    return -float(torch.special.xlogy(p, p).sum())


def kl(p: Float[Tensor, "*shape"], q: Float[Tensor, "*shape"]) -> float:
    """KL(p ‖ q) in nats, with 0·log 0 = 0."""
    return float((torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum())


def total_variation(p: Float[Tensor, "*shape"], q: Float[Tensor, "*shape"]) -> float:
    """TV(p, q) = ½·Σ|p − q|."""
    return 0.5 * float((p - q).abs().sum())


def total_correlation(law: Float[Tensor, "X"], V: int, block: list[int], given: list[int]) -> float:
    """E_{X∼P}[TC_P(X_B | X_A)] = Σ_{i∈B} H(X_i | X_A) − H(X_B | X_A), the conditional total correlation of section tc."""
    known = _marginal_entropy(law, V, given)
    alone = sum(_marginal_entropy(law, V, [*given, i]) - known for i in block)
    return alone - (_marginal_entropy(law, V, [*given, *block]) - known)


def block_correlation(law: Float[Tensor, "X"], V: int, blocks: list[list[int]]) -> float:
    """Σ_k E[TC_P(X_{B_k} | X_{B_<k})]: the right-hand side of Thm. tc_gap."""
    return sum(
        total_correlation(law, V, block, [i for earlier in blocks[:k] for i in earlier])
        for k, block in enumerate(blocks)
    )


def marginal_mismatch(law: Float[Tensor, "X"], V: int, logp: Float[Tensor, "X S n"], blocks: list[list[int]]) -> float:
    """Σ_k Σ_{i∈B_k} E_{X∼P} KL(P(X_i | X_{B_<k}) ‖ p_θ^i(· | X_{B_<k})): how far the denoiser's marginals are from its own law's.

    For fixed blocks and *any* denoiser, KL(P_seq‖P_par) = Σ_k E TC + this; Thm. tc_gap is the case where it is 0.
    """
    total, state, given = 0.0, 0, []
    for block in blocks:
        known = _marginal_entropy(law, V, given)
        for i in block:
            own = _marginal_entropy(law, V, [*given, i]) - known
            total += -own - float(_expectation(law, logp[:, state, i]))
        state += sum(1 << i for i in block)
        given = [*given, *block]
    return total


def _expectation(p: Float[Tensor, "*shape"], x: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    """Σ p·x, with 0·(±inf) and 0·NaN = 0."""
    return (p * torch.where(p > 0, x, 0.0)).sum()


def _marginal_entropy(law: Float[Tensor, "X"], V: int, kept: list[int]) -> float:
    n = _length(law, V)
    summed = [i for i in range(n) if i not in kept]
    joint = law.view([V] * n)
    return entropy(joint.sum(summed) if summed else joint)


def _length(law: Float[Tensor, "X"], V: int) -> int:
    n, size = 0, 1
    while size < len(law):
        n, size = n + 1, size * V
    if size != len(law):
        raise ValueError(f"a law over {V} tokens has {V}^n entries, got {len(law)}")
    return n


def _vocabulary(denoiser: Denoiser, tokens: Int[Tensor, "L"]) -> Int[Tensor, "V"]:
    with torch.no_grad():
        width = denoiser.logits(denoiser.hidden(tokens[None])[:, 0]).shape[-1]
    ids = torch.arange(width, device=tokens.device)
    return ids[~torch.isin(ids, torch.tensor(denoiser.forbidden_ids, dtype=torch.long, device=tokens.device))]


def _canvases(start: Start, vocabulary: Int[Tensor, "V"]) -> Int[Tensor, "T L"]:
    V, n = len(vocabulary), len(start.positions)
    if (V + 1) ** n > MOST_STATES:
        raise ValueError(
            f"{n} hidden positions over {V} tokens have {V + 1}^{n} states: expected at most {MOST_STATES}; hide fewer"
        )
    ids = torch.cat([vocabulary, vocabulary.new_tensor([start.denoiser.mask_id])])
    canvases = start.tokens.repeat((V + 1) ** n, 1)
    canvases[:, start.positions] = ids[rows(V + 1, n).to(ids.device)]
    return canvases
