"""One bidirectional transformer for every denoiser: ours, LLaDA, SMDM and Dream differ only in its configuration.

Shapes: ``B`` canvases, ``L`` positions, ``D`` width, ``H`` heads, ``V`` vocabulary.

The block is Llama's without the causal mask: RMSNorm, rotary or learned positions, optionally grouped key/value heads,
optionally a bias on q, k and v, SwiGLU. Two things are ours:

* ``grid``: heads are tied to the relations of a Sudoku grid. A third of them attends within rows, a third within columns, a
  third within boxes.
* ``hidden`` returns the vector that *predicts* position ``i`` at index ``i``. Dream predicts a token from its left neighbour's
  state (``logit_shift``); the shift happens here, and nothing downstream knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import pydantic
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.decoding.kv_store import Exchange, KVStore, Packed
from unmask.runs.config import Count, Positive, config

LARGEST_GRID = 25
"""The relations of a grid's cells are a mask of its size to the fourth."""


@config
class TransformerConfig:
    """The shape of a denoiser and the ids it reserves. ``head_rows`` (``vocab_size`` if None) is the ``V`` of its logits.

    ``rope_float32``: rotate queries and keys in float32 whatever the weights are, as LLaDA does.
    """

    vocab_size: Count
    width: Count
    n_layers: Count
    n_heads: Count
    ffn: Count
    mask_id: int
    max_length: Count = 4096
    n_kv_heads: Count | None = None
    head_width: Count | None = None
    head_rows: Count | None = None
    positions: Literal["rotary", "learned", "none"] = "rotary"
    rope_theta: Positive = 10_000.0
    rope_float32: bool = False
    qkv_bias: bool = False
    norm_eps: Positive = 1e-5
    tied_head: bool = False
    logit_shift: bool = False
    grid: Annotated[int, pydantic.Field(ge=1, le=LARGEST_GRID)] | None = None
    pad_id: int | None = None
    end_ids: tuple[int, ...] = ()
    forbidden_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.head_width is None and self.width % self.n_heads:
            raise ValueError(
                f"width {self.width} is not a multiple of n_heads {self.n_heads}: change either or set head_width"
            )
        if self.n_heads % (self.n_kv_heads or self.n_heads):
            raise ValueError(f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}")
        if self.grid is not None and (self.n_heads % 3 or self.n_kv_heads not in (None, self.n_heads)):
            raise ValueError(
                f"a grid ties heads to rows, columns and boxes: n_heads must be a multiple of 3 and not grouped, got {self.n_heads}"
            )

    @property
    def least_weights(self) -> int:
        """A lower bound on the number of weights, known before memory is allocated for them."""
        places = self.max_length if self.positions == "learned" else 0
        head = 0 if self.tied_head else self.head_rows or self.vocab_size
        inner = self.n_heads * (self.head_width or self.width // self.n_heads)
        return self.width * (self.vocab_size + places + head + self.n_layers * (2 * inner + 3 * self.ffn))


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.n_kv_heads = config.n_kv_heads or config.n_heads
        self.head_width = config.head_width or config.width // config.n_heads
        kv_width = self.n_kv_heads * self.head_width
        self.q = nn.Linear(config.width, self.n_heads * self.head_width, bias=config.qkv_bias)
        self.k = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
        self.v = nn.Linear(config.width, kv_width, bias=config.qkv_bias)
        self.out = nn.Linear(self.n_heads * self.head_width, config.width, bias=False)

    def forward(
        self, x: Float[Tensor, "B L D"], attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Float[Tensor, "B L D"]:
        q, k, v = (
            proj(x).unflatten(-1, (heads, self.head_width))
            for proj, heads in ((self.q, self.n_heads), (self.k, self.n_kv_heads), (self.v, self.n_kv_heads))
        )
        return self.out(attend(q, k, v).flatten(-2))


class SwiGLU(nn.Module):
    def __init__(self, width: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, ffn, bias=False)
        self.up = nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.ffn = SwiGLU(config.width, config.ffn)

    def forward(
        self, x: Float[Tensor, "B L D"], attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Float[Tensor, "B L D"]:
        x = x + self.attention(self.attention_norm(x), attend)
        return x + self.ffn(self.ffn_norm(x))


class Transformer(nn.Module):
    """A ``Denoiser``. Build it from a configuration, or load one with :func:`unmask.load_denoiser`."""

    related: Tensor | None
    name: str = ""
    """The name or folder that it was loaded by, by which heads are found."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.positions == "rotary" and (config.head_width or config.width // config.n_heads) % 2:
            raise ValueError("rotary positions turn pairs: the width of a head must be even")
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.position = nn.Embedding(config.max_length, config.width) if config.positions == "learned" else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.head_rows or config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        related = _related(config.grid, config.n_heads) if config.grid else None
        self.register_buffer("related", related, persistent=False)
        self.forwarded = 0
        self.computed = 0

    @property
    def device(self) -> torch.device:
        """Where canvases belong. Weights that wait elsewhere for their turn are moved by accelerate's hooks."""
        hook = getattr(self.embedding, "_hf_hook", None)
        named = [getattr(one, "execution_device", None) for one in getattr(hook, "hooks", (hook,))]
        return torch.device(next((d for d in named if d is not None), self.embedding.weight.device))

    @property
    def mask_id(self) -> int:
        return self.config.mask_id

    @property
    def pad_id(self) -> int | None:
        return self.config.pad_id

    @property
    def end_ids(self) -> tuple[int, ...]:
        return self.config.end_ids

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """Ids that may never be revealed: the mask, and whatever else the configuration reserves."""
        rows = self.config.head_rows or self.config.vocab_size
        return tuple(i for i in (self.config.mask_id, *self.config.forbidden_ids) if i < rows)

    def initialise(self, generator: torch.Generator | None = None) -> Transformer:
        """GPT-2's initialisation: normal 0.02, biases 0, projections into the residual stream scaled down by depth."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("out.weight", "down.weight"))
                std = 0.02 / (2 * self.config.n_layers) ** 0.5 if residual else 0.02
                nn.init.normal_(parameter, std=std, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        return self

    def hidden(
        self,
        tokens: Int[Tensor, "B L"],
        attention: Bool[Tensor, "B L"] | None = None,
        store: KVStore | None = None,
        active: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """States that predict each position. ``attention`` is False on padding, which is neither seen nor counted in positions.

        ``store`` is filled with keys, values and states. With ``active`` too, only those positions are computed; the others keep
        the keys, values and states of the time when ``store`` was filled.
        """
        self.forwarded += len(tokens)
        if tokens.shape[1] > self.config.max_length:
            raise ValueError(f"a canvas of {tokens.shape[1]} positions exceeds the denoiser's {self.config.max_length}")
        places, packed = _places(tokens, attention), None
        here, computed = places, tokens
        if active is not None:
            packed = Packed.of(self._needed(active, attention))
            here, computed = (x.gather(1, packed.column) for x in (places, tokens))
        self.computed += computed.numel()
        x = self.embedding(computed)
        if self.position is not None:
            x = x + self.position(here)
        attend = self._attend(here, attention, x.dtype, packed)
        for number, block in enumerate(self.blocks):
            x = block(x, attend if store is None else partial(attend, exchange=store.exchange(number, packed)))
        x = self.norm(x).to(tokens.device)  # the last block may stand on another device than the first
        if store is not None:
            x = store.merge_states(x, packed)
        # A row's first token has no left neighbour (padding is none): it is predicted from its own state.
        return torch.where(places[..., None] == 0, x, x.roll(1, dims=1)) if self.config.logit_shift else x

    def logits(self, hidden: Float[Tensor, "*N D"]) -> Float[Tensor, "*N V"]:
        return self.head(hidden).to(hidden.device)

    def new_store(self) -> KVStore:
        """An empty store for what ``hidden`` may reuse."""
        return KVStore()

    def _needed(self, active: Bool[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None) -> Bool[Tensor, "B L"]:
        """What must be computed for the states of ``active``: with a shift also the left neighbours; never padding."""
        if self.config.logit_shift:
            active = active | F.pad(active[:, 1:], (0, 1), value=False)
        return active if attention is None else active & attention

    def _attend(
        self,
        places: Int[Tensor, "B A"],
        attention: Bool[Tensor, "B L"] | None,
        dtype: torch.dtype,
        packed: Packed | None = None,
    ) -> Callable[..., Tensor]:
        """Attention of the positions that are computed, standing at ``places``, to all ``L``."""
        turn = None
        if self.config.positions == "rotary":
            width = self.config.head_width or self.config.width // self.config.n_heads
            precision = torch.float32 if self.config.rope_float32 else dtype
            turn = _rotary(places, width, self.config.rope_theta, precision)
        mask = None
        if self.related is not None:
            # In three dimensions it would miss the fused kernel.
            mask = self.related[None] if packed is None else self.related[:, packed.column].transpose(0, 1)
        if attention is not None and not bool(attention.all()):
            seen = attention[:, None, None, :]
            mask = seen if mask is None else seen & mask
        return partial(_attention, {places.device: (turn, mask)})


def _attention(
    held: dict[torch.device, tuple[tuple[Tensor, Tensor] | None, Tensor | None]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    exchange: Exchange | None = None,
) -> Tensor:
    """Attention with the angles and the mask that are ``held`` for a device; another one that holds a block gets a copy."""
    there = q.device
    if there not in held:
        turn, mask = next(iter(held.values()))
        moved = None if turn is None else (turn[0].to(there), turn[1].to(there))
        held[there] = (moved, None if mask is None else mask.to(there))
    angles, seen = held[there]
    if angles is not None:
        q, k = ((x * angles[0] + _half_turn(x) * angles[1]).to(v.dtype) for x in (q, k))
    if exchange is not None:
        k, v = exchange(k, v)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2)


def _places(tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None) -> Int[Tensor, "B L"]:
    """The index of each token among its row's real tokens, so that padding on either side moves nothing."""
    if attention is None:
        return torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    return (attention.long().cumsum(1) - 1).clamp(min=0)


def _rotary(
    places: Int[Tensor, "B L"], width: int, theta: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "B L 1 w"], Float[Tensor, "B L 1 w"]]:
    """Half-split rotary angles (pair ``(i, i + w/2)``), computed in float32 whatever the weights are.

    1/θ^e and not θ^−e: they differ in the last bit, which a thousand positions on is the fourth decimal of an angle, and the
    published models were trained with the former.
    """
    exponent = torch.arange(0, width, 2, device=places.device, dtype=torch.float32) / width
    angle = places[..., None].float() * (1.0 / theta**exponent)
    angle = torch.cat([angle, angle], dim=-1)[:, :, None, :]
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _half_turn(x: Float[Tensor, "B L H w"]) -> Float[Tensor, "B L H w"]:
    left, right = x.chunk(2, dim=-1)
    return torch.cat([-right, left], dim=-1)


def _related(size: int, n_heads: int) -> Bool[Tensor, "H L L"]:
    """Which cells each head sees on a ``size``×``size`` grid: a third of the heads its row, a third its column, a third its box.

    Attention over the ``size`` cells of a unit alone would do less arithmetic, but on CPUs it is slower than the fused kernel
    with a mask: the units are too small to fill it.
    """
    height = max(h for h in range(1, size + 1) if size % h == 0 and h * h <= size)
    cell = torch.arange(size * size)
    row, column = cell // size, cell % size
    box = row // height * height + column // (size // height)
    same = torch.stack([unit[:, None] == unit for unit in (row, column, box)])
    return same.repeat_interleave(n_heads // 3, dim=0)
