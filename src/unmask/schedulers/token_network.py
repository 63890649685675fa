"""The general policy for small vocabularies: a vector for every hidden position *and* token, the same weights for all of them.

It knows nothing of a task. Which positions a position looks at comes from the denoiser: queries and keys are copies of those of its
last blocks, computed from its states. What it sees there are the vectors of each token: probabilities at hidden positions, what is
known at revealed ones. That a token is already taken elsewhere, or has one place left, is one comparison in such vectors; blocks
that mix tokens in a state have to learn it for every token anew. A learned vector of each token starts at zero.

``b`` states, ``L`` positions, ``N`` hidden ones of all states, ``V`` tokens but the mask, ``d`` width of a vector, ``H`` heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.decoding.kv_store import Packed, Place
from unmask.denoisers.attention import attend_to_shared, make_attend, related_cells
from unmask.denoisers.transformer import Block, Lookup, RMSNorm, Transformer, TransformerConfig, number_places
from unmask.runs.config import read

HEAD_WIDTH = 16
"""Of new heads, where the denoiser has none to copy."""
PER_TOKEN = 3
"""What a hidden position says of each token: p, log p, and whether it is the likeliest."""


class TokenNetwork(nn.Module):
    """``shape`` is that of the attention, ``n_features`` counts the numbers per position besides the 2 V of the distribution."""

    related: Tensor | None
    near: Tensor | None
    columns: Tensor

    def __init__(self, shape: Mapping[str, Any], n_features: int, vocab_size: int, mask_id: int, width: int) -> None:
        super().__init__()
        self.config = config = read(TransformerConfig, dict(shape), "the policy's attention")
        related = related_cells(config)
        self.register_buffer("related", related, persistent=False)
        self.register_buffer(
            "near", None if related is None else _list_near(related, config.grid or 0), persistent=False
        )
        tokens = [token for token in range(vocab_size) if token != mask_id]
        self.register_buffer("columns", torch.tensor(tokens), persistent=False)
        self.n_features, self.vocab_size, self.mask_id = n_features, vocab_size, mask_id
        self.position = nn.Linear(n_features, width)
        self.distribution = nn.Linear(PER_TOKEN, width, bias=False)
        self.known = nn.Linear(1, width)
        self.token = nn.Parameter(torch.zeros(len(tokens), width))
        self.layers = nn.ModuleList(_TokenLayer(config, width) for _ in range(config.n_layers))
        self.norm = nn.RMSNorm(width)
        self.readout = nn.Linear(width, 1)

    def forward(
        self,
        features: Float[Tensor, "b L F"],
        tokens: Int[Tensor, "b L"],
        states: Float[Tensor, "b L D"],
        real: Bool[Tensor, "b L"] | None,
        at: Place,
        every_token: bool = False,
    ) -> Float[Tensor, "N *V"]:
        """Of the hidden positions ``at``, and of those whose token stands to be doubted. ``every_token``: of each token there."""
        states = states.to(features.dtype)
        vectors, best = self._hidden_vectors(features[at], tokens[at])
        known = self.known(torch.eye(self.vocab_size, device=tokens.device)[:, self.columns, None]) + self.token
        look = self._look_from(states, tokens, real, at)
        *before, last = self.layers
        for layer in before:
            vectors = layer(vectors, known, states, at, look)
        return self.readout(self.norm(last(vectors, known, states, at, look, None if every_token else best)))[..., 0]

    def _hidden_vectors(
        self, features: Float[Tensor, "N F"], tokens: Int[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N V d"], Int[Tensor, "N"]]:
        """The vectors of the positions, and as a column the token of each that is scored: the likeliest, or the one that stands."""
        of_position, of_tokens = features.split([self.n_features, 2 * self.vocab_size], dim=1)
        p, logp = (x[:, self.columns] for x in of_tokens.chunk(2, dim=1))
        best = torch.where(tokens == self.mask_id, logp.argmax(1), tokens - (tokens > self.mask_id).long())
        leads = best[:, None] == torch.arange(p.shape[1], device=p.device)
        read = torch.stack([p, logp, leads.to(p.dtype)], dim=-1)
        return self.distribution(read) + self.position(of_position)[:, None] + self.token, best

    def _look_from(
        self, states: Float[Tensor, "b L D"], tokens: Int[Tensor, "b L"], real: Bool[Tensor, "b L"] | None, at: Place
    ) -> Look:
        # Where each position stands in what the layers list: first all known tokens, then the hidden positions.
        entry = tokens.index_put(at, torch.arange(len(at[0]), device=tokens.device) + self.vocab_size)
        if self.near is not None and real is None and self.config.positions != "rotary":
            return _look_near(self.near, entry, at)
        places = number_places(states, real)
        packed, place = Packed.of_queries(at, states.shape[:2])
        attend = make_attend(self.config, self.related, packed.take(places), places, real, states.dtype, packed)
        attend = partial(attend, product=attend_to_shared)

        def look(q: Tensor, k: Tensor, listed: Tensor, weight: Tensor, column: Tensor | None) -> Tensor:
            wide = q.new_zeros(*packed.column.shape, *q.shape[1:]).index_put(place, q)
            seen = attend(wide, k, F.embedding(entry, listed.flatten(1)))[place].unflatten(-1, listed.shape[1:])
            return F.linear((seen.transpose(1, 2) if column is None else _take(seen, column, 2)).flatten(-2), weight)

        return look


Look = Callable[
    [
        Float[Tensor, "N H w"],
        Float[Tensor, "b L K w"],
        Float[Tensor, "M V d"],
        Float[Tensor, "d Hd"],
        Int[Tensor, "N"] | None,
    ],
    Float[Tensor, "N *V d"],
]
"""From queries of hidden positions, keys of all positions, and the listed vectors that stand there to what all heads see together:
the vectors of a head are weighed by its columns of the matrix. The last argument is the one token of each position to look at."""


def _take(vectors: Float[Tensor, "N ..."], column: Int[Tensor, "N"], dim: int = 1) -> Float[Tensor, "N ..."]:
    """The vector of one token of each position; the tokens are along ``dim``."""
    return vectors.movedim(dim, 1)[torch.arange(len(column), device=column.device), column]


def _list_near(related: Bool[Tensor, "H L L"], n: int) -> Int[Tensor, "L H n"]:
    """The ``n`` positions that each head of each position sees."""
    return related.int().topk(n).indices.sort().values.transpose(0, 1).contiguous()


def _look_near(near: Int[Tensor, "L H n"], entry: Int[Tensor, "b L"], at: Place) -> Look:
    """Attention to the few positions that the denoiser's heads are limited to, and to no others: 9 of 81 on a board."""
    length, heads = near.shape[:2]
    seen = near[at[1]] + (at[0] * length)[:, None, None]  # N H n
    head = torch.arange(heads, device=seen.device)[:, None]
    entry = entry.flatten()[seen]

    def look(q: Tensor, k: Tensor, listed: Tensor, weight: Tensor, column: Tensor | None) -> Tensor:
        keys = F.embedding(seen * heads + head, k.flatten(0, 2))
        logits = (keys @ (q * q.shape[-1] ** -0.5)[..., None])[..., 0]
        # Weighing before the sum over positions leaves one row per position, where weighing after it would need one per head.
        table = listed.flatten(0, 1) @ weight.unflatten(1, (heads, -1)).permute(1, 2, 0)  # H (M V) d
        bags = (entry + head * len(listed)).flatten(1)
        shares = logits.softmax(-1).to(table.dtype).flatten(1)
        if column is not None:
            return _sum_rows(bags * listed.shape[1] + column[:, None], table.flatten(0, 1), shares)
        return _sum_rows(bags, table.view(heads * len(listed), -1), shares).unflatten(1, listed.shape[1:])

    return look


