"""The general policy of small vocabularies: the denoiser's attention, a vector per position and token; saved, padded, refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas
from unmask.denoisers.attention import attend_to_shared
from unmask.denoisers.masked_lm import MaskedLM
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy, build_policy
from unmask.schedulers.token_network import TokenNetwork
from unmask.training.cost.flops import policy_flops

MASK = 9
VOCABULARY = 12
POLICY = PolicyConfig(kind="general", width=48, n_layers=2, n_heads=2, token_width=6)
ROWS = torch.tensor([[1, 7, MASK, 4, MASK, MASK, 3, 2], [MASK, 5, 0, MASK, 8, 11, MASK, MASK]])


def make_denoiser(**changes: Any) -> Transformer:
    shape = TransformerConfig(
        vocab_size=VOCABULARY, width=16, n_layers=3, n_heads=4, ffn=24, mask_id=MASK, n_kv_heads=2, qk_norm=True
    )
    shape = dataclasses.replace(shape, **changes)
    return Transformer(shape).initialise(torch.Generator().manual_seed(0)).requires_grad_(False).eval()


def make_bert() -> MaskedLM:
    transformers = pytest.importorskip("transformers", reason="masked language models come from transformers")
    torch.manual_seed(0)
    layers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=20, pad_token_id=0, **layers)
    return MaskedLM(transformers.AutoModelForMaskedLM.from_config(config).eval(), mask_id=MASK)


def stirred(denoiser: Any, config: PolicyConfig = POLICY) -> OrderPolicy:
    """A policy that has learned something."""
    policy = build_policy(config, denoiser, "denoiser")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return policy.eval().requires_grad_(False)


def observe(denoiser: Any, policy: OrderPolicy, canvas: Canvas) -> dict[str, torch.Tensor]:
    """What the policy reads in the first state."""
    trajectory = unmask(denoiser, policy, canvas, observe=policy.observe)
    assert trajectory.states is not None
    first = trajectory.states.step == 0
    return {name: value[first] for name, value in trajectory.states.observed.items()}


@pytest.mark.parametrize("make", [make_denoiser, make_bert])
def test_an_untrained_policy_orders_as_confidence(make: Any) -> None:
    denoiser = make()
    policy = build_policy(POLICY, denoiser, "denoiser").eval()
    assert isinstance(policy.network, TokenNetwork)
    ours, theirs = (unmask(denoiser, scheduler, Canvas(ROWS)) for scheduler in (policy, confidence))
    assert torch.equal(ours.order, theirs.order)


def test_it_looks_where_the_last_blocks_of_the_denoiser_look() -> None:
    denoiser = make_denoiser()
    network = build_policy(POLICY, denoiser, "denoiser").network
    assert isinstance(network, TokenNetwork) and len(network.layers) == 2
    for layer, block in zip(network.layers, denoiser.blocks[1:], strict=True):
        for name in ("attention.q.weight", "attention.k.weight", "attention.k_norm.weight", "attention_norm.weight"):
            assert torch.equal(layer.get_parameter(name), block.get_parameter(name))


def test_blocks_remain_where_the_vocabulary_is_large_or_states_are_not_read() -> None:
    large, alone = make_denoiser(vocab_size=20), dataclasses.replace(POLICY, states=False)
    for denoiser, config in ((large, POLICY), (make_denoiser(), alone)):
        assert not isinstance(build_policy(config, denoiser, "denoiser").network, TokenNetwork)


def test_tokens_can_change_names_until_a_vector_of_one_is_learned() -> None:
    """With the same states, relabelled tokens and distributions give the same scores: all tokens have the same weights."""
    denoiser = make_denoiser()
    policy = stirred(denoiser)
    network = policy.network
    assert isinstance(network, TokenNetwork)
    seen = observe(denoiser, policy, Canvas(ROWS))
    order = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 11, 10])  # the new name of each token; the mask keeps its own
    inverse = order.argsort()
    features = seen["features"].clone()
    p, logp = features[..., -2 * VOCABULARY :].chunk(2, dim=-1)
    features[..., -2 * VOCABULARY :] = torch.cat([p[..., inverse], logp[..., inverse]], dim=-1)
    renamed = {**seen, "features": features, "tokens": order[seen["tokens"]]}
    assert not torch.allclose(policy.score(seen), policy.score(renamed), atol=1e-3)
    network.token.zero_()
    assert torch.allclose(policy.score(seen), policy.score(renamed), atol=1e-5)
    assert not torch.allclose(policy.score(seen), policy.score({**seen, "tokens": renamed["tokens"]}), atol=1e-3)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_padding_and_other_rows_change_nothing(positions: str) -> None:
    denoiser = make_denoiser(positions=positions)
    policy = stirred(denoiser)
    alone = unmask(denoiser, policy, Canvas(ROWS[:1]))
    padded = torch.cat([torch.full((1, 2), 10), ROWS[:1]], dim=1)
    other = torch.cat([ROWS[1:], ROWS[1:, :2]], dim=1)
    attention = torch.tensor([[False] * 2 + [True] * 8, [True] * 10])
    together = unmask(denoiser, policy, Canvas(torch.cat([padded, other]), attention=attention))
    assert torch.equal(together.tokens[0, 2:], alone.tokens[0])
    reveals = int(alone.reveals[0])
    assert torch.equal(together.order[0, :reveals] - 2, alone.order[0, :reveals])


def test_heads_with_shared_values_attend_as_others() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, *shape, generator=generator) for shape in ((3, 4, 5), (6, 2, 5), (6, 5)))
    mask = torch.rand(2, 1, 3, 6, generator=generator) < 0.7
    each = [x.transpose(1, 2) for x in (q, k.repeat_interleave(2, dim=2), v[:, :, None].expand(-1, -1, 4, -1))]
    expected = torch.nn.functional.scaled_dot_product_attention(*each, attn_mask=mask).transpose(1, 2)
    assert torch.allclose(attend_to_shared(q, k, v, mask), expected, atol=1e-6)


def test_heads_that_see_a_few_positions_look_at_them_alone() -> None:
    """Scores and gradients are those of masked attention to the whole board."""
    denoiser = make_denoiser(
        vocab_size=5, mask_id=0, width=24, n_heads=6, n_kv_heads=None, positions="learned", grid=4, max_length=16
    )
    policy = stirred(denoiser).requires_grad_(True)
    network = policy.network
    assert isinstance(network, TokenNetwork) and network.near is not None and network.near.shape == (16, 6, 4)
    boards = torch.randint(0, 5, (3, 16), generator=torch.Generator().manual_seed(2)).masked_fill(
        torch.eye(3, 16) > 0, 0
    )
    seen = observe(denoiser, policy, Canvas(boards))
    found = []
    for near in (network.near, None):
        network.near = near
        scores = policy.score(seen)
        gradients = torch.autograd.grad(scores.square().sum(), list(policy.parameters()))
        found.append((scores.detach(), *gradients))
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4, rtol=1e-4)
    assert policy_flops(POLICY, denoiser.config, 16) > 0  # counted on meta tensors, which have no values to search


def test_a_saved_policy_orders_the_same_and_impossible_sizes_are_refused(tmp_path: Path) -> None:
    denoiser = make_denoiser()
    policy = stirred(denoiser)
    policy.save_pretrained(tmp_path)
    loaded = load_scheduler(str(tmp_path), denoiser)
    assert torch.equal(unmask(denoiser, loaded, Canvas(ROWS)).order, unmask(denoiser, policy, Canvas(ROWS)).order)
    file = tmp_path / "config.json"
    stored = json.loads(file.read_text())
    for change in ({"token_width": 10**6}, {"blocks": {**stored["blocks"], "n_layers": 10**6}}):
        file.write_text(json.dumps({**stored, **change}))
        with pytest.raises(ValueError, match="does not fit its configuration"):
            load_scheduler(str(tmp_path), denoiser)
