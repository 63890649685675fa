"""Attention of one forward: rotary angles, what a position may see, the kernel.

Shapes: ``B`` canvases, ``L`` positions, ``A`` of them computed, ``H`` heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from unmask.decoding.kv_store import Exchange, Packed, Window
from unmask.decoding.protocols import Focus
from unmask.denoisers.config import TransformerConfig
from unmask.denoisers.rotary import rotary, turn

Spans = list[tuple[slice, Tensor]]
"""Where the real tokens of a padded batch stand, and the rows in which they stand there."""
ANSWERS: Any = WeakTensorKeyDictionary()
"""What the host knows of tensors that are alive: their version, and the answers to questions about it."""


def make_attend(
    config: TransformerConfig,
    related: Bool[Tensor, "H L L"] | None,
    here: Int[Tensor, "B A"],
    places: Int[Tensor, "B L"],
    attention: Bool[Tensor, "B L"] | None,
    dtype: torch.dtype,
    packed: Packed | Window | None = None,
    focus: Focus | None = None,
) -> Callable[..., Tensor]:
    """Attention of the positions that are computed, standing at ``here``, to all ``L``."""
    angles, scale = _turns(config, here, places, dtype, packed)
    mask = _limit(config, here, places, focus)
    if related is not None:
        # In three dimensions it would miss the fused kernel.
        mask = related[None] if packed is None else packed.seen_by(related)
    spans: Spans | None = None
    if attention is not None and is_padded(attention):
        if mask is None and packed is None and dtype != torch.float32 and not torch.compiler.is_compiling():
            spans = _ask_once(attention, _find_spans)
        if spans is None:
            seen = attention[:, None, None, :]
            mask = seen if mask is None else seen & mask
    return partial(_attention, {here.device: (*angles, scale, mask)}, spans)


def _turns(
    config: TransformerConfig,
    here: Int[Tensor, "B A"],
    places: Int[Tensor, "B L"],
    dtype: torch.dtype,
    packed: Packed | Window | None,
) -> tuple[tuple[Tensor | None, ...], Tensor | None]:
    """Cosines and sines of the queries' and of the keys' rotations, and the scale of the queries; None without them."""
    if config.positions != "rotary":
        return (None,) * 4, None
    angles_at = partial(
        rotary,
        width=config.rotary_width or config.inner_width,
        theta=config.rope_theta,
        dtype=torch.float32 if config.rope_float32 else dtype,
        yarn=config.yarn,
    )
    queries = angles_at(here)
    keys = angles_at(places) if isinstance(packed, Packed) and packed.queries_only else queries
    grows = config.yarn is not None and config.yarn.query_growth > 0
    return (*queries, *keys), config.yarn.query_scale(here).to(dtype) if config.yarn and grows else None


def _limit(
    config: TransformerConfig, here: Int[Tensor, "B A"], places: Int[Tensor, "B L"], focus: Focus | None
) -> Bool[Tensor, "#B #H A L"] | None:
    """What the configuration lets the positions ``here`` see, padding aside; None is everything."""
    if config.attention == "block_causal":
        blocks, own = (x // (config.attention_block or 1) for x in (places, here))
        return blocks[:, None, None, :] <= own[:, None, :, None]
    if focus is not None and config.attention == "causal_prefix":
        inside = focus.active[:, None, None, :] & focus.active[:, None, :, None]
        return inside | (places[:, None, None, :] <= here[:, None, :, None])
    return None


def is_padded(attention: Bool[Tensor, "B L"]) -> bool:
    """Whether some row is padded; a graph that is being compiled serves those that are, and so all."""
    return torch.compiler.is_compiling() or _ask_once(attention, _has_padding)


def _has_padding(attention: Bool[Tensor, "B L"]) -> bool:
    return not bool(attention.all())


def _ask_once(attention: Bool[Tensor, "B L"], question: Callable[[Tensor], Any]) -> Any:
    """An answer for which the host waits, found once for a tensor that does not change: in all steps in which no row leaves."""
    if attention.is_inference():  # whose changes are not counted
        return question(attention)
    version, answers = ANSWERS.get(attention, (None, {}))
    if version != attention._version:
        version, answers = ANSWERS[attention] = (attention._version, {})
    if question not in answers:
        answers[question] = question(attention)
    return answers[question]


def _find_spans(attention: Bool[Tensor, "B L"]) -> Spans | None:
    """One span for each place and length; None where padding stands between real tokens."""
    first, count = attention.int().argmax(1), attention.sum(1)
    place = torch.arange(attention.shape[1], device=attention.device)
    whole = ((place >= first[:, None]) & (place < (first + count)[:, None])) == attention
    found: dict[tuple[int, int], list[int]] = {}
    for row, (start, length, solid) in enumerate(torch.stack([first, count, whole.all(1)], dim=1).cpu().tolist()):
        if not solid:
            return None
        found.setdefault((start, start + length), []).append(row)
    return [(slice(*ends), torch.tensor(rows, device=attention.device)) for ends, rows in found.items()]


def _attention(
    held: dict[torch.device, tuple[Tensor | None, ...]],
    spans: Spans | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    exchange: Exchange | None = None,
    product: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Attention with the angles, the scale and the mask ``held`` for a device; another one that holds a block gets a copy.

    With ``spans`` rows attend to their own tokens without a mask, those of one length together: the same kernel as for a row alone,
    to the bit, and on GPUs the fast one, which knows neither masks nor, with them, grouped heads.
    """
    there = q.device
    if there not in held:
        held[there] = tuple(None if x is None else x.to(there) for x in next(iter(held.values())))
    q_cos, q_sin, k_cos, k_sin, scale, mask = held[there]
    if q_cos is not None and q_sin is not None and k_cos is not None and k_sin is not None:
        q, k = turn(q, q_cos, q_sin, v.dtype), turn(k, k_cos, k_sin, v.dtype)
    if scale is not None:
        q = q * scale
    if exchange is not None:
        k, v = exchange(k, v)
    if spans is None:
        return (product or _scaled_dot_product)(q, k, v, mask)
    y = torch.zeros_like(q)
    for span, rows in spans:
        rows = rows.to(there)
        y[rows, span] = _scaled_dot_product(*(x[rows, span] for x in (q, k, v)))
    return y


