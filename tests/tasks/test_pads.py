"""What a policy sees behind the end of an answer: the same when it is trained and when it decodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.denoisers import text_denoiser
from support.families import write
from support.tokenizers import words
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas, DeclaredScheduler, View
from unmask.denoisers.loading import load_denoiser
from unmask.generation.text_canvas import prompt_canvas
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.policy import OrderPolicy
from unmask.tasks.arithmetic import Arithmetic
from unmask.tasks.jsonl import TextData, TextProblems
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.methods import choose_method
from unmask.training.policy.rollout import _candidate_rewards, collect
from unmask.training.policy.validation import share_before_end

POLICY = PolicyConfig(kind="transformer", width=8, n_layers=1, n_heads=2, tokens=False,
                      features=("confidence", "entropy", "position", "margin", "progress", "left", "right"))  # fmt: skip
PADS: list[Any] = ["end", "hidden"]


def first_view(denoiser: Any, canvas: Canvas, forced: bool) -> tuple[View, dict[str, torch.Tensor]]:
    """The first state of a decoding, as the policy observes it."""
    policy = OrderPolicy(POLICY)
    seen: list[tuple[View, dict[str, torch.Tensor]]] = []

    def watch(view: View) -> torch.Tensor:
        seen.append((view, policy.observe(view)))
        return view.confidence

    unmask(denoiser, DeclaredScheduler(watch, prices_all=True), canvas, forced=forced, record=False)
    return seen[0]


@pytest.mark.parametrize("pads", PADS)
def test_text_is_seen_in_training_as_in_decoding(pads: Any, tmp_path: Path) -> None:
    """24 masks in both: they are hidden and priced alike, whatever of them may be revealed."""
    folder = write(tmp_path / "llada", "llada", max_sequence_length=64)
    words(31, eos=27).save_pretrained(folder)  # pyright: ignore
    denoiser = load_denoiser(folder)
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps({"prompt": "w3 w4", "completion": "w5 w6 w7 w8 w9"}) + "\n")
    data = TextData(file=str(file), length=24, held_out=0.0, pads=pads)
    tokenizer = words(31, eos=27)
    training = TextProblems(data, denoiser, tokenizer)(0, 1)
    decoded = prompt_canvas(denoiser, tokenizer, ["w3 w4"], 24).canvas()
    assert torch.equal(training.tokens, decoded.tokens)
    (view, seen), (wanted_view, wanted) = first_view(denoiser, training, True), first_view(denoiser, decoded, False)
    assert int(wanted_view.hidden.sum()) == 24
    assert int(view.eligible.sum()) == {"end": 24, "hidden": 6}[pads]
    assert torch.equal(view.hidden, wanted_view.hidden)
    for name in ("hidden", "tokens", "confidence", "features", "real"):
        assert torch.equal(seen[name], wanted[name]), name


@pytest.mark.parametrize("pads", PADS)
def test_arithmetic_is_seen_in_training_as_in_decoding(pads: Any) -> None:
    data = Arithmetic(count=4, length=56, pads=pads)
    denoiser = text_denoiser(**Arithmetic.shape(), forbidden_ids=())
    training = data(0, 4)
    decoded = Canvas(training.tokens, training.target, training.region)
    (_, seen), (_, wanted) = first_view(denoiser, training, True), first_view(denoiser, decoded, False)
    for name in ("hidden", "tokens", "confidence", "features"):
        assert torch.equal(seen[name], wanted[name]), name


class Knowing:
    """A denoiser around another one whose likeliest tokens are the target's: it decodes what teacher forcing forces."""

    def __init__(self, inner: Any, target: torch.Tensor) -> None:
        self.inner, self.target = inner, target

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def hidden(self, tokens: torch.Tensor, attention: torch.Tensor | None = None) -> torch.Tensor:
        return torch.cat([self.inner.hidden(tokens, attention), self.target[..., None].float()], dim=2)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.inner.logits(hidden[:, :-1])
        return logits.scatter_add(1, hidden[:, -1:].long(), torch.full((len(logits), 1), 20.0))


@pytest.mark.parametrize("pads", PADS)
def test_every_state_of_a_rollout_is_one_of_a_decoding(pads: Any) -> None:
    """Along one order, from the answer's first token to its end: features and canvases are equal at every step."""
    canvas = Arithmetic(count=1, length=56, pads=pads)(0, 1)
    denoiser: Any = Knowing(text_denoiser(**Arithmetic.shape(), forbidden_ids=()), canvas.truth)
    policy = OrderPolicy(POLICY)

    def walk(canvas: Canvas, forced: bool) -> list[dict[str, torch.Tensor]]:
        seen: list[dict[str, torch.Tensor]] = []

        def left_first(view: View) -> torch.Tensor:
            seen.append(policy.observe(view))
            return -view.index.float()

        unmask(denoiser, DeclaredScheduler(left_first, prices_all=True), canvas, forced=forced, record=False)
        return seen

    training = walk(canvas, forced=True)
    decoded = walk(Canvas(canvas.tokens, region=canvas.region), forced=False)
    assert 10 < len(decoded) <= len(training)  # which goes on behind the end where pads are candidates
    for mine, theirs in zip(training, decoded, strict=False):
        for name in ("hidden", "tokens", "confidence", "features"):
            assert torch.equal(mine[name], theirs[name]), name


def test_what_is_left_out_is_padding() -> None:
    canvas = Arithmetic(count=4, length=56, pads="left_out")(0, 4)
    assert canvas.attention is not None and canvas.candidates is not None and canvas.region is not None
    assert torch.equal(canvas.candidates, canvas.region)
    assert not bool((canvas.region & ~canvas.attention).any())
    assert int((~canvas.attention).sum()) > 0


def test_the_reward_of_pads_is_weighed() -> None:
    denoiser = text_denoiser(**Arithmetic.shape(), forbidden_ids=())
    data = Arithmetic(count=2, length=40, pads="end", pad_weight=0.25)
    method = choose_method(PolicyTraining(prompts=2, group=1), OrderPolicy(POLICY))
    canvas = data(0, 2)
    states = unmask(denoiser, confidence, canvas, forced=True).states
    assert states is not None and states.target_logp is not None
    behind = canvas.region & ~replace(data, pads="hidden")(0, 2).candidates  # pyright: ignore
    plain = states.target_logp.clamp(min=-10)
    weighed = _candidate_rewards(denoiser, method, canvas, states)
    assert 0 < int(behind.sum()) < int(canvas.region.sum())  # pyright: ignore
    torch.testing.assert_close(weighed, plain * torch.where(behind[states.row], 0.25, 1.0))
    rollout = collect(denoiser, method, canvas, torch.arange(2))
    assert 0 <= rollout.summary["rollout_before_end"] <= 1


def test_when_the_first_end_token_is_revealed() -> None:
    denoiser = text_denoiser(**Arithmetic.shape(), forbidden_ids=())
    canvas = Arithmetic(count=3, length=40, pads="end")(0, 3)
    left = unmask(denoiser, lambda view: -view.index.float(), canvas, forced=True, record=False)
    share = share_before_end(left, denoiser)
    assert canvas.region is not None
    for row in range(3):
        tokens = canvas.truth[row][canvas.region[row]].tolist()
        first = next(n for n, token in enumerate(tokens) if token in (*denoiser.end_ids, denoiser.pad_id))
        assert share[row] == pytest.approx(first / len(tokens))
    right = unmask(denoiser, lambda view: view.index.float(), canvas, forced=True, record=False)
    assert share_before_end(right, denoiser).tolist() == [0, 0, 0]
