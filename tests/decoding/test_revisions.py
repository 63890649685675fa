"""Revisions against a plain reference; what they never touch, that they end, that a row does not depend on its batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.denoisers import CountingTable, Fixed, text_denoiser
from support.reference import HEURISTICS, PLAIN_PACES, PLAIN_REVISIONS, distributions, puzzles
from unmask.decoding.loop import trajectory_logp, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Trajectory, View
from unmask.decoding.revisions import load_revision
from unmask.decoding.standing import Standing
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import load_scheduler

RULES = {"t2t": "t2t:p=0.35", "t2m": "t2m:p=0.35", "p2": "p2:eta=1.0"}


@dataclass
class Plain:
    tokens: list[int]
    order: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    taken: list[tuple[int, int, int, int]] = field(default_factory=list)


def plain_revision(denoiser: Any, tokens: list[int], rule: str, budget: float, block: int | None) -> Plain:
    """One row, one reveal a step, the most confident first; a block is left when a look at it changes nothing."""
    mask, canvas = denoiser.mask_id, list(tokens)
    where = [i for i, token in enumerate(tokens) if token == mask]
    done, left, now = Plain(canvas), int(budget * len(where)), 0
    width = block or len(tokens)
    starts = range(where[0], where[-1] + 1, width) if where else ()
    for inside in ([i for i in where if start <= i < start + width] for start in starts):
        watched = False
        while any(canvas[i] == mask for i in inside) or watched:
            p = distributions(denoiser, canvas)
            hidden = [i for i in inside if canvas[i] == mask]
            doubts = sorted(doubted(rule, p, canvas, inside, hidden).items(), key=lambda item: (-item[1], item[0]))
            chosen = sorted(hidden, key=lambda i: (-max(p[i]), i))[:1]
            for i in chosen:
                done.order.append(i)
            changed = bool(chosen)
            done.step += [now] * len(chosen)
            best = {i: max(range(len(p[i])), key=lambda a: p[i][a]) for i in inside}
            done.logp += [math.log(p[i][best[i]]) for i in chosen]
            taken = sorted(i for i, _ in doubts[:left])
            for i in taken:
                after = best[i] if rule == "t2t" else mask
                done.taken.append((now, i, canvas[i], after))
                canvas[i] = after
                if rule == "t2t":
                    done.order.append(i)
                    done.step.append(now)
                    done.logp.append(math.log(p[i][after]))
            for i in chosen:
                canvas[i] = best[i]
            left -= len(taken)
            watched, now = (changed or bool(taken)) and left > 0, now + 1
    return done


def doubted(rule: str, p: Any, canvas: list[int], inside: list[int], hidden: list[int]) -> dict[int, float]:
    stand = [i for i in inside if i not in hidden]
    if rule in ("t2t", "t2m"):
        return {i: max(p[i]) for i in stand if p[i].index(max(p[i])) != canvas[i] and max(p[i]) > 0.35}
    worth = {i: math.log(max(p[i][canvas[i]], 1e-45)) for i in stand} | {i: math.log(max(p[i])) for i in hidden}
    stays = sorted(worth, key=lambda i: (-worth[i], i))[: len(stand) + 1]
    return {i: -worth[i] for i in stand if i not in stays}


@pytest.mark.parametrize("block", [None, 4])
@pytest.mark.parametrize("budget", [0.5, 2.0])
@pytest.mark.parametrize("rule", RULES)
def test_the_loop_matches_a_plain_reference(rule: str, budget: float, block: int | None) -> None:
    denoiser = CountingTable()
    tokens, _ = puzzles(denoiser, 6, 11)
    decoding = Decoding(block, revision=RULES[rule], revision_budget=budget)
    trajectory = unmask(denoiser, confidence, tokens, decoding)
    revisions = trajectory.revisions
    assert revisions is not None and len(revisions) > 5
    calls = 0
    for row in range(len(tokens)):
        plain = plain_revision(denoiser, tokens[row].tolist(), rule, budget, block)
        n = len(plain.order)
        assert trajectory.tokens[row].tolist() == plain.tokens
        assert trajectory.order[row].tolist() == plain.order + [-1] * (trajectory.order.shape[1] - n)
        assert trajectory.step[row, :n].tolist() == plain.step
        torch.testing.assert_close(trajectory.logp[row, :n], torch.tensor(plain.logp), atol=1e-5, rtol=1e-5)
        mine = revisions.row == row
        columns = (revisions.step, revisions.position, revisions.before, revisions.after)
        assert list(zip(*(x[mine].tolist() for x in columns), strict=True)) == plain.taken
        assert int(trajectory.revised[row]) == len(plain.taken) <= int(budget * (tokens[row] == 3).sum())
        assert trajectory.states is not None
        calls += int((trajectory.states.row == row).sum())
        assert math.isnan(float(trajectory.total_logp[row])) == bool(plain.taken)
    assert trajectory.denoiser_calls == calls


def greedy(view: View, standing: Standing) -> Tensor:
    """Doubts every token that stands."""
    return torch.zeros(len(standing.token))


@pytest.mark.parametrize("rule", [*PLAIN_REVISIONS, "greedy"])
@pytest.mark.parametrize(
    "decoding", [Decoding(), Decoding(block=3), Decoding(steps=4), Decoding(pace="threshold:p=0.3", block=5)]
)
def test_given_tokens_stay_and_every_decoding_ends(rule: str, decoding: Decoding) -> None:
    denoiser = CountingTable(limit=600, end_ids=(0,), pad_id=6)
    tokens, _ = puzzles(denoiser, 6, 10)
    revision = greedy if rule == "greedy" else load_revision(rule)
    decoding = replace(decoding, revision=revision, revision_budget=1.0)
    trajectory = unmask(denoiser, confidence, tokens, decoding)
    given = tokens != denoiser.mask_id
    assert torch.equal(trajectory.tokens[given], tokens[given])
    assert not (trajectory.tokens == denoiser.mask_id).any()
    revisions = trajectory.revisions
    assert revisions is not None and not given[revisions.row, revisions.position].any()
    assert bool((trajectory.revised <= (~given).sum(1)).all())
    assert rule != "greedy" or int(trajectory.revised.sum()) > 0


@pytest.mark.parametrize(
    ("rule", "pace"), [*((rule, "top") for rule in PLAIN_REVISIONS), *(("t2m", pace) for pace in PLAIN_PACES)]
)
def test_a_row_does_not_depend_on_its_batch(rule: str, pace: str) -> None:
    denoiser = CountingTable(end_ids=(0,), pad_id=6)
    tokens, _ = puzzles(denoiser, 5, 10)
    seeds = torch.tensor([11, 5, 2**61 + 7, 0, 3])
    decoding = Decoding(
        6, 8, pace, order_temperature=0.3, token_temperature=0.7, revision=load_revision(rule), revision_budget=1.5
    )
    whole = unmask(denoiser, confidence, Canvas(tokens, seeds=seeds), decoding)
    for row in range(5):
        one = slice(row, row + 1)
        alone = unmask(denoiser, confidence, Canvas(tokens[one], seeds=seeds[one]), decoding)
        n = int(alone.reveals[0])
        assert int(whole.reveals[row]) == n
        assert torch.equal(whole.tokens[row], alone.tokens[0])
        for name in ("order", "step", "logp", "order_logp", "score"):
            assert torch.equal(getattr(whole, name)[row, :n], getattr(alone, name)[0, :n]), name
        assert taken_back(whole, row) == taken_back(alone, 0)


def taken_back(trajectory: Trajectory, row: int) -> list[list[int]]:
    revisions = trajectory.revisions
    assert revisions is not None
    mine = revisions.row == row
    return [x[mine].tolist() for x in (revisions.step, revisions.position, revisions.before, revisions.after)]


@pytest.mark.parametrize("scheduler", HEURISTICS)
def test_every_scheduler_combines_with_a_revision(scheduler: str) -> None:
    denoiser = CountingTable(limit=4000)
    tokens, target = puzzles(denoiser, 4, 8)
    decoding = Decoding(revision="t2m:p=0.3", draft=3)
    trajectory = unmask(denoiser, load_scheduler(scheduler), Canvas(tokens, target), decoding)
    assert not (trajectory.tokens == denoiser.mask_id).any()


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_revision_in_a_cached_block_keeps_to_the_block(cache: Any) -> None:
    """A block is held open until a look at it changes nothing; with refresh=1 a cache computes what the plain loop does."""
    denoiser = text_denoiser(end_ids=())
    tokens = torch.full((3, 12), denoiser.mask_id)
    tokens[:, 0] = torch.tensor([3, 5, 7])
    plain = unmask(denoiser, confidence, tokens, Decoding(4, revision="t2m:p=0.1"))
    exact = unmask(denoiser, confidence, tokens, Decoding(4, revision="t2m:p=0.1", cache=cache, refresh=1))
    cached = unmask(denoiser, confidence, tokens, Decoding(4, revision="t2m:p=0.1", cache=cache))
    assert plain.revisions is not None and len(plain.revisions) > 0
    assert torch.equal(plain.order, exact.order) and torch.equal(plain.tokens, exact.tokens)
    for trajectory in (plain, cached):
        for row in range(3):
            blocks = (trajectory.order[row][trajectory.order[row] >= 0] - 1) // 4
            assert bool((blocks.diff() >= 0).all())


def test_t2t_replaces_and_t2m_hides() -> None:
    """Position 1 was revealed as 1 and the denoiser now prefers 2: replaced without another reveal, or hidden and revealed anew."""

    class Changing(Fixed):
        def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
            states = super().answer(tokens, attention)
            sure = (tokens == self.mask_id).sum(1) < 2
            states[sure, :, 2] = 9.0
            return states

    denoiser = Changing(torch.tensor([[0.0, 4.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]), mask_id=3)
    tokens = torch.full((1, 3), 3)
    replaced = unmask(denoiser, confidence, tokens, Decoding(revision="t2t", revision_budget=1.0))
    assert replaced.tokens.tolist() == [[2, 2, 2]]
    # Step 2 has one mask left: it reveals position 2 and replaces 0 and 1.
    assert replaced.order.tolist() == [[0, 1, 2, 0, 1]] and replaced.step.tolist() == [[0, 1, 2, 2, 2]]
    assert replaced.rank.tolist() == [[3, 4, 2]]
    hidden = unmask(denoiser, confidence, tokens, Decoding(revision="t2m", revision_budget=1.0))
    # Step 2 hides them, step 3 reveals 0 as it was, step 4 hides it once more and reveals 1: the budget ends it.
    assert taken_back(hidden, 0) == [[2, 2, 4], [0, 1, 0], [1, 1, 1], [3, 3, 3]]
    assert hidden.order.tolist() == [[0, 1, 2, 0, 1, 0]] and hidden.tokens.tolist() == [[2, 2, 2]]
    assert (replaced.denoiser_calls, hidden.denoiser_calls) == (4, 6)


def test_a_step_budget_makes_up_for_what_is_hidden_again() -> None:
    denoiser = CountingTable()
    tokens = torch.full((4, 12), denoiser.mask_id)

    def once(view: View, standing: Standing) -> Tensor:
        """Doubts the first token that stands, at step 2 alone."""
        first = torch.ones_like(standing.token).cumsum(0) == 1
        return torch.where(first & (view.step == 2), 0.0, -torch.inf)

    trajectory = unmask(denoiser, confidence, tokens[:1], Decoding(steps=6, revision=once))
    # Two reveals a step, three in the third; the last look finds nothing to take back.
    assert torch.bincount(trajectory.step[0]).tolist() == [2, 2, 3, 2, 2, 2]
    assert trajectory.denoiser_calls == 7


def test_a_revised_trajectory_has_no_likelihood() -> None:
    denoiser = CountingTable()
    tokens, target = puzzles(denoiser, 4, 9)
    trajectory = unmask(denoiser, confidence, tokens, Decoding(revision="t2t:p=0.3"))
    with pytest.raises(ValueError, match="a trajectory with revisions is no permutation"):
        trajectory_logp(denoiser, trajectory.tokens, trajectory.order, trajectory.step)
    forced = unmask(denoiser, confidence, Canvas(tokens, target), Decoding(revision="t2t:p=0.3"), forced=True)
    plain = unmask(denoiser, confidence, Canvas(tokens, target), forced=True)
    assert forced.revisions is None and torch.equal(forced.total_logp, plain.total_logp)


def test_unknown_names_and_options() -> None:
    with pytest.raises(ValueError, match=r"no revision 't2n': expected one of .*; did you mean"):
        load_revision("t2n")
    with pytest.raises(ValueError, match=r"revision 't2m' has no option 'q=1': it takes p=0\.9"):
        load_revision("t2m:q=1")
