"""Caches compute less and are exact where they say so.

Yardsticks: no cache at all (``refresh=1``; a transformer of one block, whose keys and values depend on nothing but token and
place); and for what is not exact, forwards of the whole canvas in which hooks put stale keys and values in place, with neither
packing nor bookkeeping.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from support.denoisers import CountingTable, text_denoiser
from support.families import write
from support.tokenizers import words
from unmask.decoding.caching import CachedDenoiser, with_cache
from unmask.decoding.guidance import GuidedDenoiser
from unmask.decoding.loop import trajectory_logp, unmask
from unmask.decoding.options import Cache, Decoding
from unmask.decoding.pricing import price
from unmask.decoding.protocols import Canvas, Focus, View, scheduler
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Block, Transformer
from unmask.generation.generate import generate, infill
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence, look_ahead
from unmask.schedulers.policy import OrderPolicy

FAMILIES = {
    "ours": {"logit_shift": False, "positions": "learned", "qkv_bias": False, "max_length": 64},
    "llada": {"logit_shift": False, "qkv_bias": False, "n_kv_heads": None, "rope_float32": True},
    "dream": {"logit_shift": True, "qkv_bias": True},
}
PROMPTS = ["w3 w4 w6 w7 w9", "w8", "w10 w11 w12 w13 w14 w15 w16"]


def model(family: str, layers: int = 2) -> Transformer:
    return text_denoiser(n_layers=layers, end_ids=(), **FAMILIES[family])


def canvases(denoiser: Transformer, rows: int = 4, prompt: int = 5, length: int = 12) -> dict[str, Any]:
    """Prompts of different lengths, padded on the left, some tokens of the answer given."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(1, 12, (rows, prompt + length), generator=generator)
    given = torch.rand(rows, length, generator=generator) < 0.2
    tokens[:, prompt:] = torch.where(given, tokens[:, prompt:], denoiser.mask_id)
    places = torch.arange(prompt + length).expand(rows, -1)
    return {
        "tokens": tokens,
        "attention": places >= (torch.arange(rows) % 3)[:, None],
        "region": places >= prompt,
    }


def decode(
    denoiser: Any,
    scheduler: Any = confidence,
    decoding: Decoding = Decoding(block=4),  # noqa: B008
    on_step: Any = None,
    **canvas: Any,
) -> Any:
    return unmask(denoiser, scheduler, Canvas(**canvas), decoding, on_step=on_step)


