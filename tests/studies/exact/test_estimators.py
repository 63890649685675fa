"""Estimators of the policy gradient against the exact one, and against autograd through the trainer's own loss."""

import dataclasses

import pytest
import torch

from support.denoisers import opinionated
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.policy import OrderPolicy
from unmask.theory.lattice import Lattice, lattice, scheduler_logv
from unmask.theory.orders import all_orders, along, expected_return, sample_orders
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.decisions import Rollout
from unmask.training.policy.methods import choose_method
from unmask.training.policy.objectives import policy_loss
from unmask.training.policy.rollout import collect
from unmask_studies.exact.boards import unique_boards
from unmask_studies.exact.estimators import (
    Estimator,
    Slopes,
    compute_slopes,
    exact_gradient,
    expected_gradient,
    immediate_gradient,
    measure_quality,
    sample_gradients,
)
from unmask_studies.exact.four_by_four import FourByFour

FLOOR = -3.0
"""High enough to bite, so that a forgotten floor is seen."""


def policy_of(kind: str = "grid", temperature: float = 1.0) -> OrderPolicy:
    """A small policy away from its zero readout: every parameter has a slope."""
    shape = PolicyConfig(kind=kind, width=4, n_layers=1, n_heads=2, temperature=temperature)
    torch.manual_seed(0)
    policy = OrderPolicy(dataclasses.replace(shape, size=4, length=16, vocab_size=5, hidden_width=24))
    for weight in policy.parameters():
        weight.data += 0.2 * torch.randn_like(weight)
    return policy


