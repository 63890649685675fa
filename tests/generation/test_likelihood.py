"""Likelihoods of orders: exact where the joint is known, and `trajectory_logp` equal to the loop that it stands for."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from support.denoisers import CountingTable, JointTable, text_denoiser
from support.reference import distributions, puzzles
from unmask.decoding.loop import trajectory_logp, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Scheduler, View
from unmask.schedulers.heuristics import confidence, margin, random
from unmask.schedulers.loading import load_scheduler


def all_orders(length: int) -> Tensor:
    return torch.tensor(list(itertools.permutations(range(length))))


def follow(order: Tensor, length: int) -> Scheduler:
    """Reveals each row in its given order."""
    scores = torch.zeros(len(order), length)
    for row, k in torch.nonzero(order >= 0).tolist():
        scores[row, order[row, k]] = -k
    return lambda view: scores[view.rows]


def test_every_order_gives_the_joint_probability() -> None:
    """The chain rule, forwards and backwards: 24 orders of 4 positions, sequences likely and unlikely."""
    oracle, orders = JointTable(length=4, tokens=3), all_orders(4)
    canvas = torch.full((len(orders), 4), oracle.mask_id)
    for place in (0, 17, 44, 80, int(oracle.joint.argmax()), int(oracle.joint.argmin())):
        target = oracle.sequences()[place].expand(len(orders), -1)
        exact = oracle.joint.flatten()[place].log().float().expand(len(orders))
        trajectory = unmask(oracle, follow(orders, 4), Canvas(canvas, target=target), forced=True)
        assert torch.equal(trajectory.order, orders)
        torch.testing.assert_close(trajectory.total_logp, exact, atol=1e-5, rtol=0)
        torch.testing.assert_close(trajectory_logp(oracle, target, orders).sum(1), exact, atol=1e-5, rtol=0)


def test_the_oracle_given_clues() -> None:
    oracle, orders = JointTable(length=4, tokens=3, seed=1), torch.tensor([[0, 2, 3], [3, 2, 0], [2, 0, 3]])
    target = torch.tensor([[2, 1, 0, 2]]).expand(3, -1)
    exact = oracle.joint[2, 1, 0, 2].log() - oracle.joint[:, 1].sum().log()
    torch.testing.assert_close(
        trajectory_logp(oracle, target, orders).sum(1), exact.float().expand(3), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(
    "name", ["confidence", "entropy", "right_to_left", "random", "gumbel_confidence", "look_ahead"]
)
@pytest.mark.parametrize("decoding", [Decoding(), Decoding(steps=2), Decoding(block=2, order_temperature=0.5)])
def test_likelihoods_sum_to_one(name: str, decoding: Decoding) -> None:
    """Whatever the denoiser and the order, Σ_x p(x | σ(x)) = 1, for the order may only depend on what is revealed.

    A scheduler that peeked at the target would break it; all rows share a seed, so that random orders are functions too.
    """
    denoiser = CountingTable(vocabulary=4, mask_id=3)
    target = torch.tensor(list(itertools.product(range(3), repeat=4)))
    canvas = torch.full_like(target, denoiser.mask_id)
    seeds = torch.full((len(target),), 5)
    trajectory = unmask(
        denoiser, load_scheduler(name), Canvas(canvas, target=target, seeds=seeds), decoding, forced=True
    )
    assert trajectory.total_logp.double().exp().sum().item() == pytest.approx(1, abs=1e-5)


def test_an_oracle_scheduler_reads_the_target() -> None:
    denoiser = CountingTable(vocabulary=4, mask_id=3)
    target = torch.tensor(list(itertools.product(range(3), repeat=4)))
    trajectory = unmask(
        denoiser, load_scheduler("gt_logp"), Canvas(torch.full_like(target, 3), target=target), forced=True
    )
    assert abs(trajectory.total_logp.exp().sum().item() - 1) > 1e-3


def test_the_joint_is_recovered() -> None:
    oracle = JointTable(length=4, tokens=3, seed=2)
    target = oracle.sequences()
    trajectory = unmask(oracle, confidence, Canvas(torch.full_like(target, oracle.mask_id), target=target), forced=True)
    torch.testing.assert_close(trajectory.total_logp.double().exp(), oracle.joint.flatten(), atol=1e-7, rtol=1e-4)
    # In one step the likelihood is the product of the marginals instead.
    once = unmask(
        oracle,
        confidence,
        Canvas(torch.full_like(target, oracle.mask_id), target=target),
        Decoding(steps=1),
        forced=True,
    )
    marginals = [oracle.joint.sum([j for j in range(4) if j != i]) for i in range(4)]
    product = torch.stack([m[target[:, i]] for i, m in enumerate(marginals)]).prod(0)
    torch.testing.assert_close(once.total_logp.double().exp(), product, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("rows_at_once", [1, 3, 256])
@pytest.mark.parametrize("decoding", [Decoding(), Decoding(block=4, steps=5), Decoding(steps=2, order_temperature=1.0)])
def test_trajectory_logp_of_a_given_order_matches_the_loop(decoding: Decoding, rows_at_once: int) -> None:
    denoiser = CountingTable()
    tokens, target = puzzles(denoiser, 7, 9)
    trajectory = unmask(denoiser, margin, Canvas(tokens, target=target), decoding, forced=True)
    states = {tuple(canvas) for batch in denoiser.canvases for canvas in batch.tolist()}
    before = denoiser.forwarded
    logp = trajectory_logp(denoiser, target, trajectory.order, trajectory.step, rows_at_once=rows_at_once)
    assert torch.equal(logp, trajectory.logp)
    assert denoiser.forwarded - before == len(states) <= trajectory.denoiser_calls
    assert sum(denoiser.priced[-math.ceil(len(states) / rows_at_once) :]) == int(trajectory.reveals.sum())


def test_without_steps_each_reveal_is_its_own() -> None:
    denoiser = CountingTable()
    tokens, target = puzzles(denoiser, 6, 8, seed=4)
    order = unmask(denoiser, random, Canvas(tokens, target=target), Decoding(steps=3), forced=True).order
    logp = trajectory_logp(denoiser, target, order)
    assert torch.equal(logp, unmask(denoiser, follow(order, 8), Canvas(tokens, target=target), forced=True).logp)
    for row in range(len(tokens)):
        canvas = tokens[row].tolist()
        for k, i in enumerate(order[row].tolist()):
            if i < 0:
                assert logp[row, k] == 0
                continue
            expected = math.log(distributions(denoiser, canvas)[i][int(target[row, i])])
            assert logp[row, k].item() == pytest.approx(expected, abs=1e-5)
            canvas[i] = int(target[row, i])


def test_equal_states_are_one_forward() -> None:
    """All orders of a canvas pass through its 2^n − 1 partial canvases, however many rows there are."""
    denoiser = CountingTable()
    orders = all_orders(4)
    target = torch.tensor([[0, 1, 2, 4]]).expand(len(orders), -1)
    logp = trajectory_logp(denoiser, target, orders)
    assert denoiser.forwarded == 2**4 - 1
    assert len({round(x, 4) for x in logp.sum(1).tolist()}) > 20  # no joint: its orders differ


@pytest.mark.parametrize("left", [True, False])
def test_padding_and_likelihoods(left: bool) -> None:
    denoiser = text_denoiser()
    target = torch.tensor([[5, 6, 7, 8, 9, 10]])
    order = torch.tensor([[3, 5, 0, 4]])
    alone = trajectory_logp(denoiser, target, order)
    padding = torch.full((1, 3), 11)
    padded = torch.cat([padding, target] if left else [target, padding], 1)
    attention = torch.ones_like(padded, dtype=torch.bool)
    attention[:, :3] = not left
    attention[:, 6:] &= left
    moved = order + 3 if left else order
    torch.testing.assert_close(
        trajectory_logp(denoiser, padded, moved, attention=attention), alone, atol=1e-5, rtol=1e-5
    )
    both = trajectory_logp(
        denoiser, padded.expand(2, -1), moved.expand(2, -1), attention=torch.stack([attention[0], attention[0] | True])
    )
    torch.testing.assert_close(both[:1], alone, atol=1e-5, rtol=1e-5)
    assert (both[1] - both[0]).abs().max() > 1e-3  # the same tokens with another mask are another state


def test_positions_that_are_no_candidates_stay_hidden() -> None:
    """A trajectory that leaves positions hidden: its own canvas is the target of its likelihood."""
    denoiser = CountingTable()
    tokens = torch.full((1, 7), denoiser.mask_id)
    candidates = torch.tensor([[True, False, True, True, False, True, True]])
    trajectory = unmask(denoiser, confidence, Canvas(tokens, candidates=candidates))
    assert torch.equal(trajectory_logp(denoiser, trajectory.tokens, trajectory.order, trajectory.step), trajectory.logp)


def test_orders_are_checked() -> None:
    denoiser = CountingTable()
    target = torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="twice"):
        trajectory_logp(denoiser, target, torch.tensor([[0, 1], [2, 2]]))
    assert trajectory_logp(denoiser, target, torch.full((2, 3), -1)).tolist() == [[0, 0, 0]] * 2
    assert denoiser.forwarded == 0


def test_rank_inverts_the_order() -> None:
    denoiser = CountingTable()
    tokens, _ = puzzles(denoiser, 5, 8)
    trajectory = unmask(denoiser, confidence, tokens)
    for row, k in torch.nonzero(trajectory.order >= 0).tolist():
        assert trajectory.rank[row, trajectory.order[row, k]] == k
    assert torch.equal(trajectory.rank >= 0, tokens == denoiser.mask_id)
    assert torch.equal(trajectory.reveals, (tokens == denoiser.mask_id).sum(1))


def test_the_view_hides_the_target_from_all_but_oracles() -> None:
    denoiser = CountingTable()
    tokens, target = puzzles(denoiser, 5, 8)
    seen: list[View] = []

    def spy(view: View) -> Tensor:
        seen.append(view)
        return view.confidence

    unmask(denoiser, spy, Canvas(tokens, target=target), forced=True)
    assert seen and all(view.reference is None and view.reference_logp is None for view in seen)
