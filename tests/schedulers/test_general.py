"""The general policy: blocks that go on as the denoiser's own, narrow, or without states; saved and refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.small_models import MASK, MODELS, ROW, masked_lm, text_denoiser
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas
from unmask.denoisers.transformer import Transformer
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy, build_policy

GENERAL = PolicyConfig(kind="general", width=48, n_layers=1, n_heads=2)
VARIANTS = {
    "copied": GENERAL,
    "narrow": dataclasses.replace(GENERAL, width=8),
    "prices alone": dataclasses.replace(GENERAL, width=8, states=False),
}


def stirred(config: PolicyConfig, denoiser: Any) -> OrderPolicy:
    """A policy that has learned something."""
    policy = build_policy(config, denoiser, "denoiser")
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    return policy.eval()


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_copied_blocks_continue_as_the_denoiser_itself(positions: str) -> None:
    denoiser = text_denoiser(positions=positions)
    real = torch.tensor([[False, *[True] * 7]])
    shorter = text_denoiser(positions=positions, n_layers=1)
    shorter.load_state_dict(denoiser.state_dict(), strict=False)
    shorter.norm = denoiser.norm = torch.nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    blocks, everywhere = denoiser.last_blocks(2), torch.nonzero(real, as_tuple=True)
    continued = blocks(shorter.hidden(ROW, real), real, everywhere)
    assert torch.allclose(continued, denoiser.hidden(ROW, real)[everywhere], atol=1e-6)
    assert all(p.requires_grad for p in blocks.parameters())
    assert len(denoiser.last_blocks(4).blocks) == 3  # all that there are


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_positions_that_are_not_wanted_stay_as_they_are(positions: str) -> None:
    """Every block attends to the states of revealed positions as they came in, and computes the hidden ones alone."""
    denoiser = text_denoiser(positions=positions)
    blocks = denoiser.last_blocks(2)
    rows = torch.cat([ROW, torch.tensor([[5, MASK, 3, 4, 2, 6, 30, MASK]])])
    real = torch.tensor([[False, *[True] * 7], [True] * 8])
    hidden = rows == MASK
    x = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(2))
    expected, everywhere = x, torch.nonzero(torch.ones_like(real), as_tuple=True)
    for number in range(2):
        one = denoiser.last_blocks(1)
        one.blocks[0].load_state_dict(blocks.blocks[number].state_dict())
        expected = torch.where(hidden[..., None], one(expected, real, everywhere).view_as(x), expected)
    wanted = torch.nonzero(hidden, as_tuple=True)
    assert torch.allclose(blocks(x, real, wanted), expected[wanted], atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_copied_layers_continue_as_the_masked_language_model_itself(name: str) -> None:
    denoiser = masked_lm(name)
    attention = torch.ones_like(ROW, dtype=torch.bool)
    states = denoiser.model.base_model(input_ids=ROW, attention_mask=attention.long(), output_hidden_states=True)
    wanted = states.hidden_states[-1]
    blocks, everywhere = denoiser.last_blocks(1).eval(), torch.nonzero(attention, as_tuple=True)
    assert torch.allclose(blocks(states.hidden_states[-2], attention, everywhere), wanted[0], atol=1e-5)
    padded = torch.cat([states.hidden_states[-2], torch.randn(1, 2, 16)], dim=1)
    real = torch.cat([attention, torch.zeros(1, 2, dtype=torch.bool)], dim=1)
    assert torch.allclose(blocks(padded, real, everywhere), wanted[0], atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["text", *MODELS])
def test_an_untrained_policy_orders_as_confidence(name: str, variant: str) -> None:
    denoiser = text_denoiser() if name == "text" else masked_lm(name)
    policy = build_policy(VARIANTS[variant], denoiser, name).check(denoiser).eval()
    canvas = Canvas(ROW)
    ours, theirs = (unmask(denoiser, scheduler, canvas) for scheduler in (policy, confidence))
    assert torch.equal(ours.order, theirs.order)
    assert ("states" in policy.observe(_view(denoiser, policy))) == (variant != "prices alone")


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_changes_no_score(variant: str) -> None:
    denoiser = text_denoiser()
    policy = stirred(VARIANTS[variant], denoiser)
    padded = torch.cat([torch.zeros(1, 2, dtype=torch.long), ROW], dim=1)
    attention = torch.ones_like(padded, dtype=torch.bool)
    attention[:, :2] = False
    alone, moved = unmask(denoiser, policy, Canvas(ROW)), unmask(denoiser, policy, Canvas(padded, attention=attention))
    assert torch.equal(alone.order + 2, moved.order) and torch.allclose(alone.score, moved.score, atol=1e-4)


@pytest.mark.parametrize("name", ["text", "albert"])
def test_saved_loaded_and_refused(tmp_path: Path, name: str) -> None:
    denoiser = text_denoiser() if name == "text" else masked_lm(name)
    policy = stirred(GENERAL, denoiser)
    policy.save_pretrained(tmp_path)
    again = load_scheduler(str(tmp_path), denoiser)
    assert isinstance(again, OrderPolicy) and again.config == policy.config
    first, second = (unmask(denoiser, one, Canvas(ROW)) for one in (policy, again))
    assert torch.equal(first.order, second.order) and torch.equal(first.score, second.score)
    with pytest.raises(ValueError, match="reads states of width 16"):
        policy.check(text_denoiser(width=32))
    stored = json.loads((tmp_path / "config.json").read_text())
    stored["blocks"]["ffn" if name == "text" else "intermediate_size"] = 10**9
    (tmp_path / "config.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="the configuration needs"):
        load_scheduler(str(tmp_path))


def test_unknown_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="build it with build_policy"):
        OrderPolicy(GENERAL)
    with pytest.raises(ValueError, match=r"the policy's blocks: .*wdth.*did you mean 'width'"):
        OrderPolicy(dataclasses.replace(GENERAL, blocks={"wdth": 8}))
    with pytest.raises(ValueError, match="a model_type that transformers knows"):
        OrderPolicy(dataclasses.replace(GENERAL, blocks={"model_type": "no-such-model"}))


def test_a_narrow_policy_is_a_small_part_of_a_wide_denoiser() -> None:
    """For LLaDA-8B, whose shape is enough to count."""
    from unmask.training.cost.flops import LLADA_8B, parameters, policy_flops, trunk_flops

    config = PolicyConfig(kind="general", width=512, n_layers=1, n_heads=8)
    assert policy_flops(config, LLADA_8B, 256) < 1e-3 * trunk_flops(LLADA_8B, 256)
    with torch.device("meta"):
        policy = build_policy(config, Transformer(dataclasses.replace(LLADA_8B, n_layers=1)), "llada")
    assert sum(p.numel() for p in policy.parameters()) < 1e-3 * parameters(LLADA_8B)


def _view(denoiser: Any, policy: OrderPolicy) -> Any:
    views: list[Any] = []
    unmask(denoiser, policy, Canvas(ROW), on_step=lambda step: views.append(step.view))
    return views[0]
