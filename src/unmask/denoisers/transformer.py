"""One transformer for every denoiser: ours and the published families differ only in its configuration.

Shapes: ``B`` canvases, ``L`` positions, ``D`` width, ``H`` heads, ``V`` vocabulary.

The block is Llama's without the causal mask: RMSNorm, rotary or learned positions, optionally grouped key/value heads,
optionally a bias or a norm on q and k, SwiGLU or a mixture of them. Attention is full, or limited:

* ``block_causal``: a position sees its block of ``attention_block`` places, counted from the first token of the row, and those
  before it (LLaDA 2, SDAR).
* ``causal_prefix``: what is being decoded, the ``Focus``, sees itself and everything before it; the rest sees what is before it
  (Nemotron).

Two things are ours:

* ``grid``: heads are tied to the relations of a Sudoku grid. A third of them attends within rows, a third within columns, a
  third within boxes.
* ``hidden`` returns the vector that *predicts* position ``i`` at index ``i``. Dream predicts a token from its left neighbour's
  state (``logit_shift``), others the first token of a block (``seeded``); the shift happens here, and nothing downstream
  knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.decoding.block_rule import BlockRule
from unmask.decoding.kv_store import Exchange, KVStore, Packed, Place, Window
from unmask.decoding.protocols import Focus
from unmask.denoisers.attention import make_attend, related_cells
from unmask.denoisers.config import TransformerConfig
from unmask.denoisers.experts import Experts, SwiGLU


class Lookup(nn.Module):
    """Queries and keys: which positions a position looks at."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.n_kv_heads = config.n_kv_heads or config.n_heads
        self.head_width = config.inner_width
        self.q = nn.Linear(config.width, self.n_heads * self.head_width, bias=config.qkv_bias)
        self.k = nn.Linear(config.width, self.n_kv_heads * self.head_width, bias=config.qkv_bias)
        self.q_norm, self.k_norm = (RMSNorm(config, self.head_width) if config.qk_norm else None for _ in "qk")

    def forward(
        self, x: Float[Tensor, "B L D"], queries: Float[Tensor, "*N D"], scale: Float[Tensor, "D"] | None = None
    ) -> tuple[Float[Tensor, "*N H w"], Float[Tensor, "B L K w"]]:
        """``queries`` look at ``x``. With a ``scale`` both are as if they were multiplied by it."""
        looked = ((self.q, queries), (self.k, x))
        q, k = (part(x) if scale is None else _project_scaled(part, x, scale) for part, x in looked)
        q = q.unflatten(-1, (self.n_heads, self.head_width))
        k = k.unflatten(-1, (self.n_kv_heads, self.head_width))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return q, k


def _project_scaled(layer: nn.Linear, x: Float[Tensor, "*N D"], scale: Float[Tensor, "D"]) -> Float[Tensor, "*N C"]:
    return F.linear(x, layer.weight * scale, layer.bias)


class Attention(Lookup):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.v = nn.Linear(config.width, self.n_kv_heads * self.head_width, bias=config.qkv_bias)
        self.out = nn.Linear(self.n_heads * self.head_width, config.width, bias=False)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        x: Float[Tensor, "B L D"],
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
        queries: Float[Tensor, "N D"] | None = None,
    ) -> Float[Tensor, "*N D"]:
        """``queries`` attend to ``x``; without them ``x`` attends to itself."""
        q, k = super().forward(x, x if queries is None else queries)
        v = self.v(x).unflatten(-1, (self.n_kv_heads, self.head_width))
        return self.out(attend(q, k, v).flatten(-2))


class RMSNorm(nn.RMSNorm):
    """torch's norm, which rounds once, at its end; or Llama's, which rounds what is normalised and then what is weighted."""

    def __init__(self, config: TransformerConfig, width: int | None = None) -> None:
        super().__init__(width or config.width, eps=config.norm_eps)
        self.rounds_first = config.norm_rounds_first

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        if not self.rounds_first or x.dtype == torch.float32:
            return super().forward(x)
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + (self.eps or 0.0))).to(x.dtype)


