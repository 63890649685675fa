"""Laws over whole sequences, and the paper's theorems as numbers: they hold, and the checks can fail."""

import math
import re
from pathlib import Path

import pytest
import torch

from support.canvases import canvases
from support.denoisers import opinionated
from support.tables import TableDenoiser
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import list_denoisers, load_denoiser
from unmask.schedulers.heuristics import confidence
from unmask.theory.claims import claims
from unmask.theory.claims_on_tables import check, table_claims
from unmask.theory.enumerable import (
    block_correlation,
    conditionals,
    entropy,
    exact_conditionals,
    forced,
    joint_kl,
    kl,
    marginal_mismatch,
    policy_table,
    rows,
    sas_loss,
    scheduler_table,
    total_correlation,
    total_variation,
)
from unmask.theory.lattice import lattice, scheduler_logv
from unmask.theory.orders import all_orders, along, block_return, expected_return, log_p_seq

shared = Path(__file__).resolve().parents[3] / "shared"
V, N = 2, 3


def _law(seed: int = 0, size: int = V**N) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).softmax(0)


def _table(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((V + 1) ** N, N, V, generator=generator, dtype=torch.float64).log_softmax(-1)


def test_perfect_conditionals_multiply_to_the_law_along_every_order() -> None:
    law = _law()
    returns = along(forced(exact_conditionals(law, V), V), all_orders(N))
    assert torch.allclose(returns.exp(), law[:, None].expand_as(returns))
    state = rows(V + 1, N).tolist().index([V, 1, V])
    joint = law.view(V, V, V)
    assert exact_conditionals(law, V)[state, 2].exp().tolist() == pytest.approx(
        (joint[:, 1].sum(0) / joint[:, 1].sum()).tolist()
    )


def test_forced_tables_read_the_teacher_forced_states() -> None:
    table = _table()
    logp = forced(table, V)
    x, subset = [1, 0, 1], 0b101  # positions 0 and 2 revealed
    state = rows(V + 1, N).tolist().index([1, V, 1])
    assert float(logp[rows(V, N).tolist().index(x), subset, 1]) == float(table[state, 1, 0])
    assert float(logp[5, subset, 0]) == -math.inf


def test_a_table_as_a_denoiser_gives_back_its_table() -> None:
    table = _table(1)
    denoiser = TableDenoiser(table)
    hidden = torch.full((N,), V)
    read, vocabulary = conditionals(denoiser, hidden)
    assert vocabulary.tolist() == list(range(V))
    somewhere = rows(V + 1, N) == V
    assert torch.allclose(read[somewhere], table[somewhere], atol=1e-6)
    target = torch.tensor([1, 0, 1])
    grid = lattice(denoiser, hidden, target)
    assert torch.allclose(grid.logp, forced(table, V)[5], atol=1e-6)
    logv = forced(scheduler_table(denoiser, hidden, confidence, 0.5), V)
    assert torch.allclose(scheduler_logv(grid, confidence, 0.5), logv[5], atol=1e-6)


def test_sampled_sequences_follow_p_seq() -> None:
    denoiser, draws = TableDenoiser(_table(2)), 20_000
    hidden = torch.full((N,), V)
    logv = forced(scheduler_table(denoiser, hidden, confidence, 0.5), V)
    p_seq = log_p_seq(forced(denoiser.table, V), logv).exp()
    assert float(p_seq.sum()) == pytest.approx(1)
    trajectory = unmask(
        denoiser,
        confidence,
        hidden.repeat(draws, 1),
        Decoding(order_temperature=0.5, token_temperature=1.0),
        record=False,
    )
    seen = torch.bincount((trajectory.tokens * torch.tensor([4, 2, 1])).sum(1), minlength=8) / draws
    error = (p_seq * (1 - p_seq) / draws).sqrt()
    assert bool(((seen - p_seq).abs() < 4.5 * error).all())


def test_divergences_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor([0.25, 0.5, 0.25]).double()
    assert kl(p, q) == pytest.approx(0.5 * math.log(2))
    assert kl(q, p) == math.inf
    assert total_variation(p, q) == pytest.approx(0.25)
    assert entropy(p) == pytest.approx(math.log(2))
    # Two copies of a fair coin, then an independent one.
    law = torch.zeros(2, 2, 2, dtype=torch.float64)
    law[0, 0], law[1, 1] = 0.25, 0.25
    assert total_correlation(law.reshape(-1), 2, [0, 1], []) == pytest.approx(math.log(2))
    assert total_correlation(law.reshape(-1), 2, [1, 2], [0]) == pytest.approx(0)
    assert block_correlation(law.reshape(-1), 2, [[2], [0, 1]]) == pytest.approx(math.log(2))


def test_identities_where_the_data_have_impossible_sequences() -> None:
    law = _law(3)
    law[[0, 5]] = 0
    law = law / law.sum()
    logp, logv = forced(_table(3), V), forced(policy_table(torch.randn(27, 3, dtype=torch.float64), V), V)
    assert sas_loss(law, logp, logv) - entropy(law) == pytest.approx(joint_kl(law, logp, logv))
    perfect = forced(exact_conditionals(law, V), V)
    assert sas_loss(law, perfect, logv) == pytest.approx(entropy(law))


def test_second_position_of_a_block_does_not_see_the_first() -> None:
    """One block for everything: the parallel law is the product of the marginals."""
    law = _law(4)
    p_par = block_return(forced(exact_conditionals(law, V), V), [[0, 1, 2]]).exp().view(V, V, V)
    joint = law.view(V, V, V)
    product = torch.einsum("a,b,c->abc", joint.sum((1, 2)), joint.sum((0, 2)), joint.sum((0, 1)))
    assert torch.allclose(p_par, product)


def test_marginal_mismatch_by_hand() -> None:
    """Two positions in one block, against a denoiser that gives both tokens the same chance."""
    law = torch.tensor([0.5, 0.2, 0.1, 0.2]).double()
    even = torch.full((4, 4, 2), math.log(0.5), dtype=torch.float64)
    expected = 2 * math.log(2) - entropy(torch.tensor([0.7, 0.3])) - entropy(torch.tensor([0.6, 0.4]))
    assert marginal_mismatch(law, 2, even, [[0, 1]]) == pytest.approx(expected, abs=1e-6)
    assert marginal_mismatch(law, 2, forced(exact_conditionals(law, 2), 2), [[1], [0]]) == pytest.approx(0)


@pytest.mark.parametrize("seed", range(6))
def test_theorems_hold_on_random_tables(seed: int) -> None:
    assert [claim for claim in table_claims(seed) if not claim.holds] == []


def test_claims_hold_on_a_random_denoiser() -> None:
    denoiser, canvas = opinionated(7), canvases(2, 7, seed=5)
    found = claims(denoiser, canvas)
    assert [claim for claim in found if not claim.holds] == []
    assert {"=", "<=", ">=", "!=", ">", "~"} == {claim.relation for claim in found}
    first = lattice(denoiser, canvas.tokens[0], canvas.truth[0])
    second = lattice(denoiser, canvas.tokens[1], canvas.truth[1])
    mean = sum(float(expected_return(g.logp, scheduler_logv(g, confidence, 1.0))) for g in (first, second)) / 2
    elbo = next(claim for claim in found if claim.claim == "log P_seq ≥ E R")
    assert elbo.right == pytest.approx(mean) and elbo.left > elbo.right + 1e-3


@pytest.mark.skipif("sudoku-4x4" not in list_denoisers(), reason="the package ships no sudoku-4x4 denoiser")
def test_claims_hold_on_the_shipped_denoiser() -> None:
    found = claims(load_denoiser("sudoku-4x4"), canvases(2, 8, seed=6), seed=1)
    assert [claim for claim in found if not claim.holds] == []


def test_labels_are_the_papers() -> None:
    source = shared / "paper" / "scheduling_thoughts.tex"
    if not source.exists():
        pytest.skip("the paper's source is not here")
    known = set(re.findall(r"\\label\{([^}]*)\}", source.read_text()))
    used = {claim.label for claim in claims(opinionated(), canvases(1, 3))}
    assert used <= known
    theorems = {"thm:elbo", "thm:sas_joint_bound", "cor:expressivity_tight_bound", "rem:expressivity_exactness"}
    assert used >= theorems | {"thm:tc_gap", "cor:tv_pi_par", "sec:parallel_dirac"}


def test_a_check_can_fail() -> None:
    assert not check("", "", 1.0, "=", 1.1).holds
    assert not check("", "", 1.1, "<=", 1.0).holds
    assert not check("", "", 1.0, ">=", 1.1).holds
    assert not check("", "", 1.0, "!=", 1.0).holds
    assert not check("", "", 1.0, ">", 1.0).holds
    assert not check("", "", 1.0, "~", 1.2, within=0.1).holds
    assert not check("", "", [1.0, 2.0], "=", [2.0, 1.0]).holds, "the means agree, the rows do not"
    assert not check("", "", math.nan, "=", math.nan).holds
    with pytest.raises(ValueError, match="relation"):
        check("", "", 1.0, "<>", 1.0)


def test_claims_refuse_what_they_cannot_list() -> None:
    with pytest.raises(ValueError, match="2 to 8 hidden"):
        claims(opinionated(), canvases(1, 1))
    with pytest.raises(ValueError, match="tau > 0"):
        claims(opinionated(), canvases(1, 3), tau=0.0)
