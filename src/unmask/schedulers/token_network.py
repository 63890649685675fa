"""The general policy for small vocabularies: a vector for every hidden position *and* token, the same weights for all of them.

It knows nothing of a task. Which positions a position looks at comes from the denoiser: queries and keys are copies of those of its
last blocks, computed from its states. What it sees there are the vectors of each token: probabilities at hidden positions, what is
known at revealed ones. That a token is already taken elsewhere, or has one place left, is one comparison in such vectors; blocks
that mix tokens in a state have to learn it for every token anew. A learned vector of each token starts at zero.

``b`` states, ``L`` positions, ``N`` hidden ones of all states, ``V`` tokens but the mask, ``d`` width of a vector, ``H`` heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.decoding.kv_store import Packed, Place
from unmask.decoding.protocols import View
from unmask.denoisers.attention import attend_to_shared, make_attend, related_cells
from unmask.denoisers.checkpoint import Shape, require_plausible_size
from unmask.denoisers.config import ATTENTION_ALONE
from unmask.denoisers.transformer import Block, Lookup, RMSNorm, Transformer, TransformerConfig, number_places
from unmask.runs.config import read
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.features import hidden_places
from unmask.schedulers.general import count_features, names_of, observe_features, require_shape
from unmask.schedulers.near_attention import Near, list_near, look_near
from unmask.schedulers.networks import Kept, TokenwiseNetwork

HEAD_WIDTH = 16
"""Of new heads, where the denoiser has none to copy."""
MOST_TOKENS = 16
"""Every token costs as much as a position of blocks does: a vector for each pays where they are few, as digits are."""
PER_TOKEN = 3
"""What a hidden position says of each token: p, log p, and whether it is the likeliest."""


class TokenNetwork(TokenwiseNetwork):
    """Attention of the shape ``config.blocks``, vectors of ``config.token_width``."""

    looks_around = True
    reads_standing = True
    related: Tensor | None
    near: Tensor | None
    columns: Tensor

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.config = shape = read(TransformerConfig, dict(require_shape(config)), "the policy's attention")
        related = related_cells(shape)
        self.register_buffer("related", related, persistent=False)
        near = None if related is None else list_near(related, shape.grid or 0)
        self.register_buffer("near", near, persistent=False)
        self.names, self.vocab_size, self.mask_id = names_of(config), config.vocab_size, config.mask_id
        tokens = [token for token in range(self.vocab_size) if token != self.mask_id]
        self.register_buffer("columns", torch.tensor(tokens), persistent=False)
        width = config.token_width
        self.position = nn.Linear(len(self.names), width)
        self.distribution = nn.Linear(PER_TOKEN, width, bias=False)
        self.known = nn.Linear(1, width)
        self.token = nn.Parameter(torch.zeros(len(tokens), width))
        self.layers = nn.ModuleList(_TokenLayer(shape, width) for _ in range(shape.n_layers))
        self.norm = nn.RMSNorm(width)
        self.readout = nn.Linear(width, 1)

    @classmethod
    def suits(cls, config: PolicyConfig) -> bool:
        """Is this the network of a general policy? A stored one stays what it is: attention is all that its shape has."""
        if config.blocks is not None:
            return config.token_width > 0 and config.blocks.get("ffn") == ATTENTION_ALONE
        return 0 < config.vocab_size <= MOST_TOKENS and config.token_width > 0 and config.states and config.distribution

    @classmethod
    def reads_states(cls, config: PolicyConfig) -> bool:
        return True

    @classmethod
    def keeps(cls, config: PolicyConfig) -> Kept:
        return {"features": ((count_features(config),), torch.float32)}

    @classmethod
    def fit(cls, config: PolicyConfig, denoiser: Any) -> tuple[PolicyConfig, dict[str, Tensor]]:
        shape = attention_shape(denoiser, config.n_layers, config.n_heads)
        return replace(config, blocks=shape.changed()), copy_attention(denoiser, shape.n_layers)

    @classmethod
    def require_plausible(cls, config: PolicyConfig, stored: Mapping[str, Shape], file: Path) -> None:
        shape = read(TransformerConfig, dict(require_shape(config)), "the policy's attention")
        attention = shape.n_layers * shape.width * shape.n_heads * shape.inner_width
        require_plausible_size(attention + config.token_width**2, stored, file, shape.n_layers)

    def observe(self, view: View) -> dict[str, Tensor]:
        return {"features": observe_features(view, self.names, self.vocab_size)}

    def forward(self, seen: dict[str, Tensor], at: Place | None) -> Float[Tensor, "b L"]:
        """Of the hidden positions, and of those whose token stands to be doubted."""
        at = at or hidden_places(seen)
        scores = self._score(seen, at)
        return scores.new_zeros(seen["hidden"].shape).index_put(at, scores)

    def compare_tokens(self, seen: dict[str, Tensor], at: Place) -> tuple[Float[Tensor, "N V"], Float[Tensor, "N V"]]:
        logp = 5 * seen["features"][at][:, -self.vocab_size :][:, self.columns]
        return self._score(seen, at, every_token=True), logp

    def _score(self, seen: dict[str, Tensor], at: Place, every_token: bool = False) -> Float[Tensor, "N *V"]:
        features, tokens = seen["features"], seen["tokens"]
        # States are no part of what is learned: normalised once for all layers, whose norms are factors of their weights.
        states = F.rms_norm(seen["states"].to(features.dtype), (self.config.width,), eps=self.config.norm_eps)
        flat = at[0] * states.shape[1] + at[1]
        queries, own, shown = (x.flatten(0, 1).index_select(0, flat) for x in (states, features, tokens))
        vectors, best = self._hidden_vectors(own, shown)
        known = self.known(torch.eye(self.vocab_size, device=tokens.device)[:, self.columns, None]) + self.token
        look = self._look_from(states, tokens, seen.get("real"), at)
        *before, last = self.layers
        for layer in before:
            vectors = layer(vectors, known, (states, queries), look)
        vectors = last(vectors, known, (states, queries), look, None if every_token else best)
        return self.readout(self.norm(vectors))[..., 0]

    def _hidden_vectors(
        self, features: Float[Tensor, "N F"], tokens: Int[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N V d"], Int[Tensor, "N"]]:
        """The vectors of the positions, and as a column the token of each that is scored: the likeliest, or the one that stands."""
        of_position, of_tokens = features.split([len(self.names), 2 * self.vocab_size], dim=1)
        p, logp = of_tokens.unflatten(1, (2, -1)).index_select(2, self.columns).unbind(1)
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
            return partial(look_near, Near(self.near, entry, at, self.vocab_size))
        places = number_places(states, real)
        packed, place = Packed.of_queries(at, states.shape[:2])
        attend = make_attend(self.config, self.related, packed.take(places), places, real, states.dtype, packed)
        attend = partial(attend, product=attend_to_shared)

        def look(q: Tensor, k: Tensor, listed: Tensor, weight: Tensor, column: Tensor | None) -> Tensor:
            wide = q.new_zeros(*packed.column.shape, *q.shape[1:]).index_put(place, q)
            seen = attend(wide, k, F.embedding(entry, listed.flatten(1)))[place].unflatten(-1, listed.shape[1:])
            return F.linear(
                (seen.transpose(1, 2) if column is None else _take(seen.transpose(1, 2), column)).flatten(-2), weight
            )

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


def _take(vectors: Float[Tensor, "N V ..."], column: Int[Tensor, "N"]) -> Float[Tensor, "N ..."]:
    """The vector of one token of each position."""
    if torch.compiler.is_compiling():  # inductor's code for the selection below is wrong for a single position
        chosen = column.view(-1, 1, *(1 for _ in vectors.shape[2:])).expand(-1, 1, *vectors.shape[2:])
        return vectors.gather(1, chosen)[:, 0]
    tokens = vectors.shape[1]
    first = torch.arange(0, len(column) * tokens, tokens, device=column.device)
    return vectors.flatten(0, 1).index_select(0, first + column)


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
        states: tuple[Float[Tensor, "b L D"], Float[Tensor, "N D"]],
        look: Look,
        column: Int[Tensor, "N"] | None = None,
    ) -> Float[Tensor, "N *V d"]:
        """``known`` are the vectors of a position that shows each token of the vocabulary; ``states`` those of all positions, and
        of those that are computed. With ``column`` only one token of each position is computed."""
        listed = F.gelu(self.enter(self.norm(torch.cat([known, vectors]))))
        inner = listed[len(known) :]
        q, k = self.attention(*states, scale=self.attention_norm.weight)
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
    return TransformerConfig(1, denoiser.config.width, n_layers, n_heads, ATTENTION_ALONE, 0, head_width=HEAD_WIDTH)


def copy_attention(denoiser: Any, n_layers: int) -> dict[str, Tensor]:
    """Norms, queries and keys of the denoiser's last blocks by their names here, where it has blocks of this library."""
    found: dict[str, Tensor] = {}
    if not isinstance(denoiser, Transformer):
        return found
    for nth, block in enumerate(denoiser.blocks[-n_layers:]):
        assert isinstance(block, Block)
        for part in ("attention", "attention_norm"):
            weights = getattr(block, part).state_dict()
            found |= {f"layers.{nth}.{part}.{name}": weight for name, weight in weights.items()}
    return found
