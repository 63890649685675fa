"""A batch equals its rows decoded alone, whatever the other rows and the padding; and it costs no more than they do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.denoisers import CountingTable, text_denoiser
from support.reference import HEURISTICS, PLAIN_PACES, puzzles
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.paces import dilated, entropy_bound, kl_stable, less, load_pace, threshold
from unmask.decoding.protocols import Canvas, Trajectory, View
from unmask.schedulers.heuristics import confidence, look_ahead, margin, random
from unmask.schedulers.loading import load_scheduler

DECODINGS = {
    "any order": Decoding(),
    "blocks": Decoding(block=4),
    "parallel": Decoding(block=5, steps=6),
    "random order": Decoding(order_temperature=0.8),
    "random order, parallel": Decoding(steps=4, order_temperature=0.8),
    "random tokens": Decoding(token_temperature=1.0, top_p=0.9),
    "all random": Decoding(block=4, steps=6, order_temperature=2.0, token_temperature=1.3, pace=threshold(0.5)),
}
SEEDS = torch.tensor([11, 5, 2**61 + 7, 0, 3])


def assert_same(trajectory: Trajectory, row: int, alone: Trajectory, offset: int = 0) -> None:
    """Row ``row`` is the only row of ``alone``, moved right by ``offset`` positions of padding."""
    n = int(alone.reveals[0])
    assert int(trajectory.reveals[row]) == n
    assert (trajectory.order[row, :n] - offset).tolist() == alone.order[0, :n].tolist()
    assert trajectory.step[row, :n].tolist() == alone.step[0, :n].tolist()
    length = alone.tokens.shape[1]
    assert trajectory.tokens[row, offset : offset + length].tolist() == alone.tokens[0].tolist()
    for name in ("logp", "order_logp", "score"):
        mine, own = getattr(trajectory, name)[row, :n], getattr(alone, name)[0, :n]
        torch.testing.assert_close(mine, own, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scheduler", ["confidence", "gumbel_confidence", "look_ahead"])
@pytest.mark.parametrize("name", DECODINGS)
def test_mixed_puzzles(name: str, scheduler: str) -> None:
    """Rows with nothing hidden up to everything hidden, some of which end early."""
    denoiser = CountingTable(end_ids=(0,), pad_id=6)
    tokens, _ = puzzles(denoiser, 5, 10)
    rule, decoding = load_scheduler(scheduler), DECODINGS[name]
    trajectory = unmask(denoiser, rule, Canvas(tokens, seeds=SEEDS), decoding, record=False)
    for row in range(5):
        one = slice(row, row + 1)
        assert_same(
            trajectory, row, unmask(denoiser, rule, Canvas(tokens[one], seeds=SEEDS[one]), decoding, record=False)
        )


@pytest.mark.parametrize("scheduler", HEURISTICS)
def test_permuting_the_batch_permutes_the_trajectory(scheduler: str) -> None:
    denoiser = CountingTable(end_ids=(0,), pad_id=6)
    tokens, target = puzzles(denoiser, 5, 10)
    rule, decoding, turn = load_scheduler(scheduler), DECODINGS["all random"], torch.tensor([3, 0, 4, 1, 2])
    trajectory = unmask(denoiser, rule, Canvas(tokens, target=target, seeds=SEEDS), decoding)
    turned = unmask(denoiser, rule, Canvas(tokens[turn], target=target[turn], seeds=SEEDS[turn]), decoding)
    for field in ("tokens", "order", "step", "logp", "order_logp", "score"):
        assert torch.equal(getattr(trajectory, field)[turn], getattr(turned, field)), field


@pytest.mark.parametrize("name", PLAIN_PACES)
def test_every_pace(name: str) -> None:
    denoiser = CountingTable(scale=4.0)
    tokens, _ = puzzles(denoiser, 5, 10)
    decoding = Decoding(block=6, steps=7, pace=load_pace(name), order_temperature=0.3)
    trajectory = unmask(denoiser, margin, Canvas(tokens, seeds=SEEDS), decoding)
    for row in range(5):
        assert_same(
            trajectory,
            row,
            unmask(denoiser, margin, Canvas(tokens[row : row + 1], seeds=SEEDS[row : row + 1]), decoding),
        )


def prompts(mask: int) -> list[list[int]]:
    """Prompt and answer: prompts of length 0 to 5, answers of 3 to 6 with something given in them."""
    return [
        [5, 6, 7, 8, 9, mask, mask, mask],
        [mask, mask, 4, mask, mask, mask],
        [10, mask, mask, mask],
        [3, 4, 5, mask, mask, mask, 2, mask, mask],
    ]


def padded(rows: list[list[int]], left: list[bool], filler: int) -> tuple[Tensor, Tensor, list[int]]:
    """Tokens, attention and how far each row moved."""
    width = max(map(len, rows)) + 2
    tokens, attention, offsets = [], [], []
    for row, side in zip(rows, left, strict=True):
        gap = width - len(row)
        offset = gap if side else 0
        tokens.append([filler] * offset + row + [filler] * (gap - offset))
        attention.append([offset <= i < offset + len(row) for i in range(width)])
        offsets.append(offset)
    return torch.tensor(tokens), torch.tensor(attention), offsets


SIDES = {"left": [True] * 4, "right": [False] * 4, "both": [True, False, True, False]}


@pytest.mark.parametrize(("side", "filler"), [("left", 0), ("right", 0), ("both", 12)])  # 12: the mask token as padding
@pytest.mark.parametrize("name", DECODINGS)
def test_mixed_prompts(name: str, side: str, filler: int) -> None:
    denoiser = text_denoiser()
    rows = prompts(denoiser.mask_id)
    tokens, attention, offsets = padded(rows, SIDES[side], filler)
    trajectory = unmask(
        denoiser, confidence, Canvas(tokens, attention=attention, seeds=SEEDS[:4]), DECODINGS[name], record=False
    )
    assert torch.equal(trajectory.tokens[~attention], tokens[~attention])
    for row, own in enumerate(rows):
        alone = unmask(
            denoiser, confidence, Canvas(torch.tensor([own]), seeds=SEEDS[row : row + 1]), DECODINGS[name], record=False
        )
        assert_same(trajectory, row, alone, offsets[row])


@pytest.mark.parametrize("scheduler", ["random", "top_k_random", "left_to_right"])
@pytest.mark.parametrize("pace", [dilated, kl_stable(0.2, 5.0), less(0.2, 0.5, 1), entropy_bound(2.0)])
def test_mixed_prompts_under_every_kind_of_rule(scheduler: str, pace: Any) -> None:
    """Random rules included: their draws belong to the index in the region, which padding does not move."""
    denoiser = CountingTable(vocabulary=13, mask_id=12, end_ids=(1,))
    rows, rule = prompts(denoiser.mask_id), load_scheduler(scheduler)
    tokens, attention, offsets = padded(rows, SIDES["both"], filler=11)
    for decoding in (Decoding(pace=pace), Decoding(block=4, pace=pace, order_temperature=1.0, token_temperature=1.0)):
        trajectory = unmask(denoiser, rule, Canvas(tokens, attention=attention, seeds=SEEDS[:4]), decoding)
        for row, own in enumerate(rows):
            alone = unmask(denoiser, rule, Canvas(torch.tensor([own]), seeds=SEEDS[row : row + 1]), decoding)
            assert_same(trajectory, row, alone, offsets[row])


@pytest.mark.parametrize("name", ["any order", "blocks", "parallel", "all random"])
def test_finished_rows_cost_nothing(name: str) -> None:
    """Forwards: one per row and step. Prices: the eligible positions of each state, and nothing else."""
    denoiser = CountingTable(end_ids=(0,))
    tokens, _ = puzzles(denoiser, 8, 11)
    trajectory = unmask(denoiser, confidence, tokens, DECODINGS[name])
    steps = torch.where(trajectory.reveals > 0, trajectory.step.amax(1) + 1, 0)
    assert denoiser.forwarded == trajectory.denoiser_calls == int(steps.sum())
    assert [len(batch) for batch in denoiser.canvases] == [int((steps > s).sum()) for s in range(trajectory.steps)]
    assert trajectory.states is not None
    assert denoiser.priced == [
        int(trajectory.states.eligible[trajectory.states.step == s].sum()) for s in range(trajectory.steps)
    ]
    block = DECODINGS[name].block
    assert block is None or max(denoiser.priced) <= block * len(tokens)


def test_prices_all_prices_every_hidden_position() -> None:
    denoiser = CountingTable()
    tokens = torch.full((2, 9), denoiser.mask_id)

    def rule(view: View) -> Tensor:
        assert torch.equal(view.confidence > -torch.inf, view.hidden)
        return view.confidence

    rule.prices_all = True  # pyright: ignore[reportFunctionMemberAccess]
    trajectory = unmask(denoiser, rule, tokens, Decoding(block=3))
    assert denoiser.priced == [2 * n for n in range(9, 0, -1)]
    assert torch.equal(trajectory.order, unmask(denoiser, confidence, tokens, Decoding(block=3)).order)


@pytest.mark.parametrize("name", DECODINGS)
def test_shared_canvases_are_priced_once(name: str) -> None:
    """A group of orders from one prompt begins with one canvas: the same trajectories for fewer forwards."""
    plain, sharing = CountingTable(), CountingTable()
    tokens, _ = puzzles(plain, 4, 8)
    group = tokens.repeat_interleave(5, dim=0)
    seeds = torch.arange(20)
    trajectories = [
        unmask(d, confidence, Canvas(group, seeds=seeds), replace(DECODINGS[name], share=share))
        for d, share in ((plain, False), (sharing, True))
    ]
    for field in ("tokens", "order", "step", "logp", "order_logp", "score"):
        assert torch.equal(getattr(trajectories[0], field), getattr(trajectories[1], field)), field
    distinct = sum(len(batch.unique(dim=0)) for batch in plain.canvases)
    assert sharing.forwarded == distinct < plain.forwarded
    assert trajectories[1].denoiser_calls == distinct


def test_sharing_respects_padding() -> None:
    """Equal tokens under different attention are different canvases."""
    denoiser = CountingTable()
    tokens = torch.full((2, 6), denoiser.mask_id)
    attention = torch.ones_like(tokens, dtype=torch.bool)
    attention[1, 4:] = False
    trajectory = unmask(denoiser, confidence, Canvas(tokens, attention=attention), Decoding(share=True))
    assert trajectory.reveals.tolist() == [6, 4]
    assert_same(trajectory, 1, unmask(denoiser, confidence, tokens[:1, :4]))


def test_look_ahead_sees_no_padding() -> None:
    denoiser = text_denoiser(end_ids=())
    row = [5, 6, 12, 12, 12, 12, 12, 12]
    alone = unmask(denoiser, look_ahead(2), torch.tensor([row]))
    tokens, attention, offsets = padded([row, row[:5]], [True, True], filler=9)
    trajectory = unmask(denoiser, look_ahead(2), Canvas(tokens, attention=attention))
    assert_same(trajectory, 0, alone, offsets[0])


def test_random_orders_differ_between_rows_and_steps() -> None:
    denoiser = CountingTable()
    trajectory = unmask(denoiser, random, torch.full((30, 8), denoiser.mask_id))
    assert len({tuple(order) for order in trajectory.order.tolist()}) == 30
    # Fresh numbers at each step: otherwise a row's order would be the sorting of its first draws.
    first = {}

    def spy(view: View) -> Tensor:
        first.setdefault(view.step, random(view))
        return random(view)

    unmask(denoiser, spy, torch.full((1, 8), denoiser.mask_id))
    assert not torch.equal(first[0], first[1])


def test_complete_canvases_need_no_denoiser() -> None:
    denoiser = CountingTable()
    tokens = torch.tensor([[1, 2, 4], [0, 5, 6]])
    trajectory = unmask(denoiser, confidence, tokens, Decoding(block=2, steps=2))
    assert torch.equal(trajectory.tokens, tokens)
    assert (trajectory.denoiser_calls, trajectory.steps, tuple(trajectory.order.shape)) == (0, 0, (2, 0))
