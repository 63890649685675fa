"""The lattice of a real denoiser, the beam and the oracles, against the decoding loop and brute force."""

import pytest
import torch

from support.canvases import canvases
from support.denoisers import opinionated
from support.tables import tabular_scheduler
from unmask.decoding.loop import trajectory_logp, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Scheduler, View
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.heuristics import confidence, entropy, gt_logp, left_to_right, look_ahead, margin, random
from unmask.tasks.sudoku.task import expert
from unmask.theory.beam import beam_order
from unmask.theory.lattice import lattice, revealed, scheduler_logv
from unmask.theory.oracles import best, worst
from unmask.theory.orders import (
    all_orders,
    along,
    best_order,
    expected_return,
    log_p_seq,
    policy_gradient,
    return_variance,
    worst_order,
)
from unmask.theory.states import choice_logp


def test_lattice_prices_every_state_as_the_loop_does() -> None:
    denoiser, canvas = opinionated(), canvases(1, 5)
    grid = lattice(denoiser, canvas.tokens[0], canvas.truth[0], rows_at_once=7)
    assert grid.denoiser_calls == 2**5 - 1
    orders = all_orders(5)
    priced = trajectory_logp(denoiser, canvas.truth.repeat(len(orders), 1), grid.positions[orders])
    assert torch.allclose(along(grid.logp, orders), priced.double().sum(1), atol=1e-4)
    assert bool((grid.logp == -torch.inf).eq(revealed(5)).all())


@pytest.mark.parametrize(
    "scheduler", [confidence, margin, entropy, left_to_right, random, gt_logp, expert, look_ahead(2), best(), worst()]
)
def test_greedy_policy_on_the_lattice_is_the_decoded_order(scheduler: Scheduler) -> None:
    denoiser, canvas = opinionated(1), canvases(3, 5, seed=2)
    trajectory = unmask(
        denoiser, scheduler, Canvas(canvas.tokens, target=canvas.target, seeds=torch.full((3,), 11)), forced=True
    )
    for row in range(3):
        grid = lattice(denoiser, canvas.tokens[row], canvas.truth[row])
        logv = scheduler_logv(grid, scheduler, 0.0, seed=11)
        step = torch.searchsorted(grid.positions, trajectory.order[row])
        assert float(along(logv, step[None])[0]) == 0
        assert float(log_p_seq(grid.logp, logv)) == pytest.approx(float(trajectory.total_logp[row]), abs=1e-4)


def test_decoded_choices_have_the_lattice_probability() -> None:
    denoiser, canvas = opinionated(2), canvases(1, 4)
    grid = lattice(denoiser, canvas.tokens[0], canvas.truth[0])
    tokens, target = canvas.tokens.repeat(50, 1), canvas.truth.repeat(50, 1)
    trajectory = unmask(
        denoiser, confidence, Canvas(tokens, target=target), Decoding(order_temperature=0.5), forced=True
    )
    steps = torch.searchsorted(grid.positions, trajectory.order)
    logv = scheduler_logv(grid, confidence, 0.5)
    assert torch.allclose(along(logv, steps), trajectory.order_logp.double().sum(1), atol=1e-4)