class Block(nn.Module):
    def __init__(self, config: TransformerConfig, number: int = 0) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config)
        if config.experts is None or number in config.experts.dense:
            self.ffn = SwiGLU(config.width, config.ffn)
        else:
            self.ffn = Experts(config.width, config.experts)

    def forward(
        self, x: Float[Tensor, "B L D"], attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Float[Tensor, "B L D"]:
        x = x + self.attention(self.attention_norm(x), attend)
        return x + self.ffn(self.ffn_norm(x))

    def forward_at(
        self, x: Float[Tensor, "B L D"], attend: Callable[[Tensor, Tensor, Tensor], Tensor], at: Place
    ) -> Float[Tensor, "N D"]:
        """The (row, position) pairs ``at`` alone, which attend to all of ``x``; ``attend`` takes and returns rows of queries."""
        seen = self.attention_norm(x)
        y = x[at] + self.attention(seen, attend, seen[at])
        return y + self.ffn(self.ffn_norm(y))


class Transformer(nn.Module):
    """A ``Denoiser``. Build it from a configuration, or load one with :func:`unmask.load_denoiser`."""

    related: Tensor | None
    name: str = ""
    """The name or folder that it was loaded by, by which heads are found."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.positions == "rotary" and (config.rotary_width or config.inner_width) % 2:
            raise ValueError("rotary positions turn pairs: the width of a head must be even")
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.position = nn.Embedding(config.max_length, config.width) if config.positions == "learned" else None
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.n_layers))
        self.norm = RMSNorm(config)
        self.head = nn.Linear(config.width, config.head_rows or config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        self.register_buffer("related", related_cells(config), persistent=False)
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

    @property
    def block_rule(self) -> BlockRule | None:
        """The blocks in which it must be decoded, if its attention is limited to blocks."""
        c = self.config
        if c.attention_block is None:
            return None
        return BlockRule(c.attention_block, from_start=c.attention == "block_causal", seeded=c.seeded)

    @property
    def takes_focus(self) -> bool:
        return self.config.attention == "causal_prefix"

    @property
    def _shifts(self) -> bool:
        """Whether a position may be predicted from its left neighbour's state."""
        return self.config.logit_shift or self.config.seeded

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
        active: Bool[Tensor, "B L"] | slice | None = None,
        at: Place | None = None,
        focus: Focus | None = None,
    ) -> Float[Tensor, "B L D"]:
        """States that predict each position. ``attention`` is False on padding, which is neither seen nor counted in positions.

        ``store`` is filled with keys, values and states. With ``active`` too, only those positions are computed (a slice: the same
        in every row, without padding); the others keep the keys, values and states of the time when ``store`` was filled.
        ``at`` are the (row, position) pairs whose states are needed: the last block computes no others where it can, and what it
        returns elsewhere means nothing. ``focus`` is what ``causal_prefix`` attention needs.
        """
        if self.takes_focus and focus is None:
            raise ValueError(
                "this denoiser's attention depends on the block that is being decoded: it works inside unmask(), generate() and "
                "policy training, not on canvases alone"
            )
        if tokens.shape[1] > self.config.max_length:
            raise ValueError(f"a canvas of {tokens.shape[1]} positions exceeds the denoiser's {self.config.max_length}")
        places, packed = number_places(tokens, attention), None
        here, computed = places, tokens
        if active is not None:
            packed = self._needed(active, attention)
            here, computed = (packed.take(x) for x in (places, tokens))
        self._count(len(tokens), computed.numel())
        x = self.embedding(computed)
        if self.position is not None:
            x = x + self.position(here)
        attend = make_attend(self.config, self.related, here, places, attention, x.dtype, packed, focus)
        *first, last = (attend if s is None else partial(attend, exchange=s) for s in self._exchanges(store, packed))
        for block, look in zip(self.blocks, first, strict=False):
            x = block(x, look)
        if at is not None and not self._shifts and not isinstance(packed, Packed):
            x = self._finish_at(x, last, at, tokens.shape, packed)
            return x if store is None else store.merge_states(x, None)
        x = self.norm(self.blocks[-1](x, last)).to(tokens.device)  # the last block may stand on another device
        if store is not None:
            x = store.merge_states(x, packed)
        return self._shift(x, places, focus)

    def _count(self, canvases: int, positions: int) -> None:
        if not torch.compiler.is_compiling():  # a compiled graph would be made anew for every count
            self.forwarded, self.computed = self.forwarded + canvases, self.computed + positions

    def _exchanges(self, store: KVStore | None, packed: Packed | Window | None) -> list[Exchange | None]:
        """Of each block: what puts its keys and values into the ``store``."""
        return [None if store is None else store.exchange(number, packed) for number in range(len(self.blocks))]

    def _finish_at(
        self,
        x: Float[Tensor, "B A D"],
        attend: Callable[..., Tensor],
        at: Place,
        shape: torch.Size,
        window: Window | None,
    ) -> Float[Tensor, "B L D"]:
        """The last block and the norm of some positions; 0 elsewhere."""
        row, position = (index.to(x.device) for index in at)
        place = row, position if window is None else position - window.span.start
        last = self.blocks[-1]
        assert isinstance(last, Block)
        y = self.norm(last.forward_at(x, spread_queries(attend, x.shape[:2], place), place)).to(at[0].device)
        return y.new_zeros(*shape, y.shape[-1]).index_put_(at, y)

    def logits(self, hidden: Float[Tensor, "*N D"]) -> Float[Tensor, "*N V"]:
        return self.head(hidden).to(hidden.device)

    def new_store(self) -> KVStore:
        """An empty store for what ``hidden`` may reuse."""
        return KVStore()

    def _needed(self, active: Bool[Tensor, "B L"] | slice, attention: Bool[Tensor, "B L"] | None) -> Packed | Window:
        """What must be computed for the states of ``active``: with a shift also the left neighbours; never padding."""
        if isinstance(active, slice):
            return Window(slice(max(0, active.start - self.config.logit_shift), active.stop))
        if self.config.logit_shift:
            active = active | F.pad(active[:, 1:], (0, 1), value=False)
        return Packed.of(active if attention is None else active & attention)

    def _shift(
        self, x: Float[Tensor, "B L D"], places: Int[Tensor, "B L"], focus: Focus | None
    ) -> Float[Tensor, "B L D"]:
        """The states that predict each position: left neighbours', of all positions or of the first one of the focus."""
        if self.config.logit_shift:
            moved = places > 0  # a row's first token has no left neighbour (padding is none): its own state predicts it
        elif self.config.seeded and focus is not None:
            moved = focus.active & ~F.pad(focus.active[:, :-1], (1, 0)) & (places > 0)
        else:
            return x
        return torch.where(moved[..., None], x.roll(1, dims=1), x)

    def last_blocks(self, count: int) -> Blocks:
        """A copy of the last ``count`` blocks, or of all if there are fewer."""
        count = min(count, self.config.n_layers)
        copied = Blocks(self.config.of_blocks(count))
        copied.blocks.load_state_dict(self.blocks[-count:].state_dict())
        return copied