def assert_same(a: Any, b: Any) -> None:
    for name in ("tokens", "order", "step", "logp"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_refresh_at_every_step_is_no_cache(family: str, cache: Cache) -> None:
    denoiser = model(family)
    canvas = canvases(denoiser)
    plain, exact = decode(denoiser, **canvas), decode(with_cache(denoiser, cache, 1), **canvas)
    assert_same(plain, exact)
    assert exact.positions == plain.positions == plain.denoiser_calls * canvas["tokens"].shape[1]


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize(("family", "steps"), [("ours", None), ("llada", 6), ("dream", None), ("dream", 6)])
def test_a_cache_is_exact_for_one_transformer_block(family: str, cache: Cache, steps: int | None) -> None:
    """Keys and values of the only block are functions of token and place: none is ever stale."""
    denoiser = model(family, layers=1)
    canvas = canvases(denoiser)
    plain, reused = (decode(d, decoding=Decoding(4, steps), **canvas) for d in (denoiser, with_cache(denoiser, cache)))
    assert torch.equal(plain.order, reused.order)
    assert torch.equal(plain.tokens, reused.tokens)
    assert torch.allclose(plain.logp, reused.logp, atol=1e-5)
    assert reused.positions < plain.positions


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_block_computes_what_is_priced(family: str, cache: Cache) -> None:
    """Where the scheduler reads prices alone; one that may read states finds them all, as did every scheduler before."""
    denoiser = model(family)
    canvas = canvases(denoiser)
    del canvas["attention"]
    canvas["tokens"] = canvas["tokens"].masked_fill(
        canvas["region"], denoiser.mask_id
    )  # all rows are in the same block
    last = denoiser.blocks[-1]
    assert isinstance(last, Block)
    rows: list[int] = []
    handle = last.ffn.register_forward_hook(lambda _m, inputs, _o: rows.append(inputs[0].shape[:-1].numel()))
    views: list[View] = []

    def watching(view: View) -> Tensor:
        views.append(view)
        return view.confidence

    with_states = decode(with_cache(denoiser, cache), watching, **canvas)
    whole, rows[:] = list(rows), []
    narrow = decode(with_cache(denoiser, cache), **canvas)
    handle.remove()
    assert torch.equal(with_states.order, narrow.order) and torch.equal(with_states.tokens, narrow.tokens)
    torch.testing.assert_close(with_states.logp, narrow.logp, atol=1e-5, rtol=0)
    assert all(bool((view.states != 0).any(2).all()) for view in views)
    if family == "dream":  # whose positions are predicted by their neighbours
        assert rows == whole
    else:
        assert rows == [len(view.at[0]) for view in views]
        assert sum(rows) < sum(whole)


class Stale:
    """The same decoding by whole forwards: keys and values outside ``computed`` are replaced by those of the last exact one."""

    def __init__(self, denoiser: Transformer) -> None:
        self.denoiser, self.kept, self.computed = denoiser, {}, None
        for number, block in enumerate(denoiser.blocks):
            for name in ("k", "v"):
                getattr(block.attention, name).register_forward_hook(self.hook(f"{name}{number}"))  # pyright: ignore

    def hook(self, name: str) -> Any:
        def replaced(_module: Any, _inputs: Any, output: Tensor) -> Tensor:
            if self.computed is None:
                self.kept[name] = output
                return output
            return torch.where(self.computed[..., None], output, self.kept[name])

        return replaced

    def __call__(self, tokens: Tensor, attention: Tensor | None, computed: Tensor | None) -> Tensor:
        self.computed = computed
        return self.denoiser.hidden(tokens, attention)


@torch.no_grad()
def plain_cached_decode(
    denoiser: Transformer, tokens: Tensor, attention: Tensor, start: int, block: int, cache: Cache, refresh: int
) -> list[int]:
    """One row by confidence: its order, by the definition."""
    stale, tokens, order, length = Stale(denoiser), tokens.clone()[None], [], len(tokens)
    place = torch.arange(length)
    for begin in range(start, length, block):
        inside = (place >= begin) & (place < begin + block)
        again = inside if cache == "dual" else place >= begin
        if denoiser.config.logit_shift:
            again = again | again.roll(-1) & (place < length - 1)
        since = 0
        while bool((hidden := (tokens[0] == denoiser.mask_id) & inside).any()):
            exact = since % refresh == 0
            states = stale(tokens, attention[None], None if exact else again[None])
            prices = price(denoiser.logits(states[0, hidden]), denoiser.forbidden_ids)
            best = int(prices.confidence.argmax())
            order.append(int(torch.nonzero(hidden)[best]))
            tokens[0, order[-1]] = prices.best[best]
            since += 1
    return [*order, *tokens[0].tolist()]


@pytest.mark.parametrize("refresh", [3, 99])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", FAMILIES)
def test_stale_keys_and_values_match_the_definition(family: str, cache: Cache, refresh: int) -> None:
    """Rows of a padded batch, which are in different blocks most of the time, against each row by itself in plain forwards."""
    denoiser, start = model(family, layers=3), 5
    canvas = canvases(denoiser, rows=3)
    trajectory = decode(with_cache(denoiser, cache, refresh), **canvas)
    for row in range(len(trajectory.tokens)):
        plain = model(family, layers=3)
        wanted = plain_cached_decode(plain, canvas["tokens"][row], canvas["attention"][row], start, 4, cache, refresh)
        n = int(trajectory.reveals[row])
        assert [*trajectory.order[row, :n].tolist(), *trajectory.tokens[row].tolist()] == wanted


def test_a_cache_is_not_exact_for_several_blocks() -> None:
    """Otherwise the tests above could not fail."""
    denoiser = model("dream", layers=3)
    canvas = canvases(denoiser, rows=8)
    exact, reused = decode(denoiser, **canvas), decode(with_cache(denoiser, "dual"), **canvas)
    assert not torch.allclose(exact.logp, reused.logp, atol=1e-3)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["ours", "dream"])
def test_a_row_does_not_depend_on_its_batch(family: str, cache: Cache) -> None:
    """Nor on padding: rows that leave early, stand in other blocks and are refreshed at other times, against each alone."""
    denoiser = model(family, layers=3)
    canvas = canvases(denoiser, rows=5)
    canvas["tokens"][1, 7:] = 3  # leaves at once, almost
    canvas["tokens"][3, 5:9] = 4  # begins in the second block
    seeds = torch.arange(5) + 7
    decoding = Decoding(4, None, order_temperature=0.5, token_temperature=0.8)
    together = decode(with_cache(denoiser, cache, 3), decoding=decoding, seeds=seeds, **canvas)
    for row in range(5):
        real = canvas["attention"][row]
        alone = decode(
            with_cache(denoiser, cache, 3),
            decoding=decoding,
            seeds=seeds[row : row + 1],
            tokens=canvas["tokens"][row : row + 1, real],
            region=canvas["region"][row : row + 1, real],
        )
        n = int(alone.reveals[0])
        assert int(together.reveals[row]) == n
        assert torch.equal(together.order[row, :n] - int((~real).sum()), alone.order[0, :n])
        assert torch.equal(together.tokens[row, real], alone.tokens[0])
        assert torch.allclose(together.logp[row, :n], alone.logp[0, :n], atol=1e-4)