def _scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2)


def attend_to_shared(
    q: Float[Tensor, "B A H w"], k: Float[Tensor, "B L K w"], v: Float[Tensor, "B L C"], mask: Tensor | None = None
) -> Float[Tensor, "B A H C"]:
    """Attention whose heads have the same values, of any width: one product for all heads."""
    q, k = (q * q.shape[-1] ** -0.5).transpose(1, 2), k.transpose(1, 2)
    if k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    logits = q @ k.transpose(2, 3)
    if mask is not None:
        logits = torch.where(mask, logits, -torch.inf)
    return (logits.softmax(-1).flatten(1, 2) @ v).unflatten(1, q.shape[1:3]).transpose(1, 2)


def related_cells(config: TransformerConfig) -> Bool[Tensor, "H L L"] | None:
    """Which cells of a grid each head sees: a third of the heads its row, a third its column, a third its box; None without a grid.

    Attention over the ``size`` cells of a unit alone would do less arithmetic, but on CPUs it is slower than the fused kernel
    with a mask: the units are too small to fill it. It is made by numpy, so that it has content where weights have none.
    """
    size = config.grid
    if size is None:
        return None
    height = max(h for h in range(1, size + 1) if size % h == 0 and h * h <= size)
    row, column = np.divmod(np.arange(size * size), size)
    box = row // height * height + column // (size // height)
    same = np.stack([unit[:, None] == unit for unit in (row, column, box)])
    return torch.from_numpy(same.repeat(config.n_heads // 3, axis=0))
