"""The shape of the one transformer that every denoiser runs on."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, fields, replace
from typing import Annotated, Any, Literal

import pydantic

from unmask.denoisers.experts import ExpertsConfig
from unmask.denoisers.rotary import Yarn
from unmask.runs.config import Count, Positive, config

OUTSIDE_BLOCKS = ("head_rows", "tied_head", "logit_shift", "pad_id", "end_ids", "forbidden_ids", "seeded")
"""The fields of a configuration that are not about its blocks."""
ATTENTION_ALONE = 1
"""The width of the feed-forward layers in a shape of which only the attention is used."""
LARGEST_GRID = 25
"""The relations of a grid's cells are a mask of its size to the fourth."""


@config
class TransformerConfig:
    """The shape of a denoiser and the ids it reserves.

    Attributes:
        vocab_size: Tokens, the mask included.
        width: The width of the states.
        n_layers: Blocks.
        n_heads: Attention heads.
        ffn: The inner width of the SwiGLU.
        mask_id: The token that stands for a hidden position.
        max_length: The longest canvas.
        n_kv_heads: Heads of keys and values; as many as queries if None.
        head_width: The width of an attention head; width / n_heads if None.
        head_rows: The V of the logits; vocab_size if None.
        positions: rotary, learned or none.
        rope_theta: The base of the rotary frequencies.
        rope_float32: Rotate queries and keys in float32 whatever the weights are, as LLaDA does.
        qkv_bias: Queries, keys and values have a bias.
        norm_eps: Added to the variance in the norms.
        norm_rounds_first: In types below float32, round the normalised states before the norm's weight multiplies them, as Llama's
            code does.
        tied_head: The head shares the embedding's weights.
        logit_shift: Logits of a position are read one position before it, as Dream does.
        grid: The side of a board whose rows, columns and boxes a third of the heads each is tied to.
        pad_id: The token that pads a batch.
        end_ids: Tokens that end an answer.
        forbidden_ids: Tokens that are never revealed.
        qk_norm: Normalise queries and keys.
        rotary_width: The channels of a head that are rotated, from the first on; all if None.
        yarn: YaRN's scaling of the rotary frequencies.
        attention: full, block_causal or causal_prefix.
        attention_block: The size of the blocks that limited attention counts in.
        seeded: The first token of a block is revealed first, predicted from what stands before it.
        experts: The mixture of experts in place of the SwiGLU.
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
    norm_rounds_first: bool = False
    tied_head: bool = False
    logit_shift: bool = False
    grid: Annotated[int, pydantic.Field(ge=1, le=LARGEST_GRID)] | None = None
    pad_id: int | None = None
    end_ids: tuple[int, ...] = ()
    forbidden_ids: tuple[int, ...] = ()
    qk_norm: bool = False
    rotary_width: Count | None = None
    yarn: Yarn | None = None
    attention: Literal["full", "block_causal", "causal_prefix"] = "full"
    attention_block: Count | None = None
    seeded: bool = False
    experts: ExpertsConfig | None = None

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
        if (self.attention == "full") != (self.attention_block is None):
            raise ValueError(
                f"attention is {self.attention!r} and attention_block {self.attention_block}: full attention has no blocks, the "
                "others need their size"
            )

    @property
    def inner_width(self) -> int:
        """The width of a head."""
        return self.head_width or self.width // self.n_heads

    def ffn_widths(self, taken: bool = False) -> dict[int, int]:
        """The width of all SwiGLUs of a layer together, or only of those that a position takes → how many layers have it."""
        e = self.experts
        if e is None:
            return {self.ffn: self.n_layers}
        mixed = (e.top if taken else e.count) * e.ffn + e.shared_ffn
        dense = sum(n < self.n_layers for n in {*e.dense})
        return dict(Counter({self.ffn: dense}) + Counter({mixed: self.n_layers - dense}))

    @property
    def least_weights(self) -> int:
        """A lower bound on the number of weights, known before memory is allocated for them."""
        places = self.max_length if self.positions == "learned" else 0
        head = 0 if self.tied_head else self.head_rows or self.vocab_size
        inner = self.n_heads * self.inner_width
        ffn = sum(width * layers for width, layers in self.ffn_widths().items())
        return self.width * (self.vocab_size + places + head + self.n_layers * 2 * inner + 3 * ffn)

    def changed(self) -> dict[str, Any]:
        """The values that are not defaults, for JSON."""
        defaults = {field.name: field.default for field in fields(self)}  # pyright: ignore[reportArgumentType]
        return {name: value for name, value in asdict(self).items() if value != defaults[name]}

    def attention_alone(self) -> TransformerConfig:
        """Without what a block computes from what it has seen."""
        return replace(self, ffn=ATTENTION_ALONE, experts=None)

    def of_blocks(self, count: int) -> TransformerConfig:
        """The last ``count`` blocks by themselves, without embeddings and head. Learned positions are added below them."""
        positions = "rotary" if self.positions == "rotary" else "none"
        plain = {field.name: field.default for field in fields(self) if field.name in OUTSIDE_BLOCKS}  # pyright: ignore[reportArgumentType]
        below = self.n_layers - count
        mixed = self.experts and replace(self.experts, dense=tuple(n - below for n in self.experts.dense if n >= below))
        return replace(self, vocab_size=1, n_layers=count, mask_id=0, positions=positions, experts=mixed, **plain)  # pyright: ignore[reportArgumentType]
