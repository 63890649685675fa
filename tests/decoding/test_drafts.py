"""Drafts change nothing but how many forwards wait for each other: every bit of the trajectory is that of the plain loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from support.denoisers import CountingTable, text_denoiser
from support.reference import PLAIN_PACES, puzzles
from unmask.decoding.drafts import _plan
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler, Trajectory, View
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import SCHEDULERS, load_scheduler
from unmask.tasks.sudoku.task import SudokuTask

BOARD = SudokuTask.generate(3, 4, "7-8", "test", 0).canvas(range(3))
DECODINGS = {
    "blocks": Decoding(block=6),
    "budget": Decoding(block=8, steps=5),
    "drawn order": Decoding(order_temperature=0.5),
    "drawn tokens": Decoding(token_temperature=1.0, top_p=0.9),
    "shared": Decoding(share=True),
    "revised": Decoding(revision="t2m:p=0.4"),
    "replaced": Decoding(revision="t2t:p=0.4", steps=6),
}


def assert_lossless(
    denoiser: Denoiser, scheduler: Scheduler, canvas: Canvas, decoding: Decoding, draft: int = 8, forced: bool = False
) -> tuple[Trajectory, Trajectory]:
    """The plain trajectory and the drafted one, equal in every bit, every recorded state included."""
    plain = unmask(denoiser, scheduler, canvas, decoding, forced=forced)
    drafted = unmask(denoiser, scheduler, canvas, replace(decoding, draft=draft), forced=forced)
    for name in ("tokens", "order", "step", "logp", "order_logp", "score"):
        assert torch.equal(getattr(plain, name), getattr(drafted, name)), name
    assert plain.states is not None and drafted.states is not None
    for name, mine in vars(plain.states).items():
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, getattr(drafted.states, name)), name
    if plain.revisions is not None:
        for name, mine in vars(plain.revisions).items():
            assert torch.equal(mine, getattr(drafted.revisions, name)), name
    assert drafted.steps <= plain.steps
    return plain, drafted


@pytest.mark.parametrize("name", [*SCHEDULERS, "sas"])
def test_every_scheduler(name: str) -> None:
    denoiser = load_denoiser("sudoku-4x4-imperfect")
    scheduler = load_scheduler(name, denoiser, "sudoku-4x4-imperfect")
    assert_lossless(denoiser, scheduler, BOARD, Decoding())
    assert_lossless(denoiser, scheduler, BOARD.rows(slice(1)), Decoding(), draft=3)


@pytest.mark.parametrize("pace", PLAIN_PACES)
def test_every_pace(pace: str) -> None:
    denoiser = load_denoiser("sudoku-4x4-imperfect")
    assert_lossless(denoiser, confidence, BOARD, Decoding(steps=6, pace=pace))


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize("name", DECODINGS)
def test_every_decoding(name: str, forced: bool) -> None:
    denoiser = CountingTable(end_ids=(0,), pad_id=6)
    tokens, target = puzzles(denoiser, 5, 11)
    assert_lossless(denoiser, confidence, Canvas(tokens, target), DECODINGS[name], forced=forced)


def test_padding() -> None:
    denoiser = text_denoiser()
    tokens = torch.tensor([[5, 6, 12, 12, 12, 12, 9, 9], [4, 12, 12, 12, 12, 12, 12, 12]])
    attention = torch.tensor([[True] * 6 + [False] * 2, [True] * 8])
    assert_lossless(denoiser, confidence, Canvas(tokens, attention=attention), Decoding(block=3), draft=4)


def test_scores_that_stay_are_drafted_further_and_further() -> None:
    """Nothing is scored before the first canvas, which goes alone; the more often what was expected came, the longer the chain."""
    denoiser = CountingTable(scale=0.0)
    tokens = torch.full((1, 40), denoiser.mask_id)
    plain, drafted = assert_lossless(denoiser, load_scheduler("left_to_right"), Canvas(tokens), Decoding())
    assert [len(batch) for batch in denoiser.canvases[40:]] == [1, 8, 8, 8, 8, 8, 3]
    assert plain.denoiser_calls == 40 and (plain.steps, drafted.steps) == (40, 7)


@pytest.mark.parametrize(
    ("chance", "expected"),
    [
        (1.0, [{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}]),
        (0.6, [{0}, {0, 1}, {1}, {0, 1, 2}]),  # 0.6, 0.36, 0.24, 0.216; then 0.144 for {0, 2}
        (0.2, [{0}, {1}, {2}, {3}]),  # 0.2, 0.16, 0.128, 0.1024; {0, 1} has 0.2 · 0.2 + 0.16 · 0.2
    ],
)
def test_plans_hold_the_sets_that_a_row_is_likeliest_to_pass_through(chance: float, expected: list[set[int]]) -> None:
    assert [{rank for rank, filled in enumerate(row) if filled} for row in _plan(chance, 4)] == expected


def test_drafts_beside_the_chain_follow_a_swap() -> None:
    """At every other step the second best position goes first: a chain alone would be wrong there."""
    denoiser = CountingTable(scale=0.0)
    tokens = torch.full((1, 12), denoiser.mask_id)

    def swapping(view: View) -> Tensor:
        scores = view.index.float()
        best = scores.masked_fill(~view.hidden, -1).argmax(1, keepdim=True)
        return scores.scatter_add(1, best, torch.full_like(best, -1.5, dtype=scores.dtype)) if view.step % 2 else scores

    plain, drafted = assert_lossless(denoiser, swapping, Canvas(tokens), Decoding())
    assert plain.steps == 12 and drafted.steps <= 6
    assert drafted.denoiser_calls > plain.denoiser_calls


def test_a_draft_without_end_is_refused() -> None:
    """Its plans alone would fill the memory."""
    with pytest.raises(ValueError, match="draft: expected a number less than or equal to 64, got int 100000"):
        Decoding(draft=100_000)
    denoiser = load_denoiser("sudoku-4x4-imperfect")
    assert_lossless(denoiser, confidence, BOARD, Decoding(), draft=64)


def test_a_cache_cannot_be_drafted() -> None:
    with pytest.raises(ValueError, match="draft is 4, but the states of cache 'dual' depend on what came before"):
        Decoding(cache="dual", draft=4)