def test_one_cache_serves_one_decoding_after_another() -> None:
    denoiser = model("llada")
    reused = with_cache(denoiser, "dual", 3)
    first, second = canvases(denoiser), canvases(denoiser, length=8)
    once = decode(reused, **first)
    decode(reused, **second)
    assert_same(decode(reused, **first), once)


def test_equal_canvases_are_not_shared() -> None:
    """Two rows may reach one canvas by different ways, and have kept different things."""
    denoiser = model("llada", layers=3)
    canvas = canvases(denoiser, rows=1)
    many = {name: tensor.repeat(6, 1) for name, tensor in canvas.items()}
    decodings = [Decoding(6, order_temperature=3.0, share=share) for share in (False, True)]
    trajectories = [
        decode(with_cache(denoiser, "dual"), decoding=decoding, seeds=torch.arange(6), **many) for decoding in decodings
    ]
    assert_same(*trajectories)


def test_positions_are_counted_as_they_are_computed() -> None:
    """4 of 12 tokens a block, 5 before them: 17 positions where a block begins; then the block, or all from the block on."""
    denoiser = model("llada")
    tokens = torch.full((2, 17), denoiser.mask_id)
    tokens[:, :5] = 3
    caches: dict[Cache, list[int]] = {"dual": [4, 4, 4], "prefix": [12, 8, 4]}
    for cache, later in caches.items():
        trajectory = decode(with_cache(denoiser, cache), tokens=tokens)
        assert trajectory.positions == 2 * sum(17 + 3 * n for n in later)
        assert trajectory.denoiser_calls == 2 * 12
        trajectory = decode(with_cache(denoiser, cache, 2), tokens=tokens)
        assert trajectory.positions == 2 * sum(2 * 17 + 2 * n for n in later)
    shifted = decode(with_cache(model("dream"), "dual"), tokens=tokens)
    assert shifted.positions == 2 * 3 * (17 + 3 * 5)  # and the left neighbour of a block's first token
    counting = CountingTable(mask_id=12, vocabulary=13)
    trajectory = decode(counting, tokens=tokens)
    assert trajectory.positions == 17 * trajectory.denoiser_calls == 17 * counting.forwarded


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_guidance_stores_both_canvases_separately(cache: Cache) -> None:
    """Exact for one block of weights; for several, with a refresh at every step."""
    for layers, refresh in ((1, None), (2, 1)):
        denoiser = model("llada", layers)
        canvas = canvases(denoiser)
        plain, reused = (
            decode(GuidedDenoiser(d, 1.5, 5), **canvas) for d in (denoiser, with_cache(denoiser, cache, refresh))
        )
        assert torch.equal(plain.order, reused.order)
        assert torch.allclose(plain.logp, reused.logp, atol=1e-4)
        assert plain.denoiser_calls == reused.denoiser_calls
    # Both halves have the prompt's or the masks' keys, not each other's.
    denoiser = model("llada", 3)
    tokens = canvases(denoiser)["tokens"]
    focus = Focus(torch.arange(4), torch.zeros(4, dtype=torch.long), torch.arange(17).expand(4, -1) >= 9, 0)
    reused = GuidedDenoiser(with_cache(denoiser, cache), 1.5, 5)
    with torch.no_grad():
        first = reused.hidden(tokens, None, focus)
        again = reused.hidden(tokens, None, replace(focus, step=1))
    assert torch.allclose(first, again, atol=1e-5)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_grid_is_cached_too(cache: Cache) -> None:
    """Heads that see a row, a column or a box; given and hidden cells in each block; three layers, so that much is stale."""

    def grid() -> Transformer:
        shape = {"n_heads": 3, "n_kv_heads": None, "width": 24, "grid": 4, "positions": "learned", "max_length": 16}
        return text_denoiser(n_layers=3, end_ids=(), logit_shift=False, qkv_bias=False, **shape)

    denoiser = grid()
    tokens = torch.randint(1, 12, (3, 16), generator=torch.Generator().manual_seed(3))
    hidden = torch.rand(3, 16, generator=torch.Generator().manual_seed(4)) < 0.7
    tokens, region = tokens.masked_fill(hidden, denoiser.mask_id), torch.ones_like(hidden)
    exact = decode(denoiser, tokens=tokens, region=region)
    assert_same(exact, decode(with_cache(denoiser, cache, 1), tokens=tokens, region=region))
    trajectory = decode(with_cache(denoiser, cache), tokens=tokens, region=region)
    assert trajectory.positions < exact.positions
    assert not torch.allclose(trajectory.logp, exact.logp, atol=1e-3)
    for row in range(3):
        wanted = plain_cached_decode(grid(), tokens[row], region[row], 0, 4, cache, 99)
        n = int(trajectory.reveals[row])
        assert [*trajectory.order[row, :n].tolist(), *trajectory.tokens[row].tolist()] == wanted