def test_sampled_returns_agree_with_the_exact_mean_and_gradient() -> None:
    """A tabular scheduler decodes; its REINFORCE estimate falls within its own error of the exact gradient."""
    denoiser, canvas, tau, draws = opinionated(3), canvases(1, 4, seed=1), 0.7, 6000
    grid = lattice(denoiser, canvas.tokens[0], canvas.truth[0])
    scores = torch.randn(16, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logv = choice_logp(scores.masked_fill(revealed(4), -torch.inf), tau)
    trajectory = unmask(
        denoiser,
        tabular_scheduler(grid, scores),
        Canvas(canvas.tokens.repeat(draws, 1), target=canvas.truth.repeat(draws, 1)),
        Decoding(order_temperature=tau),
        forced=True,
        record=False,
    )
    returns = trajectory.total_logp.double()
    exact, error = float(expected_return(grid.logp, logv)), (float(return_variance(grid.logp, logv)) / draws) ** 0.5
    assert abs(float(returns.mean()) - exact) < 4 * error
    leaf = scores.clone().requires_grad_()
    policy = choice_logp(leaf.masked_fill(revealed(4), -torch.inf), tau)
    steps = torch.searchsorted(grid.positions, trajectory.order)
    ((returns - exact) * along(policy, steps)).mean().backward()
    assert leaf.grad is not None
    gradient = policy_gradient(grid.logp, logv, tau)
    off = float((leaf.grad - gradient).abs().max())
    assert off < 5 * float(returns.std()) / (tau * draws**0.5)
    assert off < float(gradient.abs().max()) / 4


def test_exact_gradient_reaches_a_scheduler_with_parameters() -> None:
    denoiser, canvas = opinionated(4), canvases(1, 4)
    grid = lattice(denoiser, canvas.tokens[0], canvas.truth[0])
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    def value(w: torch.Tensor) -> torch.Tensor:
        def scheduler(view: View) -> torch.Tensor:
            return w * view.confidence.masked_fill(~view.eligible, 0.0)

        return expected_return(grid.logp, scheduler_logv(grid, scheduler, 1.0))

    value(weight).backward()
    with torch.no_grad():
        slope = (value(weight + 1e-2) - value(weight - 1e-2)) / 2e-2
    assert weight.grad is not None
    assert float(weight.grad) == pytest.approx(float(slope), rel=1e-3)


def test_beam_is_exact_when_wide_and_a_bound_when_narrow() -> None:
    denoiser, canvas = opinionated(5), canvases(2, 6, seed=3)
    for tokens, target in zip(canvas.tokens, canvas.truth, strict=True):
        grid = lattice(denoiser, tokens, target)
        for flag, extreme in ((False, best_order), (True, worst_order)):
            order, value = extreme(grid.logp)
            found, reached = beam_order(denoiser, tokens, target, width=20, worst=flag)
            assert reached == pytest.approx(value, abs=1e-5)
            assert found.tolist() == grid.positions[order].tolist()
        _, narrow = beam_order(denoiser, tokens, target, width=1)
        assert narrow <= best_order(grid.logp)[1] + 1e-5


@pytest.mark.parametrize("exact", [12, 0])
@pytest.mark.parametrize("block", [None, 6])
def test_oracles_reach_the_ends_of_the_scale(exact: int, block: int | None) -> None:
    """Against every order that the blocks allow, with lattice and with a wide beam; rows differ, so they must not mix."""
    denoiser, canvas = opinionated(6), canvases(3, 6, seed=4)
    decoding = Decoding(block=block)
    region = torch.ones_like(canvas.tokens, dtype=torch.bool)
    ends = [
        unmask(
            denoiser, scheduler, Canvas(canvas.tokens, target=canvas.target, region=region), decoding, forced=True
        ).total_logp
        for scheduler in (best(exact, width=20), worst(exact, width=20))
    ]
    for row in range(3):
        grid = lattice(denoiser, canvas.tokens[row], canvas.truth[row])
        orders = all_orders(6)
        allowed = torch.ones(len(orders), dtype=torch.bool)
        if block is not None:
            allowed = ((grid.positions // block)[orders].diff(dim=1) >= 0).all(1)
        returns = along(grid.logp, orders[allowed])
        assert float(ends[0][row]) == pytest.approx(float(returns.max()), abs=1e-4)
        assert float(ends[1][row]) == pytest.approx(float(returns.min()), abs=1e-4)


def test_oracles_plan_once_and_their_calls_count() -> None:
    denoiser, canvas = opinionated(), canvases(2, 4)
    trajectory = unmask(denoiser, best(), Canvas(canvas.tokens, target=canvas.target), forced=True)
    assert trajectory.denoiser_calls == 2 * (4 + 2**4 - 1)
    with pytest.raises(ValueError, match="oracle"):
        unmask(denoiser, best(), canvas.tokens)
    with pytest.raises(ValueError, match="exact must be"):
        best(exact=30)


def test_candidates_leave_the_rest_hidden() -> None:
    denoiser, canvas = opinionated(), canvases(1, 6)
    tokens, target = canvas.tokens[0], canvas.truth[0]
    positions = torch.nonzero(tokens == 0)[:, 0]
    candidates = torch.zeros_like(tokens, dtype=torch.bool).index_fill(0, positions[1:4], True)
    grid = lattice(denoiser, tokens, target, candidates=candidates)
    assert grid.positions.tolist() == positions[1:4].tolist()
    whole = lattice(denoiser, tokens, target)
    # Bit j of the small lattice is bit j + 1 of the whole one.
    assert torch.allclose(grid.logp, whole.logp[torch.arange(8) * 2][:, 1:4], atol=1e-5)


def test_what_cannot_be_enumerated_is_refused() -> None:
    denoiser = opinionated()
    with pytest.raises(ValueError, match="hides nothing"):
        lattice(denoiser, torch.ones(16, dtype=torch.long), torch.ones(16, dtype=torch.long))
    config = TransformerConfig(vocab_size=5, width=24, n_layers=1, n_heads=3, ffn=32, mask_id=0, max_length=32)
    with pytest.raises(ValueError, match="beam_order"):
        lattice(Transformer(config), torch.zeros(17, dtype=torch.long), torch.ones(17, dtype=torch.long))
    with pytest.raises(ValueError, match="width = 0"):
        beam_order(denoiser, torch.zeros(16, dtype=torch.long), torch.ones(16, dtype=torch.long), width=0)