def board(clues: str = "10", nth: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, truths = list(unique_boards(nth + 1, clues))[nth]
    return tokens, truths[0]


def flat(policy: OrderPolicy, value: torch.Tensor) -> torch.Tensor:
    found = torch.autograd.grad(value, list(policy.parameters()), materialize_grads=True)
    return torch.cat([part.flatten() for part in found]).double()


def recorded(rollout: Rollout, positions: torch.Tensor, group: int) -> torch.Tensor:
    """The orders of one canvas's rollouts, from their decisions; the last reveal was forced and is what is left."""
    n = len(positions)
    chosen = torch.searchsorted(positions, rollout.chosen).view(group, n - 1)
    return torch.cat([chosen, n * (n - 1) // 2 - chosen.sum(1, keepdim=True)], 1)


def floored(grid: Lattice) -> torch.Tensor:
    return torch.where(grid.logp == -torch.inf, -torch.inf, grid.logp.clamp(min=FLOOR))


@pytest.mark.parametrize("kind", ["grid", "mlp", "transformer", "hidden"])
def test_exact_gradient_is_autograd_through_all_orders(kind: str) -> None:
    denoiser = opinionated()
    policy = policy_of(kind, temperature=0.7)
    grid = lattice(denoiser, *board("11"))
    canvas = compute_slopes(grid, policy, FLOOR)
    assert bool((floored(grid) != grid.logp).any())
    value = expected_return(floored(grid), scheduler_logv(grid, policy, 0.7))
    direct = flat(policy, value)
    assert torch.allclose(exact_gradient(canvas), direct, atol=1e-5 * float(direct.norm()), rtol=1e-4)


@pytest.mark.parametrize(
    ("advantage", "group", "normalise"),
    [
        ("trajectory", 4, True),
        ("trajectory", 3, False),
        ("reward_to_go", 4, True),
        ("reward_to_go", 3, False),
        ("all_action", 4, True),
        ("all_action", 1, False),
        ("critic", 4, False),
        ("critic", 1, False),
    ],
)
def test_an_estimate_is_the_gradient_of_the_trainers_loss(advantage: str, group: int, normalise: bool) -> None:
    denoiser = opinionated()
    policy = policy_of()
    tokens, target = board()
    config = PolicyTraining(prompts=1, group=group, advantage=advantage, normalise=normalise, reward_floor=FLOOR)
    rollout = collect(
        denoiser, choose_method(config, policy), Canvas(tokens=tokens[None], target=target[None]), torch.arange(group)
    )
    rows = torch.arange(len(rollout))
    loss, _ = policy_loss(choose_method(config, policy), rollout, rows)
    grid = lattice(denoiser, tokens, target)
    canvas = compute_slopes(grid, policy, FLOOR)
    n = len(grid.positions)
    hidden = rollout.observed(rows)["hidden"][:, grid.positions].view(group, n - 1, n).sum(2)
    assert hidden.tolist() == [list(range(n, 1, -1))] * group
    estimator = Estimator(advantage, "group", normalise and advantage != "all_action")
    orders = recorded(rollout, grid.positions, group)
    estimate = sample_gradients(canvas, estimator, orders[None], config.std_floor)[0]
    trained = -flat(policy, loss) * (n - 1)
    assert float(trained.norm()) > 1e-3
    assert torch.allclose(estimate, trained, atol=1e-5)


def test_leaving_oneself_out_is_the_trainers_future_weight() -> None:
    """future = G/(G − 1) makes the trainer's all_action unbiased."""
    denoiser = opinionated()
    policy = policy_of()
    tokens, target = board()
    config = PolicyTraining(prompts=1, group=3, advantage="all_action", future=3 / 2, reward_floor=FLOOR)
    rollout = collect(
        denoiser, choose_method(config, policy), Canvas(tokens=tokens[None], target=target[None]), torch.arange(3)
    )
    loss, _ = policy_loss(choose_method(config, policy), rollout, torch.arange(len(rollout)))
    grid = lattice(denoiser, tokens, target)
    orders = recorded(rollout, grid.positions, 3)
    estimate = sample_gradients(compute_slopes(grid, policy, FLOOR), Estimator("all_action"), orders[None])[0]
    assert torch.allclose(estimate, -flat(policy, loss) * (orders.shape[1] - 1), atol=1e-5)


@pytest.fixture(scope="module")
def canvas() -> Slopes:
    """Four positions, 24 orders: 576 pairs of them."""
    denoiser = opinionated()
    return compute_slopes(lattice(denoiser, *board("12", 2)), policy_of())


@pytest.mark.parametrize("baseline", ["group", "leave_one_out"])
@pytest.mark.parametrize(
    "advantage", ["trajectory", "reward_to_go", "critic", "all_action", "exact_baseline", "exact_future"]
)
def test_means_over_all_pairs_of_orders(canvas: Slopes, advantage: str, baseline: str) -> None:
    """The expectation of an estimator, by listing every group of two, is the closed form."""
    orders = all_orders(4)
    chance = along(canvas.logv, orders).exp()
    pairs = torch.cartesian_prod(torch.arange(24), torch.arange(24))
    weight = chance[pairs].prod(1)
    assert float(weight.sum()) == pytest.approx(1)
    estimator = Estimator(advantage, baseline)
    listed = weight @ sample_gradients(canvas, estimator, orders[pairs])
    exact = exact_gradient(canvas)
    assert torch.allclose(listed, expected_gradient(canvas, estimator, 2), atol=1e-10)
    if baseline == "leave_one_out" or advantage.startswith("exact"):
        assert torch.allclose(listed, exact, atol=1e-10)
    elif advantage != "all_action":
        assert torch.allclose(listed, exact / 2, atol=1e-10)
    else:
        assert torch.allclose(listed, (exact + immediate_gradient(canvas)) / 2, atol=1e-10)
        assert float((listed - exact).norm()) > 0.05 * float(exact.norm())


def test_groups_of_one_see_no_future(canvas: Slopes) -> None:
    orders = all_orders(4)
    chance = along(canvas.logv, orders).exp()
    listed = chance @ sample_gradients(canvas, Estimator("all_action", "group"), orders[:, None])
    assert torch.allclose(listed, immediate_gradient(canvas), atol=1e-10)
    assert float((listed - exact_gradient(canvas)).norm()) > 0.1 * float(exact_gradient(canvas).norm())


def test_quality_measures_what_is_known(canvas: Slopes) -> None:
    estimators = [Estimator(name) for name in ("trajectory", "all_action", "exact_future")]
    estimators += [Estimator("all_action", "group"), Estimator("trajectory", "group", normalised=True)]
    trajectory, all_action, ideal, shrunk, paper = measure_quality([canvas], estimators, 2, 4000)
    for unbiased in (trajectory, all_action, ideal):
        assert unbiased.known_bias == pytest.approx(0, abs=1e-9)
        assert unbiased.bias < 3 * unbiased.bias_error
        assert unbiased.cosine > 0.9
    assert shrunk.known_bias is not None
    assert shrunk.known_bias == pytest.approx(shrunk.bias, abs=3 * shrunk.bias_error)
    assert paper.known_bias is None
    assert ideal.variance < all_action.variance / 3
    # Variance again, from the definition.
    orders = sample_orders(canvas.logv, 8000, torch.Generator().manual_seed(0)).view(4000, 2, -1)
    estimates = sample_gradients(canvas, estimators[0], orders)
    assert trajectory.variance == pytest.approx(2 * float(estimates.var(0).sum()))


def test_unknown_estimators_are_refused(canvas: Slopes) -> None:
    with pytest.raises(ValueError, match="expected an advantage among trajectory"):
        Estimator("oracle")
    with pytest.raises(ValueError, match="not normalised"):
        Estimator("all_action", normalised=True)
    with pytest.raises(ValueError, match="no closed form"):
        expected_gradient(canvas, Estimator("trajectory", normalised=True), 2)
    with pytest.raises(ValueError, match="groups of at least 2"):
        FourByFour(orders=48, group=5)


def test_small_study() -> None:
    """Both tables come out, and what must hold by definition does."""
    config = FourByFour(
        arms=("all_action_unbiased",),
        steps=2,
        orders=6,
        group=3,
        policy=PolicyConfig(width=4, n_layers=1),
        estimator_clues="11",
        puzzles=3,
        clues="11",
        ambiguous=2,
        ambiguous_clues=10,
        estimator_canvases=1,
        group_sizes=(2,),
        groups=20,
    )
    found = config.run(load_denoiser("sudoku-4x4"))
    by_name = {(row.boards, row.scheduler): row for row in found.standings}
    assert found.calls["all_action_unbiased"] > 0
    for boards in ("unique", "ambiguous"):
        best = by_name[boards, "optimum"]
        assert best.share == pytest.approx(1)
        assert by_name[boards, best.base].share == pytest.approx(0)
        assert all(
            row.value <= best.value + 1e-9
            for key, row in by_name.items()
            if key[0] == boards and key[1] != "clairvoyant"
        )
        assert by_name[boards, "clairvoyant"].value >= best.value - 1e-9
        # An untrained policy is confidence.
        assert by_name[boards, "untrained"].value == pytest.approx(by_name[boards, "confidence"].value)
    assert ("ambiguous", "expert") not in by_name
    assert {name: len(rows) for name, rows in found.qualities.items()} == {"untrained": 9, "all_action_unbiased": 9}
