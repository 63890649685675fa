"""Guidance by its formula, end tokens at every temperature, padding never: and all of it a function of the canvas alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.denoisers import Counting
from support.families import write
from support.reference import PLAIN_PACES
from support.tokenizers import words
from unmask.decoding.guidance import EndingDenoiser, GuidedDenoiser, postpone_ends, score_inner_states
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.decoding.pricing import price
from unmask.decoding.protocols import Canvas, Denoiser, Trajectory, View, needs_truth, prices_all
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.generation.generate import generate
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy

END, PAD, MASK = 7, 6, 8
TEMPERATURES = [0.0, 0.7, 2.5]


class Eager(Counting):
    """Loves end tokens, and padding even more: without a rule every position wants one of them. Prices depend on the canvas."""

    def __init__(self, end: float = 3.0, dtype: torch.dtype = torch.float32, **ids: Any) -> None:
        super().__init__(9, MASK, **{"end_ids": (END,), "pad_id": PAD, **ids})
        self.end, self.dtype = end, dtype

    def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
        seen = tokens if attention is None else tokens.masked_fill(~attention, 0)
        place = torch.arange(tokens.shape[1]) if attention is None else attention.long().cumsum(1)
        spread = (seen.sum(1)[:, None] * 3 + place * 5)[..., None] * (torch.arange(9) + 2) % 11
        states = spread.to(self.dtype) / 8
        states[..., END] = self.end + place * 0.1
        states[..., PAD] = 5.0
        return states


def canvas(*prompts: int, length: int = 8) -> Canvas:
    """Prompts of these lengths, padded on the left."""
    start = max(prompts)
    tokens = torch.full((len(prompts), start + length), MASK)
    attention = torch.ones_like(tokens, dtype=torch.bool)
    for row, count in enumerate(prompts):
        tokens[row, :start] = torch.arange(start) % 5
        attention[row, : start - count] = False
    region = torch.zeros_like(attention)
    region[:, start:] = True
    return Canvas(tokens, region=region, attention=attention, seeds=torch.arange(len(tokens)))


@pytest.fixture(scope="module")
def llada(tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    return load_denoiser(write(tmp_path_factory.mktemp("llada"), "llada"))  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_guidance_matches_its_formula(llada: Transformer, scale: float) -> None:
    tokens = torch.tensor([[3, 4, 5, 29, 29, 29], [6, 7, 8, 29, 9, 29]])
    without = tokens.clone()
    without[:, :3] = 29
    c, u = (llada.logits(llada.hidden(x)) for x in (tokens, without))
    guided, before = GuidedDenoiser(llada, scale, start=3), llada.forwarded
    states = guided.hidden(tokens)
    torch.testing.assert_close(guided.logits(states.flatten(0, 1)).view_as(c), u + (scale + 1) * (c - u))
    assert guided.forwarded == llada.forwarded - before == 4  # two canvases, twice
    torch.testing.assert_close(guided.states(states), llada.hidden(tokens))


def test_guidance_of_scale_zero_is_the_denoiser(llada: Transformer) -> None:
    tokens = torch.tensor([[3, 4, 5, 29, 29, 29]])
    guided = GuidedDenoiser(llada, 0.0, start=3)
    torch.testing.assert_close(guided.logits(guided.hidden(tokens)[0]), llada.logits(llada.hidden(tokens)[0]))
    with pytest.raises(ValueError, match="at least 0, got -1"):
        GuidedDenoiser(llada, -1.0, start=3)


def test_guidance_with_padding(llada: Transformer) -> None:
    """Padding is no prompt: the half without the prompt must not see masks where there is padding."""
    guided = GuidedDenoiser(llada, 2.0, start=3)
    alone = GuidedDenoiser(llada, 2.0, start=1).hidden(torch.tensor([[5, 29, 29, 29]]))
    attention = torch.tensor([[False, False, True, True, True, True], [True] * 6])
    both = guided.hidden(torch.tensor([[27, 27, 5, 29, 29, 29], [3, 4, 5, 29, 29, 29]]), attention)
    torch.testing.assert_close(both[0, 2:], alone[0])
    assert (both[1, 2:] - alone[0]).abs().max() > 0.1


def test_guidance_counts_twice_the_denoiser_calls(llada: Transformer) -> None:
    tokenizer = words(31, eos=27)
    plain, guided = (
        generate(
            llada, tokenizer, ["w3 w4", "w5"], decoding=Decoding(stop_at_end=False, guidance=scale), length=6
        ).trajectory
        for scale in (0.0, 4.0)
    )
    assert (plain.denoiser_calls, guided.denoiser_calls) == (12, 24)
    assert plain.tokens.tolist() != guided.tokens.tolist()


def test_look_ahead_is_guided_too(llada: Transformer) -> None:
    """A scheduler that calls the denoiser itself, with rows of its own, gets the same numbers."""
    decoding = Decoding(guidance=2.0, min_length=3, ends="damp")
    both, alone = (
        generate(llada, words(31, eos=27), prompts, "look_ahead:among=2", decoding, length=5)
        for prompts in (["w3 w4", "w5"], ["w5"])
    )
    assert both.texts[1:] == alone.texts
    assert both.order(1) == alone.order(0)


def decode(denoiser: Denoiser, decoding: Decoding, rows: Canvas, scheduler: Any = confidence) -> Trajectory:
    return unmask(denoiser, scheduler, rows, decoding, record=False)


def ended(trajectory: Trajectory, row: int) -> tuple[list[int], list[int]]:
    """The steps in which a row revealed end tokens, and those in which it revealed others."""
    kept = trajectory.order[row] >= 0
    is_end = trajectory.tokens[row, trajectory.order[row][kept]] == END
    steps = trajectory.step[row][kept]
    return steps[is_end].tolist(), steps[~is_end].tolist()


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("block", [None, 4])
def test_suppressed_end_tokens_come_last(temperature: float, block: int | None) -> None:
    """At every temperature, whatever was likeliest: an end token is revealed when nothing else is left, and the row is over."""
    denoiser, rows = EndingDenoiser(Eager(end=0.9)), canvas(*[0, 1, 2, 3] * 4)
    rows.tokens[:, :3] = torch.arange(48).view(16, 3) % 6
    decoding = Decoding(block=block, token_temperature=temperature)
    early = late = 0
    plain, trajectory = decode(denoiser, decoding, rows), decode(denoiser, postpone_ends(decoding), rows)
    for row in range(16):
        ends, others = ended(trajectory, row)
        assert len(ends) <= 1
        assert max(others, default=-1) < min(ends, default=99)
        late += len(ends)
        ends, others = ended(plain, row)
        early += max(others, default=-1) > min(ends, default=99)
    assert late > 0, "no end token at all: nothing was tested"
    assert early > 0, "end tokens came last without the rule"


@pytest.mark.parametrize("name", PLAIN_PACES)
def test_suppression_with_every_pace(name: str) -> None:
    decoding = postpone_ends(Decoding(pace=load_pace(name), token_temperature=1.0))
    trajectory = decode(EndingDenoiser(Eager(end=0.9)), decoding, canvas(3, 1, 2, 0))
    for row in range(4):
        ends, others = ended(trajectory, row)
        assert max(others, default=-1) < min(ends, default=99)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_suppression_keeps_the_budget(temperature: float) -> None:
    decoding = Decoding(block=4, steps=4, token_temperature=temperature, stop_at_end=False)
    trajectory = decode(EndingDenoiser(Eager(end=0.9)), postpone_ends(decoding), canvas(3, 1, 2, 0))
    assert trajectory.steps == 4
    assert trajectory.step.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]] * 4


@pytest.mark.parametrize("scheduler", ["random", "right_to_left", "margin", "gumbel_confidence"])
def test_suppression_with_other_schedulers(scheduler: str) -> None:
    decoding = postpone_ends(Decoding(token_temperature=0.7, order_temperature=0.5))
    trajectory = decode(EndingDenoiser(Eager(end=0.9)), decoding, canvas(*[3, 1, 2, 0] * 2), load_scheduler(scheduler))
    found = [ended(trajectory, row) for row in range(8)]
    assert all(max(others, default=-1) < min(ends, default=99) for ends, others in found)
    assert any(ends for ends, _ in found)


def test_a_short_step_takes_end_tokens_from_the_right() -> None:
    """Eight positions in two steps: all want to end but the third and the seventh."""

    class Two(Eager):
        def answer(self, tokens: Tensor, attention: Tensor | None) -> Tensor:
            states = torch.zeros(*tokens.shape, 9)
            states[..., END] = 4.0
            states[:, [2, 6], 1] = 6.0
            return states

    steps: list[list[int]] = []
    tokens = torch.full((1, 8), MASK)
    decoding = postpone_ends(Decoding(steps=2, stop_at_end=False))
    unmask(
        Two(),
        confidence,
        tokens,
        decoding,
        on_step=lambda step: steps.append(step.revealed[0].nonzero()[:, 0].tolist()),
    )
    assert steps == [[2, 5, 6, 7], [0, 1, 3, 4]]


def test_a_row_ends_when_only_end_tokens_are_left() -> None:
    """Once every hidden position wants to end, the leftmost does, and the row is over."""
    denoiser = EndingDenoiser(Eager(end=50.0))
    trajectory = decode(denoiser, postpone_ends(Decoding()), canvas(2))
    assert trajectory.order[0].tolist() == [2, *[-1] * 7]
    assert trajectory.tokens[0].tolist() == [0, 1, END, *[PAD] * 7]
    assert trajectory.denoiser_calls == 1
    # By confidence the first end token is another one, which says nothing of the positions before it.
    assert decode(denoiser, Decoding(), canvas(2)).denoiser_calls > 1


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("ends", ["allow", "damp", "suppress"])
def test_no_end_token_before_min_length(temperature: float, ends: str) -> None:
    floor = 0.4 if ends == "damp" else None
    decoding = Decoding(token_temperature=temperature, stop_at_end=False)
    for least in (3, 8):
        denoiser = EndingDenoiser(Eager(end=2.0), 3, 8, least=least, floor=floor)
        trajectory = decode(denoiser, postpone_ends(decoding) if ends == "suppress" else decoding, canvas(3, 1, 2, 0))
        found = trajectory.tokens[:, 3:] == END
        assert not bool(found[:, :least].any())
        assert bool(found[:, least:].any()) == (least < 8) or ends == "suppress"
        assert bool(torch.isfinite(trajectory.logp).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("floor", [0.0, 0.4, 1.0])
def test_damped_probabilities(floor: float, dtype: torch.dtype) -> None:
    """p · (g + (1 − g)·t/T), normalised, with t of T positions revealed, also where states have 8 bits."""
    inner = Eager(dtype=dtype)
    rows = canvas(3, length=8).tokens.repeat(3, 1)
    rows[1, 3:6], rows[2, 3:] = 1, 2
    for row, revealed in enumerate((0, 3, 8)):
        factor = floor + (1 - floor) * revealed / 8
        expected = price(inner.hidden(rows[row : row + 1])[0].float(), (MASK, PAD)).logp.exp()
        expected[:, END] *= factor
        expected /= expected.sum(1, keepdim=True)
        damped = EndingDenoiser(inner, 3, 8, floor=floor)
        states = damped.hidden(rows[row : row + 1])[0]
        assert states.dtype == dtype
        got = price(damped.logits(states), damped.forbidden_ids).logp.exp()
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_damping_works_at_every_temperature(temperature: float) -> None:
    """Fewer end tokens than without it, whether tokens are drawn or not."""
    decoding, rows = Decoding(token_temperature=temperature, stop_at_end=False), canvas(*[3] * 16)
    rows.tokens[:, :3] = torch.arange(48).view(16, 3) % 6
    counts = [
        int((decode(EndingDenoiser(Eager(end=1.0), 3, 8, floor=floor), decoding, rows).tokens[:, 3:] == END).sum())
        for floor in (1.0, 0.02)
    ]
    assert counts[0] > counts[1]


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_padding_is_never_revealed(temperature: float, tmp_path: Path) -> None:
    """The padding token is the likeliest by far; where it is no end token it has probability 0."""
    trajectory = decode(EndingDenoiser(Eager()), Decoding(token_temperature=temperature), canvas(3, 1))
    kept = trajectory.order >= 0
    assert not bool((trajectory.tokens.gather(1, trajectory.order.clamp(min=0))[kept] == PAD).any())
    illada = load_denoiser(write(tmp_path, "illada"))
    assert illada.pad_id not in (*illada.end_ids, *illada.forbidden_ids)
    assert illada.pad_id in EndingDenoiser(illada).forbidden_ids


def test_which_ids_are_forbidden() -> None:
    assert EndingDenoiser(Eager()).forbidden_ids == (MASK, PAD)
    assert EndingDenoiser(Eager(pad_id=END)).forbidden_ids == (MASK,)  # LLaDA's padding is its end token
    assert EndingDenoiser(Eager(pad_id=END), forbidden=(END,)).forbidden_ids == (MASK, END)
    assert EndingDenoiser(Eager(pad_id=None)).forbidden_ids == (MASK,)
    assert EndingDenoiser(Eager(), forbidden=(END,)).forbidden_ids == (MASK, PAD, END)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 4, "least": 5}, "min_length must be in 0 .. 4"),
        ({"length": 4, "least": -1}, "min_length must be in 0 .. 4"),
        ({"length": 4, "floor": 1.5}, r"must be in \[0, 1\], got 1.5"),
        ({"floor": 0.4}, "need the length"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EndingDenoiser(Eager(), 3, **options)


def test_a_policy_reads_the_states_of_the_inner_denoiser(llada: Transformer) -> None:
    """Guidance and end tokens widen the states: a policy that reads them still gets the denoiser's own."""
    config = PolicyConfig(
        kind="hidden",
        width=4,
        residual=False,
        tokens=False,
        mask_id=29,
        vocab_size=32,
        hidden_width=16,
        denoiser="llada",
    )
    torch.manual_seed(0)
    policy = OrderPolicy(config).eval()
    around = EndingDenoiser(GuidedDenoiser(llada, 1.0, start=2), 2, 4, floor=0.4)
    seen: list[View] = []

    def spy(view: View) -> Tensor:
        seen.append(view)
        return policy(view)

    tokens = torch.tensor([[3, 4, 29, 29, 29, 29]])
    trajectory = unmask(around, score_inner_states(spy, around), tokens)
    torch.testing.assert_close(seen[0].states, llada.hidden(tokens))
    assert int(trajectory.reveals[0]) == 4
    assert prices_all(score_inner_states(policy, around)) == policy.prices_all
    assert not needs_truth(score_inner_states(policy, around))
