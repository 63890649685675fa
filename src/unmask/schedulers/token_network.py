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
    columns: Tensor

    def __init__(self, shape: Mapping[str, Any], n_features: int, vocab_size: int, mask_id: int, width: int) -> None:
        super().__init__()
        self.config = config = read(TransformerConfig, dict(shape), "the policy's attention")
        self.register_buffer("related", related_cells(config), persistent=False)
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
    ) -> Float[Tensor, "N"]:
        """Of the hidden positions ``at``, and of those whose token stands to be doubted."""
        states = states.to(features.dtype)
        vectors, best = self._hidden_vectors(features[at], tokens[at])
        known = self.known(torch.eye(self.vocab_size, device=tokens.device)[:, self.columns, None]) + self.token
        look = self._look_from(states, real, at)
        for layer in self.layers:
            vectors = layer(vectors, known, tokens, states, at, look)
        of_best = vectors[torch.arange(len(best), device=best.device), best]
        return self.readout(self.norm(of_best))[:, 0]

    def _hidden_vectors(
        self, features: Float[Tensor, "N F"], tokens: Int[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N V d"], Int[Tensor, "N"]]:
        """The vectors of the positions, and as a column the token of each that is scored: the likeliest, or the one that stands."""
        of_position, of_tokens = features.split([self.n_features, 2 * self.vocab_size], dim=1)
        p, logp = (x[:, self.columns] for x in of_tokens.chunk(2, dim=1))
        best = torch.where(tokens == self.mask_id, logp.argmax(1), tokens - (tokens > self.mask_id).long())
        read = torch.stack([p, logp, F.one_hot(best, p.shape[1]).to(p.dtype)], dim=-1)
        return self.distribution(read) + self.position(of_position)[:, None] + self.token, best

    def _look_from(
        self, states: Float[Tensor, "b L D"], real: Bool[Tensor, "b L"] | None, at: Place
    ) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """From queries of hidden positions, keys and values of all positions to what the queries see, a row per head."""
        places = number_places(states, real)
        packed, place = Packed.of_queries(at, states.shape[:2])
        attend = make_attend(self.config, self.related, packed.take(places), places, real, states.dtype, packed)
        attend = partial(attend, product=attend_to_shared)

        def look(q: Float[Tensor, "N H w"], k: Float[Tensor, "b L K w"], v: Float[Tensor, "b L C"]) -> Tensor:
            wide = q.new_zeros(*packed.column.shape, *q.shape[1:]).index_put(place, q)
            return attend(wide, k, v)[place]

        return look


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
        tokens: Int[Tensor, "b L"],
        states: Float[Tensor, "b L D"],
        at: Place,
        look: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Float[Tensor, "N V d"]:
        """``known`` are the vectors of a position that shows each token of the vocabulary."""
        inner, shown = (F.gelu(self.enter(self.norm(x))) for x in (vectors, known))
        states = self.attention_norm(states)
        q, k = self.attention(states, states[at])
        values = F.embedding(tokens, shown.flatten(1)).index_put_(at, inner.flatten(1))
        seen = look(q, k, values).unflatten(-1, inner.shape[1:]).transpose(1, 2).flatten(2)
        mixed = self.own(inner) + self.elsewhere(seen) + self.others(inner.mean(1, keepdim=True))
        return vectors + self.out(F.gelu(mixed))


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
