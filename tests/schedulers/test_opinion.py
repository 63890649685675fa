"""The second opinion: a copy of the denoiser that judges its tokens; saved and refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.small_models import MASK, MODELS, ROW, masked_lm, text_denoiser
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.opinion import WEIGHT, Opinion, shape_of
from unmask.schedulers.policy import OrderPolicy, build_policy

OPINION = PolicyConfig(kind="opinion")
PADDED = Canvas(
    torch.cat([ROW, torch.zeros(1, 2, dtype=torch.long)], dim=1),
    attention=torch.tensor([[*[True] * 8, False, False]]),
)


def denoiser_named(name: str) -> Any:
    return text_denoiser(forbidden_ids=(MASK, 3)) if name == "text" else masked_lm(name)


def stirred_opinion(denoiser: Any) -> OrderPolicy:
    """Whose copy has learned something."""
    policy = build_policy(OPINION, denoiser, "denoiser")
    assert isinstance(policy.network, Opinion)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.network.copy.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return policy.eval().requires_grad_(False)


@pytest.mark.parametrize("name", ["text", *MODELS])
def test_an_untrained_opinion_orders_as_confidence(name: str) -> None:
    denoiser = denoiser_named(name)
    policy = build_policy(OPINION, denoiser, name).check(denoiser).eval()
    assert all(parameter.requires_grad for parameter in policy.parameters())
    ours, theirs = (unmask(denoiser, scheduler, Canvas(ROW)) for scheduler in (policy, confidence))
    assert torch.equal(ours.order, theirs.order) and torch.equal(ours.tokens, theirs.tokens)


@pytest.mark.parametrize("name", ["text", "albert"])
def test_scores_are_a_mean_of_both_log_odds_of_the_token_that_the_denoiser_writes(name: str) -> None:
    denoiser = denoiser_named(name)
    policy = stirred_opinion(denoiser)
    assert isinstance(policy.network, Opinion)
    states = unmask(denoiser, policy, PADDED, record=True).states
    assert states is not None
    allowed = [token for token in range(70) if token not in denoiser.forbidden_ids]
    hidden = PADDED.tokens[0] == MASK
    odds = []
    for model in (denoiser, policy.network.copy):
        p = model.logits(model.hidden(PADDED.tokens, PADDED.attention)[0, hidden])[:, allowed].double().softmax(1)
        of_best = p.gather(1, torch.tensor([[allowed.index(token)] for token in states.best[0, hidden].tolist()]))[:, 0]
        odds.append((of_best / (1 - of_best)).log())
    expected = (1 - WEIGHT) * odds[0] + WEIGHT * odds[1]
    assert torch.allclose(states.scores[0, hidden].double(), expected, atol=1e-4)
    assert not torch.allclose(odds[0], odds[1], atol=0.1)  # or the mean would say nothing


def test_only_the_order_changes_and_the_denoiser_writes() -> None:
    denoiser = text_denoiser(forbidden_ids=(MASK, 3))
    policy = stirred_opinion(denoiser)
    canvas = Canvas(torch.where(torch.arange(8) > 1, MASK, ROW))
    found = unmask(denoiser, policy, canvas, record=True)
    states = found.states
    assert states is not None and not torch.equal(found.order, unmask(denoiser, confidence, canvas).order)
    for step in range(len(states)):
        state = states.tokens[step]
        best = denoiser.logits(denoiser.hidden(state[None])[0]).index_fill(1, torch.tensor([MASK, 3]), -torch.inf)
        place = int(states.revealed[step].int().argmax())
        assert int(found.tokens[0, place]) == int(best[place].argmax())


def test_blocks_that_leave_positions_unpriced_have_finite_scores() -> None:
    denoiser = text_denoiser(forbidden_ids=(MASK, 3))
    found = unmask(denoiser, stirred_opinion(denoiser), Canvas(ROW), Decoding(block=2))
    assert bool(torch.isfinite(found.score).all()) and not bool((found.tokens == MASK).any())


@pytest.mark.parametrize("name", ["text", "albert"])
def test_saved_loaded_and_refused(tmp_path: Path, name: str) -> None:
    denoiser = denoiser_named(name)
    policy = stirred_opinion(denoiser)
    policy.save_pretrained(tmp_path)
    again = load_scheduler(str(tmp_path), denoiser)
    assert isinstance(again, OrderPolicy) and again.config == policy.config
    first, second = (unmask(denoiser, one, Canvas(ROW)) for one in (policy, again))
    assert torch.equal(first.order, second.order) and torch.equal(first.score, second.score)
    with pytest.raises(ValueError, match="was trained for 70 tokens"):
        policy.check(text_denoiser(vocab_size=71))
    stored = json.loads((tmp_path / "config.json").read_text())
    stored["blocks"]["ffn" if name == "text" else "intermediate_size"] = 10**9
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="the configuration needs"):
        load_scheduler(str(tmp_path))


def test_what_an_opinion_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="build it with build_policy"):
        OrderPolicy(OPINION)
    with pytest.raises(ValueError, match="a model_type that transformers knows"):
        OrderPolicy(dataclasses.replace(OPINION, blocks={"model_type": "no-such-model"}))
    for change in ({"residual": False}, {"purpose": "doubt"}):
        with pytest.raises(ValueError, match="an opinion orders positions"):
            dataclasses.replace(OPINION, **change)
    with pytest.raises(ValueError, match="expected one of this library's, got <class 'str'>"):
        shape_of("no denoiser")