def _sum_rows(
    rows: Int[Tensor, "N r"], table: Float[Tensor, "R C"], shares: Float[Tensor, "N r"]
) -> Float[Tensor, "N C"]:
    return F.embedding_bag(rows, table, per_sample_weights=shares, mode="sum")


class _TokenLayer(nn.Module):
    """Project a vector, look at the same token elsewhere and at the other tokens here, mix."""

    def __init__(self, config: TransformerConfig, width: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config)
        self.attention = Lookup(config)
        self.norm = nn.RMSNorm(width)
        self.enter = nn.Linear(width, width)
        self.own = nn.Linear(width, width)
        self.elsewhere = nn.Linear(config.n_heads * width, width, bias=False)
        self.others = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(
        self,
        vectors: Float[Tensor, "N V d"],
        known: Float[Tensor, "T V d"],
        states: Float[Tensor, "b L D"],
        at: Place,
        look: Look,
        column: Int[Tensor, "N"] | None = None,
    ) -> Float[Tensor, "N *V d"]:
        """``known`` are the vectors of a position that shows each token of the vocabulary. With ``column`` only one token of each
        position is computed."""
        listed = F.gelu(self.enter(self.norm(torch.cat([known, vectors]))))
        inner = listed[len(known) :]
        states = self.attention_norm(states)
        q, k = self.attention(states, states[at])
        seen = look(q, k, listed, self.elsewhere.weight, column)
        others = self.others(inner.mean(1, keepdim=True))
        if column is not None:
            inner, vectors, others = _take(inner, column), _take(vectors, column), others[:, 0]
        return vectors + self.out(F.gelu(self.own(inner) + seen + others))


def attention_shape(denoiser: Any, n_layers: int, n_heads: int) -> TransformerConfig:
    """Of the denoiser's last blocks; of new heads if it is a model of another library."""
    if isinstance(denoiser, Transformer):
        shape = denoiser.config.of_blocks(min(n_layers, denoiser.config.n_layers))
        return shape.attention_alone()
    return TransformerConfig(1, denoiser.config.width, n_layers, n_heads, 1, 0, head_width=HEAD_WIDTH)


def copy_attention(denoiser: Any, network: TokenNetwork) -> None:
    """Queries and keys of the denoiser's last blocks, where it has blocks of this library."""
    if not isinstance(denoiser, Transformer):
        return
    for layer, block in zip(network.layers, denoiser.blocks[-len(network.layers) :], strict=True):
        assert isinstance(layer, _TokenLayer) and isinstance(block, Block)
        layer.attention.load_state_dict(block.attention.state_dict(), strict=False)
        layer.attention_norm.load_state_dict(block.attention_norm.state_dict())