@pytest.mark.parametrize("kind", ["transformer", "hidden"])
def test_a_policy_sees_stored_prices_outside_the_block(kind: str) -> None:
    """Positions behind the block have the prices of the last exact step in ``dual`` and those of now in ``prefix``."""
    denoiser = model("llada", layers=2)
    config = PolicyConfig(
        kind, 8, 1, 2, tokens=False, residual=False, vocab_size=13, mask_id=12, hidden_width=denoiser.config.width
    )
    torch.manual_seed(0)
    policy = OrderPolicy(config).requires_grad_(False)
    canvas = canvases(denoiser)
    assert_same(decode(denoiser, policy, **canvas), decode(with_cache(denoiser, "dual", 1), policy, **canvas))
    for cache in get_args(Cache)[1:]:
        seen: list[View] = []

        @scheduler(prices_all=True)
        def spy(view: View, seen: list[View] = seen) -> Tensor:
            seen.append(view)
            return policy(view)

        trajectory = decode(with_cache(denoiser, cache), spy, tokens=canvas["tokens"][:1], region=canvas["region"][:1])
        assert int(trajectory.reveals[0]) == int((canvas["tokens"][0] == 12).sum())
        assert not (trajectory.tokens == 12).any()
        first, second = seen[:2]
        behind = second.hidden & ~second.eligible
        assert torch.equal(first.eligible & ~second.eligible, first.tokens != second.tokens)  # the same block
        assert torch.equal(first.entropy[behind], second.entropy[behind]) == (cache == "dual")
        assert not torch.equal(first.entropy[second.eligible], second.entropy[second.eligible])


def test_looking_ahead_and_likelihoods_are_exact() -> None:
    """A call without a focus returns the canvas's own states and leaves the cache as it is."""
    denoiser = model("llada")
    canvas = canvases(denoiser)
    reused = with_cache(denoiser, "dual", 1)
    assert_same(decode(denoiser, look_ahead(3), **canvas), decode(reused, look_ahead(3), **canvas))
    stale = CachedDenoiser(denoiser, "dual")
    trajectory = decode(stale, **canvas)
    logp = [
        trajectory_logp(d, trajectory.tokens, trajectory.order, attention=canvas["attention"])
        for d in (denoiser, stale)
    ]
    assert torch.equal(*logp)


def test_returned_states_are_never_overwritten() -> None:
    denoiser = model("llada")
    held: list[tuple[Tensor, Tensor]] = []
    decode(
        with_cache(denoiser, "dual", 3),
        on_step=lambda step: held.append((step.view.states, step.view.states.clone())),
        **canvases(denoiser),
    )
    assert len(held) > 6
    assert all(torch.equal(now, then) for now, then in held)


@pytest.mark.parametrize("family", ["llada", "illada", "dream", "smdm"])
def test_generate_with_every_family(tmp_path: Path, family: str) -> None:
    lengths = {"llada": {"max_sequence_length": 64}, "smdm": {}}.get(family, {"max_position_embeddings": 64})
    denoiser = load_denoiser(write(tmp_path / family, family, **lengths))
    decoding = Decoding(block=4, stop_at_end=False)

    def continue_prompts(**changed: Any) -> Any:
        return generate(denoiser, words(31), PROMPTS, decoding=replace(decoding, **changed), length=12).trajectory

    plain, guided = continue_prompts(), continue_prompts(guidance=0.5)
    for cache in get_args(Cache)[1:]:
        assert torch.equal(continue_prompts(cache=cache, refresh=1).tokens, plain.tokens)
        cached = continue_prompts(cache=cache, guidance=0.5)
        assert cached.denoiser_calls == guided.denoiser_calls
        assert cached.positions < guided.positions
        assert not (cached.tokens == denoiser.mask_id).any()
    gaps = infill(denoiser, words(31), ["w3 <mask:4> w6 <mask>"], decoding=Decoding(block=2, cache="dual", refresh=2))
    assert int(gaps.trajectory.reveals[0]) == 5


def test_what_is_refused() -> None:
    denoiser = model("llada")
    with pytest.raises(ValueError, match="CountingTable does not"):
        with_cache(CountingTable(), "dual")
    assert with_cache(denoiser) is denoiser
    reused = CachedDenoiser(denoiser, "dual")
    active = torch.ones(1, 4, dtype=torch.bool)
    tokens = torch.full((1, 4), denoiser.mask_id)
    row = torch.zeros(1, dtype=torch.long)
    reused.hidden(tokens, None, Focus(row, row, active, 0))
    with pytest.raises(ValueError, match="has not seen"):
        reused.hidden(tokens, None, Focus(row + 1, row, active, 1))
