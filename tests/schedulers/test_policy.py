"""The policy: starts as confidence, never sees what is hidden, respects the grid's symmetries, and knows what it fits."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Scheduler, Trajectory, View, scheduler
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.config import KINDS, PolicyConfig
from unmask.schedulers.features import hidden_places
from unmask.schedulers.grid import AT_ONCE, Grid
from unmask.schedulers.heuristics import confidence, entropy, left_to_right, margin, uncertainty
from unmask.schedulers.policy import OrderPolicy, build_policy
from unmask.tasks.sudoku.generate import generate
from unmask.tasks.sudoku.symmetry import apply, random_symmetries

DENOISER = load_denoiser("sudoku-9x9-imperfect")


def policy_of(kind: str, seed: int = 0, **options: object) -> OrderPolicy:
    torch.manual_seed(seed)
    config = PolicyConfig(kind=kind, width=8, n_layers=1, n_heads=2, size=9, length=81, vocab_size=10, hidden_width=48)
    if kind == "general":
        config = dataclasses.replace(config, width=48, n_heads=3)
    return build_policy(dataclasses.replace(config, **options), DENOISER, "sudoku-9x9-imperfect")  # pyright: ignore[reportArgumentType]


def stirred(kind: str) -> OrderPolicy:
    """A policy whose readout is not zero: one that has learned something."""
    policy = policy_of(kind)
    torch.nn.init.normal_(policy.network.readout.weight, generator=torch.Generator().manual_seed(1))
    return policy


@functools.cache
def boards(count: int, clues: int = 63) -> tuple[torch.Tensor, torch.Tensor]:
    puzzles, solutions = generate(count, clues=clues, seed=5)
    return torch.from_numpy(puzzles.astype(np.int64)), torch.from_numpy(solutions.astype(np.int64))


@functools.cache
def decoded_by(base: Scheduler) -> Trajectory:
    return unmask(DENOISER, base, boards(3)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", [confidence, uncertainty, margin, entropy, left_to_right])
def test_an_untrained_policy_ranks_as_its_base_does(kind: str, base: Scheduler) -> None:
    policy = policy_of(kind, base=base.__name__)  # pyright: ignore
    if kind == "opinion" and base is not confidence:
        # Its copy ranks as confidence does; a training that keeps another heuristic leaves it no weight.
        torch.nn.init.zeros_(policy.network.readout.weight)
    assert torch.equal(unmask(DENOISER, policy, boards(3)[0]).order, decoded_by(base).order)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_the_target(kind: str) -> None:
    tokens, target = boards(2)
    policy = stirred(kind)
    first = unmask(
        DENOISER, policy, Canvas(tokens[:1], target=target[:1]), Decoding(order_temperature=1.0), forced=True
    )
    other = target[:1].clone()
    hidden = tokens[0] == 0
    other[0, hidden] = other[0, hidden].flip(0)
    second = unmask(DENOISER, policy, Canvas(tokens[:1], target=other), Decoding(order_temperature=1.0), forced=True)
    assert first.states is not None and second.states is not None
    assert torch.equal(first.states.scores[0], second.states.scores[0])


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_observations_reproduce_the_scores(kind: str) -> None:
    tokens, target = boards(3)
    policy = stirred(kind)
    trajectory = unmask(
        DENOISER,
        policy,
        Canvas(tokens, target=target),
        Decoding(order_temperature=1.0),
        forced=True,
        observe=policy.observe,
    )
    states = trajectory.states
    assert states is not None
    again = policy.score(states.observed).masked_fill(~states.eligible, -torch.inf)
    assert torch.allclose(again, states.scores, atol=1e-4)
    logv = policy.logv(again, states.observed)
    taken = logv[states.revealed]
    recorded = torch.stack([trajectory.order_logp[r, k] for r, k in zip(states.row, states.step, strict=True)])
    assert torch.allclose(taken, recorded, atol=1e-4)


def test_grid_policy_is_equivariant() -> None:
    """Relabel digits and move cells: the scores move along. The network is tested alone, the denoiser is not symmetric."""
    policy = stirred("grid")
    generator = torch.Generator().manual_seed(0)
    tokens, _ = boards(4)
    logp = torch.randn(4, 81, 9, generator=generator).log_softmax(-1)
    hidden = tokens == 0
    seen = {
        "hidden": hidden,
        "tokens": tokens,
        "logp": logp,
        "best": torch.where(hidden, logp.argmax(-1) + 1, tokens),
        "confidence": logp.amax(-1).masked_fill(~hidden, -torch.inf),
    }
    symmetries = random_symmetries(4, 9, 3)
    cells = torch.from_numpy(symmetries.cells.astype(np.int64))
    digits = torch.from_numpy(symmetries.digits.astype(np.int64))
    moved_logp = torch.empty_like(logp)
    for b in range(4):
        moved_logp[b][:, digits[b, 1:] - 1] = logp[b][cells[b]]
    moved = {
        "hidden": hidden.gather(1, cells),
        "tokens": torch.from_numpy(apply(symmetries, tokens.numpy().astype(np.int8)).astype(np.int64)),
        "logp": moved_logp,
        "best": digits.gather(1, seen["best"].gather(1, cells)),
        "confidence": seen["confidence"].gather(1, cells),
    }
    assert torch.allclose(policy.score(moved), policy.score(seen).gather(1, cells), atol=1e-4)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_a_grid_policy_mixes_means_over_rows_columns_boxes_and_digits(size: int) -> None:
    """The network in a few plain lines: whole boards, a norm before each layer, every digit of every cell."""
    generator = torch.Generator().manual_seed(size)
    network: Any = Grid(PolicyConfig(kind="grid", width=8, n_layers=3, size=size, vocab_size=size + 1))
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    boards, cells = AT_ONCE + 3, size * size
    hidden = torch.rand(boards, cells, generator=generator) < 0.6
    logp = torch.randn(boards, cells, size, generator=generator).log_softmax(-1)
    tokens = torch.randint(1, size + 1, (boards, cells), generator=generator).masked_fill(hidden, 0)
    best = torch.where(hidden, logp.argmax(-1) + 1, tokens)
    seen = {"hidden": hidden, "tokens": tokens, "logp": logp, "best": best, "confidence": logp.amax(-1)}

    height = {4: 2, 6: 2, 9: 3}[size]
    row, column = torch.arange(cells) // size, torch.arange(cells) % size
    units = [
        (of[:, None] == of).float() / size for of in (row, column, row // height * size + column // (size // height))
    ]
    with torch.no_grad():
        x = network.enter(network.digit_features(seen, best - 1))
        for layer in network.layers:
            inner = F.gelu(layer.look(layer.norm(x)))
            rows, columns, boxes = (torch.einsum("lm,bmnd->blnd", unit, inner) for unit in units)
            mixed = (
                layer.own(inner)
                + layer.line(rows + columns)
                + layer.box(boxes)
                + layer.cell(inner.mean(2, keepdim=True))
            )
            x = x + layer.out(F.gelu(mixed))
        every = network.readout(network.norm(x))[..., 0]
        assert torch.allclose(network(seen, None), every.gather(2, best[..., None] - 1)[..., 0], atol=1e-4)
        at = hidden_places({"hidden": hidden})
        assert torch.allclose(network.compare_tokens(seen, at)[0], every[at], atol=1e-4)


def test_padding_does_not_change_the_scores_of_a_transformer_policy() -> None:
    policy = stirred("transformer")
    generator = torch.Generator().manual_seed(2)
    seen = {
        "hidden": torch.rand(1, 6, generator=generator) < 0.7,
        "tokens": torch.randint(0, 10, (1, 6), generator=generator),
        "confidence": -torch.rand(1, 6, generator=generator),
        "features": torch.randn(1, 6, 4, generator=generator),
        "real": torch.ones(1, 6, dtype=torch.bool),
    }
    padded = {name: torch.cat([value, torch.zeros_like(value[:, :2])], dim=1) for name, value in seen.items()}
    assert torch.allclose(policy.score(padded)[:, :6], policy.score(seen), atol=1e-5)


def test_a_saved_policy_loads_with_its_configuration(tmp_path: Path) -> None:
    policy = stirred("grid")
    policy.save_pretrained(tmp_path)
    again = OrderPolicy.from_pretrained(tmp_path)
    assert again.config == policy.config
    for name, p in again.named_parameters():
        assert torch.equal(p, dict(policy.named_parameters())[name])


def test_a_denoiser_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="10 tokens"):
        policy_of("grid").check(load_denoiser("sudoku-4x4"))
    with pytest.raises(ValueError, match="width 32"):
        OrderPolicy(replace(policy_of("hidden").config, hidden_width=32)).check(DENOISER)
    assert policy_of("hidden").check(DENOISER) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "oracle"}, "kind"),
        ({"kind": "mlp", "features": ("luck",)}, "luck"),
        ({"kind": "mlp", "temperature": 0.0}, "temperature"),
        ({"kind": "mlp", "base": "luck"}, "base must be one of confidence, uncertainty, entropy"),
    ],
)
def test_bad_configurations_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolicyConfig(**options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", KINDS)
def test_policies_price_only_the_positions_that_they_read(kind: str) -> None:
    """A position-wise policy chooses alike whether the rest is priced or not, and does not need it."""
    tokens, _ = boards(2)
    policy = stirred(kind)
    rows: list[int] = []

    def count(view: View) -> torch.Tensor:
        rows.append(len(view.at[0]))
        return policy(view)

    all_priced = unmask(DENOISER, scheduler(prices_all=True)(count), tokens, Decoding(block=9))
    priced, rows[:] = sum(rows), []
    as_needed = unmask(DENOISER, scheduler(prices_all=policy.prices_all)(count), tokens, Decoding(block=9))
    assert torch.equal(all_priced.order, as_needed.order) and torch.equal(all_priced.tokens, as_needed.tokens)
    assert (sum(rows) < priced) == (kind in ("mlp", "hidden", "opinion"))


def test_a_blockwise_transformer_prices_only_its_block() -> None:
    tokens, _ = boards(2)
    rows: dict[bool, int] = {}
    for blockwise in (False, True):
        policy = policy_of("transformer", blockwise=blockwise)
        torch.nn.init.normal_(policy.network.readout.weight, generator=torch.Generator().manual_seed(1))
        trajectory = unmask(
            DENOISER,
            policy,
            tokens,
            Decoding(block=9),
            on_step=lambda s, b=blockwise: rows.update({b: rows.get(b, 0) + len(s.view.at[0])}),
        )
        assert int(trajectory.reveals.sum()) == int((tokens == 0).sum())
    assert rows[True] < rows[False] / 2
    with pytest.raises(ValueError, match="whole board"):
        PolicyConfig(kind="grid", blockwise=True)