class Blocks(nn.Module):
    """``config.n_layers`` blocks without embeddings and head, from states to states."""

    related: Tensor | None

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.n_layers))
        self.register_buffer("related", related_cells(config), persistent=False)

    @property
    def width(self) -> int:
        return self.config.width

    @property
    def shape(self) -> dict[str, Any]:
        """What builds them again."""
        return self.config.changed()

    def forward(
        self, x: Float[Tensor, "B L D"], attention: Bool[Tensor, "B L"] | None, at: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "N D"]:
        """The states of the (row, position) pairs ``at``. Only they go through the blocks; the others stay as they are, and every
        block attends to them."""
        places = number_places(x, attention)
        packed, place = Packed.of_queries(at, x.shape[:2])
        attend = make_attend(self.config, self.related, packed.take(places), places, attention, x.dtype, packed)

        attend_from = spread_queries(attend, packed.column.shape, place)
        y = x[at]
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x = x.index_put(at, y) if number else x
            y = block.forward_at(x, attend_from, at)
        return y


def spread_queries(attend: Callable[..., Tensor], shape: torch.Size, place: Place) -> Callable[..., Tensor]:
    """``attend`` for rows of queries that stand at ``place`` among those that it was made for."""

    def attend_from(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide = q.new_zeros(*shape, *q.shape[1:]).index_put(place, q)
        return attend(wide, k, v)[place]

    return attend_from


def number_places(canvas: Shaped[Tensor, "B L ..."], attention: Bool[Tensor, "B L"] | None) -> Int[Tensor, "B L"]:
    """The index of each token among its row's real tokens, so that padding on either side moves nothing."""
    if attention is None:
        return torch.arange(canvas.shape[1], device=canvas.device).expand(canvas.shape[:2])
    return (attention.long().cumsum(1) - 1).clamp(min=0)
