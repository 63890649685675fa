"""The transformer against a plain float64 one, what padding, shifts and grids may and may not do, and its folder."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.denoisers import text_denoiser
from unmask.decoding.loop import unmask
from unmask.denoisers.attention import related_cells
from unmask.denoisers.checkpoint import load_folder, read_config, save_denoiser
from unmask.denoisers.rotary import half_turn, rotary
from unmask.denoisers.transformer import Transformer
from unmask.schedulers.heuristics import confidence

TOKENS = torch.tensor([5, 12, 3, 12, 7, 9, 12])
LEARNED = {"positions": "learned", "max_length": 16, "logit_shift": False, "qkv_bias": False}


def plain_hidden(denoiser: Transformer, tokens: Tensor) -> Tensor:
    """One row, float64, head by head and query by query."""
    c = denoiser.config
    w = {name: p.double() for name, p in denoiser.named_parameters()}
    width = c.head_width or c.width // c.n_heads
    per_group = c.n_heads // (c.n_kv_heads or c.n_heads)

    def norm(x: Tensor, scale: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + c.norm_eps).sqrt() * scale

    def turn(x: Tensor, place: int) -> Tensor:
        if c.positions != "rotary":
            return x
        y = x.clone()
        for i in range(width // 2):
            angle = place * c.rope_theta ** (-2 * i / width)
            a, b = x[i], x[i + width // 2]
            y[i] = a * math.cos(angle) - b * math.sin(angle)
            y[i + width // 2] = b * math.cos(angle) + a * math.sin(angle)
        return y

    x = w["embedding.weight"][tokens]
    if c.positions == "learned":
        x = x + w["position.weight"][: len(tokens)]
    for n in range(c.n_layers):
        part = lambda name, n=n: w[f"blocks.{n}.{name}"]  # noqa: E731
        y = norm(x, part("attention_norm.weight"))
        q, k, v = (y @ part(f"attention.{a}.weight").T for a in "qkv")
        if c.qkv_bias:
            q, k, v = (z + part(f"attention.{a}.bias") for a, z in zip("qkv", (q, k, v), strict=True))
        out = torch.zeros(len(tokens), c.n_heads * width, dtype=torch.float64)
        for h in range(c.n_heads):
            mine, theirs = slice(h * width, (h + 1) * width), h // per_group
            shared = slice(theirs * width, (theirs + 1) * width)
            keys = torch.stack([turn(k[j, shared], j) for j in range(len(tokens))])
            for i in range(len(tokens)):
                weight = (keys @ turn(q[i, mine], i) / math.sqrt(width)).softmax(0)
                out[i, mine] = weight @ v[:, shared]
        x = x + out @ part("attention.out.weight").T
        y = norm(x, part("ffn_norm.weight"))
        gate = y @ part("ffn.gate.weight").T
        x = x + (gate * gate.sigmoid() * (y @ part("ffn.up.weight").T)) @ part("ffn.down.weight").T
    x = norm(x, w["norm.weight"])
    return torch.stack([x[max(0, i - 1)] for i in range(len(tokens))]) if c.logit_shift else x


@pytest.mark.parametrize(
    "changes",
    [{}, {"logit_shift": False, "n_kv_heads": None}, {"n_kv_heads": 1, "head_width": 6, "rope_theta": 50.0}, LEARNED],
)
def test_the_transformer_matches_a_plain_reference(changes: dict[str, Any]) -> None:
    denoiser = text_denoiser(**changes)
    hidden = denoiser.hidden(TOKENS[None])[0]
    torch.testing.assert_close(hidden.double(), plain_hidden(denoiser, TOKENS), atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(denoiser.logits(hidden), hidden @ denoiser.head.weight.T)


@pytest.mark.parametrize("changes", [{}, {"logit_shift": False}, LEARNED])
@pytest.mark.parametrize(("left", "right"), [(0, 3), (3, 0), (2, 2)])
def test_padding_changes_nothing(left: int, right: int, changes: dict[str, Any]) -> None:
    """Whatever stands in it, and the first real position included, which under a shift has no left neighbour."""
    denoiser, n = text_denoiser(**changes), len(TOKENS)
    alone = denoiser.hidden(TOKENS[None])
    generator = torch.Generator().manual_seed(0)
    fill = torch.randint(13, (4, left + n + right), generator=generator)
    fill[:, left : left + n] = TOKENS
    attention = torch.zeros_like(fill, dtype=torch.bool)
    attention[:, left : left + n] = True
    padded = denoiser.hidden(fill, attention)[:, left : left + n]
    torch.testing.assert_close(padded, alone.expand(4, -1, -1), atol=2e-5, rtol=2e-5)
    seen = denoiser.hidden(fill, attention | True)[:, left : left + n]
    assert (seen - alone).abs().max() > 1e-2  # without the mask it does change something


def test_an_attention_mask_of_ones_changes_nothing() -> None:
    denoiser = text_denoiser()
    assert torch.equal(
        denoiser.hidden(TOKENS[None], torch.ones(1, len(TOKENS), dtype=torch.bool)), denoiser.hidden(TOKENS[None])
    )


def test_rotary_attention_depends_on_distances_only() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=generator, dtype=torch.float64)

    def product(i: int, j: int) -> float:
        turned = []
        for x, place in ((q, i), (k, j)):
            cos, sin = rotary(torch.tensor([[place]]), 8, 100.0, torch.float64)
            turned.append(x * cos + half_turn(x) * sin)
        return (turned[0] * turned[1]).sum().item()

    for distance in (-3, 0, 5):
        assert product(4 + distance, 4) == pytest.approx(product(40 + distance, 40), abs=1e-4)
    assert len({round(product(i, 0), 3) for i in range(6)}) == 6
    assert product(7, 7) == pytest.approx((q * k).sum().item(), abs=1e-5)


def test_a_shift_moves_every_prediction_by_one() -> None:
    shifted, aligned = text_denoiser(), text_denoiser(logit_shift=False)
    ours, theirs = shifted.hidden(TOKENS[None]), aligned.hidden(TOKENS[None])
    assert torch.equal(ours[:, 1:], theirs[:, :-1])
    assert torch.equal(ours[:, 0], theirs[:, 0])


def test_grouped_heads_are_repeated_heads() -> None:
    grouped = text_denoiser(n_kv_heads=2)
    full = text_denoiser(n_kv_heads=4)
    weights = dict(grouped.state_dict())
    for name in list(weights):
        if ".k." in name or ".v." in name:
            weights[name] = weights[name].unflatten(0, (2, -1)).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    torch.testing.assert_close(full.hidden(TOKENS[None]), grouped.hidden(TOKENS[None]), atol=1e-5, rtol=1e-5)


def grid_denoiser(size: int, layers: int = 1) -> Transformer:
    shape = {
        "vocab_size": size + 1,
        "mask_id": 0,
        "pad_id": None,
        "end_ids": (),
        "forbidden_ids": (),
        "max_length": size**2,
    }
    heads = {"width": 12, "n_heads": 3, "n_kv_heads": None, "n_layers": layers, "grid": size}
    return text_denoiser(**{**LEARNED, **shape, **heads, "max_length": size**2})


@pytest.mark.parametrize(("size", "box"), [(4, (2, 2)), (6, (2, 3)), (9, (3, 3))])
def test_a_grid_sees_rows_columns_and_boxes(size: int, box: tuple[int, int]) -> None:
    """In one layer a cell answers to its twenty (on 9×9) relatives only."""
    place = [(cell // size, cell % size) for cell in range(size**2)]
    unit = [
        [row for row, _ in place],
        [column for _, column in place],
        [row // box[0] * size + column // box[1] for row, column in place],
    ]
    heads = related_cells(replace(grid_denoiser(size).config, n_heads=6))
    assert heads is not None
    for head in range(6):
        mine = torch.tensor(unit[head // 2])
        assert torch.equal(heads[head], mine[:, None] == mine)
    denoiser = grid_denoiser(size)
    tokens = torch.randint(size + 1, (1, size**2), generator=torch.Generator().manual_seed(0))
    before = denoiser.hidden(tokens)[0]
    for cell in (0, size + 1, size**2 - 2):
        changed = tokens.clone()
        changed[0, cell] = (changed[0, cell] + 1) % (size + 1)
        moved = (denoiser.hidden(changed)[0] - before).abs().amax(1)
        related = torch.tensor([any(u[cell] == u[other] for u in unit) for other in range(size**2)])
        assert (moved[~related] == 0).all() and (moved[related] > 1e-6).all()
        assert int(related.sum()) == 3 * size - 2 - (box[0] + box[1] - 2)
    assert (
        (grid_denoiser(size, 2).hidden(changed)[0] - grid_denoiser(size, 2).hidden(tokens)[0]).abs().amax(1) > 0
    ).all()


@pytest.mark.parametrize("name", ["embedding.weight", "blocks.1.ffn.down.weight", "head.weight"])
def test_broken_weights_are_named(name: str) -> None:
    denoiser = text_denoiser()
    with torch.no_grad():
        dict(denoiser.named_parameters())[name].fill_(torch.nan)
    with pytest.raises(ValueError, match=r"NaN or infinite.*check its weights and dtype"):
        unmask(denoiser, confidence, TOKENS[None])


def test_ids_and_counts() -> None:
    denoiser = text_denoiser(head_rows=12)  # as in SMDM: the head has no row for the mask
    assert denoiser.forbidden_ids == (0,)
    assert text_denoiser().forbidden_ids == (12, 0)
    denoiser.hidden(TOKENS.expand(3, -1))
    assert denoiser.forwarded == 3
    tokens = unmask(denoiser, confidence, TOKENS[None]).tokens
    assert not ((tokens == 12) | (tokens == 0))[0, TOKENS == 12].any()
    with pytest.raises(ValueError, match="canvas of 7 positions exceeds the denoiser's 6"):
        text_denoiser(max_length=6).hidden(TOKENS[None])
    first, second, other = (
        Transformer(denoiser.config).initialise(torch.Generator().manual_seed(s)).state_dict() for s in (1, 1, 2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"positions": "sinus"}, "positions: expected"),
        ({"width": 18}, "width 18 is not a multiple of n_heads 4"),
        ({"n_kv_heads": 3}, "n_heads 4 is not a multiple of n_kv_heads 3"),
        ({"grid": 4}, "multiple of 3"),
    ],
)
def test_configurations_are_checked(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        text_denoiser(**wrong)


@pytest.mark.parametrize("changes", [{}, {"tied_head": True}, LEARNED])
def test_save_and_load_round_trip(changes: dict[str, Any], tmp_path: Path) -> None:
    denoiser = text_denoiser(**changes)
    loaded = load_folder(save_denoiser(denoiser, tmp_path / "deep" / "folder"))
    assert loaded.config == denoiser.config
    assert torch.equal(loaded.logits(loaded.hidden(TOKENS[None])), denoiser.logits(denoiser.hidden(TOKENS[None])))
    assert not any(p.requires_grad for p in loaded.parameters()) and not loaded.training
    half = load_folder(save_denoiser(denoiser, tmp_path / "half", torch.float16))
    torch.testing.assert_close(half.embedding.weight, denoiser.embedding.weight, atol=1e-3, rtol=1e-3)
    assert half.embedding.weight.dtype == torch.float32
    assert load_folder(tmp_path / "half", torch.bfloat16).hidden(TOKENS[None]).dtype == torch.bfloat16


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    save_denoiser(text_denoiser(), tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    kept = {name: w for name, w in weights.items() if name != "norm.weight"}
    for stored, message in (
        (kept, "norm.weight is missing"),
        ({**weights, "spare": torch.zeros(1)}, "spare is not in the model"),
        ({**weights, "norm.weight": torch.zeros(3)}, r"norm.weight has shape \(3,\), expected \(16,\)"),
    ):
        save_file(stored, file)
        with pytest.raises(ValueError, match=message):
            load_folder(tmp_path)
    for content in (b"", b"not a safetensors file"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="cannot read the weights"):
            load_folder(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match="cannot read the weights"):
        load_folder(tmp_path)


def test_configurations_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a denoiser's folder with a config.json"):
        read_config(tmp_path / "absent")
    save_denoiser(text_denoiser(), tmp_path)
    good = json.loads((tmp_path / "config.json").read_text())
    no_width = {key: value for key, value in good.items() if key != "width"}
    for content, message in (
        ("{", "not valid JSON"),
        ("[1]", "must hold a JSON object"),
        (json.dumps({**good, "family": "llada"}), "not a denoiser of this library"),
        (json.dumps({**good, "heads": 4}), r"unknown key 'heads'"),
        (json.dumps(no_width), "width"),
        (json.dumps({**good, "positions": "sinus"}), "positions: expected"),
        (json.dumps({**good, "n_heads": "4"}), "config.json"),
    ):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            load_folder(tmp_path)
