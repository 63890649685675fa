"""The loop against a plain reference: one row, Python loops, float64, written from the definitions and not from the code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from support.denoisers import CountingTable, Stubborn, text_denoiser
from support.reference import SCORES, apportion, distributions, puzzles
from unmask.decoding.loop import Step, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Trajectory, View
from unmask.schedulers.heuristics import confidence, left_to_right
from unmask.schedulers.loading import load_scheduler


@dataclass
class Plain:
    tokens: list[int]
    order: list[int]
    step: list[int]
    logp: list[float]


def plain_decode(
    denoiser: Any,
    tokens: list[int],
    score: Callable[[list[float], int], float],
    block: int | None = None,
    steps: int | None = None,
    target: list[int] | None = None,
    stop: bool = True,
) -> Plain:
    canvas = list(tokens)
    where = [i for i, token in enumerate(canvas) if token == denoiser.mask_id]
    trajectory = Plain(canvas, [], [], [])
    first, last = (where[0], where[-1]) if where else (0, -1)
    width = block or len(tokens)
    blocks = [
        [i for i in range(start, min(start + width, last + 1)) if i in where] for start in range(first, last + 1, width)
    ]
    budget = apportion([len(b) for b in blocks], steps) if steps else [len(b) for b in blocks]
    now = 0
    for inside, rounds in zip(blocks, budget, strict=True):
        counts = [0] * rounds
        for n in range(len(inside)):
            counts[n % rounds] += 1
        for count in counts:
            left = [i for i in inside if canvas[i] == denoiser.mask_id]
            if not left:
                continue
            p = distributions(denoiser, canvas)
            chosen = sorted(left, key=lambda i: (-score(p[i], i - first), i))[:count]
            for i in chosen:
                token = max(range(len(p[i])), key=lambda a: p[i][a]) if target is None else target[i]
                canvas[i] = token
                trajectory.order.append(i)
                trajectory.step.append(now)
                trajectory.logp.append(math.log(p[i][token]))
            now += 1
            ends = [i for i in range(first, last + 1) if canvas[i] in denoiser.end_ids]
            if stop and target is None and ends and denoiser.mask_id not in canvas[: ends[0]]:
                filler = denoiser.end_ids[0] if denoiser.pad_id is None else denoiser.pad_id
                trajectory.tokens = [filler if token == denoiser.mask_id else token for token in canvas]
                return trajectory
    return trajectory


def assert_row(trajectory: Trajectory, row: int, plain: Plain) -> None:
    n = len(plain.order)
    assert trajectory.order[row].tolist() == plain.order + [-1] * (trajectory.order.shape[1] - n)
    assert trajectory.step[row].tolist() == plain.step + [-1] * (trajectory.order.shape[1] - n)
    assert trajectory.tokens[row].tolist() == plain.tokens
    torch.testing.assert_close(trajectory.logp[row, :n], torch.tensor(plain.logp), atol=1e-5, rtol=1e-5)
    assert (trajectory.logp[row, n:] == 0).all()


LBT = [
    *[(None, None), (4, None), (1, None), (5, None), (100, None)],
    *[(None, 5), (None, 1), (4, 7), (5, 4), (3, 11), (100, 100)],
]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(("block", "steps"), LBT)
def test_the_loop_matches_a_plain_reference(block: int | None, steps: int | None, forced: bool) -> None:
    denoiser = CountingTable()
    tokens, target = puzzles(denoiser, 5, 12)
    goal = target if forced else None
    for name in ("confidence", "entropy") if forced else SCORES:
        score = SCORES[name]
        trajectory = unmask(
            denoiser, load_scheduler(name), Canvas(tokens, target=goal), Decoding(block, steps), forced=forced
        )
        for row in range(len(tokens)):
            truth = target[row].tolist() if forced else None
            assert_row(trajectory, row, plain_decode(denoiser, tokens[row].tolist(), score, block, steps, truth))
        if forced:
            assert torch.equal(trajectory.tokens, target)


@pytest.mark.parametrize("name", ["confidence", "margin", "left_to_right"])
def test_a_transformer_matches_the_plain_reference(name: str) -> None:
    denoiser = text_denoiser(end_ids=())
    tokens = torch.tensor([[5, 3, 12, 12, 12, 12, 9], [12, 12, 4, 12, 12, 12, 12]])
    trajectory = unmask(denoiser, load_scheduler(name), tokens, Decoding(block=3, steps=4))
    for row in range(2):
        assert_row(trajectory, row, plain_decode(denoiser, tokens[row].tolist(), SCORES[name], 3, 4))


@pytest.mark.parametrize("pad_id", [None, 6])
@pytest.mark.parametrize("block", [None, 4])
@pytest.mark.parametrize("name", ["confidence", "left_to_right", "right_to_left"])
def test_a_row_ends_at_its_first_end_token(name: str, block: int | None, pad_id: int | None) -> None:
    denoiser = CountingTable(end_ids=(0, 5), pad_id=pad_id)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.where(torch.rand(24, 12, generator=generator) < 0.85, denoiser.mask_id, 1)
    rows = [plain_decode(denoiser, row, SCORES[name], block) for row in tokens.tolist()]
    hidden = (tokens == denoiser.mask_id).sum(1)
    early = [len(row.order) < int(n) for row, n in zip(rows, hidden, strict=True)]
    assert any(early) or name == "right_to_left"  # with the last position first, nothing after the end is left to skip
    trajectory = unmask(denoiser, load_scheduler(name), tokens, Decoding(block))
    for row, plain in enumerate(rows):
        assert_row(trajectory, row, plain)
    assert trajectory.denoiser_calls == sum(max(row.step) + 1 for row in rows)
    on = unmask(denoiser, load_scheduler(name), tokens, Decoding(block, stop_at_end=False))
    assert torch.equal(on.reveals, hidden)


def test_an_end_token_after_hidden_positions_does_not_end_the_row() -> None:
    """Right to left: the end tokens come first, and everything before them is still revealed."""
    denoiser = CountingTable(end_ids=(0, 1, 2, 4, 5, 6))  # every token ends
    tokens = torch.full((1, 6), denoiser.mask_id)
    assert unmask(denoiser, load_scheduler("right_to_left"), tokens).reveals.tolist() == [6]
    trajectory = unmask(denoiser, left_to_right, tokens)
    assert trajectory.reveals.tolist() == [1]
    assert trajectory.tokens[0, 1:].tolist() == [0] * 5  # no padding token: the first end token fills
    prompt = torch.cat([torch.zeros(1, 2, dtype=torch.long), tokens], 1)  # an end in the prompt is none
    assert unmask(denoiser, load_scheduler("right_to_left"), prompt).reveals.tolist() == [6]


@pytest.mark.parametrize("forced", [False, True])
@pytest.mark.parametrize(
    "decoding", [Decoding(), Decoding(block=3), Decoding(steps=3), Decoding(token_temperature=1.0)]
)
def test_given_tokens_are_never_overwritten(decoding: Decoding, forced: bool) -> None:
    """The denoiser contradicts every given token; a target that contradicts them is not copied onto them either."""
    denoiser = Stubborn(6, mask_id=2)
    tokens, target = puzzles(denoiser, 9, 10)
    given = tokens != denoiser.mask_id
    wrong = torch.where(target == 5, 4, 5)
    trajectory = unmask(denoiser, confidence, Canvas(tokens, target=wrong if forced else None), decoding, forced=forced)
    assert torch.equal(trajectory.tokens[given], tokens[given])
    assert not (trajectory.tokens == denoiser.mask_id).any()
    assert (trajectory.tokens[~given] == (wrong[~given] if forced else 3)).float().mean() > 0.99
    assert torch.equal(trajectory.rank >= 0, ~given)


def test_candidates_and_region() -> None:
    """What is not a candidate stays hidden, in blocks that count from the region's first position."""
    denoiser = CountingTable()
    tokens = torch.full((2, 10), denoiser.mask_id)
    tokens[:, 0] = 1
    candidates = torch.ones_like(tokens, dtype=torch.bool)
    candidates[0, 4:6] = False
    candidates[1, 1] = False
    trajectory = unmask(denoiser, confidence, Canvas(tokens, candidates=candidates), Decoding(block=3))
    assert torch.equal(trajectory.tokens == denoiser.mask_id, ~candidates)
    for row in range(2):
        order = trajectory.order[row][trajectory.order[row] >= 0]
        assert ((order - 1) // 3).diff().min() >= 0
    region = torch.ones_like(candidates)
    ordered = unmask(denoiser, confidence, Canvas(tokens, region=region), Decoding(block=5)).order[0]
    assert set(ordered[:4].tolist()) == {1, 2, 3, 4}  # the given position 0 belongs to the first block
    short = region.clone()
    short[:, 9] = False
    with pytest.raises(ValueError, match="outside the region"):
        unmask(denoiser, confidence, Canvas(tokens, region=short))
    with pytest.raises(ValueError, match="complete target"):
        unmask(denoiser, confidence, Canvas(tokens, target=tokens), forced=True)


@pytest.mark.parametrize("name", ["target", "attention", "region", "candidates"])
def test_shapes_are_checked_without_the_test_hook(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    denoiser = CountingTable()
    tokens = torch.full((2, 10), denoiser.mask_id)
    wrong: dict[str, Any] = {name: (tokens if name == "target" else tokens > 0)[:, :9]}
    with pytest.raises(ValueError, match=rf"{name} must have the shape of the tokens \(2, 10\), got \(2, 9\)"):
        unmask(denoiser, confidence, Canvas(tokens, **wrong))


def test_states_record_what_happened() -> None:
    denoiser = CountingTable()
    tokens, target = puzzles(denoiser, 6, 9)
    seen: list[Step] = []
    trajectory = unmask(
        denoiser,
        confidence,
        Canvas(tokens, target=target),
        Decoding(block=4, steps=5),
        observe=lambda view: {"name": view.rows * 100 + view.step},
        on_step=seen.append,
    )
    states = trajectory.states
    assert states is not None and states.target_logp is not None
    assert len(states) == trajectory.denoiser_calls == denoiser.forwarded
    assert torch.equal(states.observed["name"], states.row * 100 + states.step)
    assert torch.equal(states.tokens, torch.cat(denoiser.canvases))
    assert trajectory.steps == len(seen) == int(states.step.max()) + 1
    for s in range(len(states)):
        row = int(states.row[s])
        mine = trajectory.step[row] == states.step[s]
        where = trajectory.order[row][mine]
        assert set(where.tolist()) == set(torch.nonzero(states.revealed[s])[:, 0].tolist())
        assert torch.equal(states.scores[s, where], trajectory.score[row][mine])
        assert torch.equal(states.scores[s] > -torch.inf, states.eligible[s])
        p = distributions(denoiser, states.tokens[s].tolist())
        for i in torch.nonzero(states.eligible[s])[:, 0].tolist():
            assert states.target_logp[s, i].item() == pytest.approx(math.log(p[i][int(target[row, i])]), abs=1e-5)
            assert states.confidence[s, i].item() == pytest.approx(math.log(max(p[i])), abs=1e-5)
            assert states.best[s, i].item() == p[i].index(max(p[i]))
    assert unmask(denoiser, confidence, tokens, record=False).states is None


def test_errors_of_a_scheduler() -> None:
    denoiser = CountingTable(limit=200)
    tokens = torch.full((2, 5), denoiser.mask_id)
    with pytest.raises(ValueError, match=r"scores of shape \(2, 5\), got \(2, 4\)"):
        unmask(denoiser, lambda view: view.confidence[:, :4], tokens)
    with pytest.raises(ValueError, match="NaN for an eligible position"):
        unmask(denoiser, lambda view: view.confidence * torch.nan, tokens)
    with pytest.raises(ValueError, match="oracle"):
        unmask(denoiser, load_scheduler("gt_logp"), tokens)


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("steps", [None, 2])
def test_infinite_scores_can_be_ranked(temperature: float, steps: int | None) -> None:
    """−inf is the last of the eligible positions and +inf the first; no temperature makes the loop stand still."""
    denoiser = CountingTable(limit=100)
    tokens = torch.full((2, 6), denoiser.mask_id)
    tokens[:, 0] = 1

    def rule(view: View) -> Tensor:
        scores = torch.full(view.tokens.shape, -torch.inf)
        scores[:, 3] = torch.inf
        return scores

    trajectory = unmask(denoiser, rule, tokens, Decoding(steps=steps, order_temperature=temperature))
    assert trajectory.order[:, 0].tolist() == [3, 3]
    assert trajectory.order.sort(1).values.tolist() == [[1, 2, 3, 4, 5]] * 2
    assert torch.isfinite(trajectory.order_logp).all() and torch.isfinite(trajectory.score).all()
