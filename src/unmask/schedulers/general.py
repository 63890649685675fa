"""The general policy: blocks of the denoiser's own kind that go on from its final states.

It knows nothing of a task. What it inherits is the denoiser's attention: the blocks start as copies of the denoiser's last ones,
and the prices of the state, where the vocabulary is small also the distributions and the tokens, are added at their entrance by
layers that start at zero. A denoiser wider than the policy, or a policy without states, gets new blocks of the policy's own width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.decoding.kv_store import Place
from unmask.decoding.protocols import View
from unmask.denoisers.checkpoint import Shape, require_plausible_size
from unmask.denoisers.masked_lm import MaskedLMBlocks, require_plausible_shape
from unmask.denoisers.transformer import Blocks, TransformerConfig
from unmask.runs.config import read
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.features import compute_features, hidden_places
from unmask.schedulers.networks import Kept, PolicyNetwork, check_heads


class General(PolicyNetwork):
    """Blocks of ``config.blocks``; they go on from states of ``hidden_width``, or read prices alone."""

    looks_around = True
    reads_standing = True

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.blocks = blocks = build_blocks(require_shape(config))
        width, states_width = blocks.width, config.hidden_width if config.states else 0
        self.names, self.vocab_size = names_of(config), config.vocab_size if reads_distributions(config) else 0
        self.enter = nn.Linear(count_features(config), width)
        self.token = nn.Embedding(config.vocab_size, width) if config.tokens and config.small else None
        self.narrow = None
        if states_width == width:  # the blocks begin with what they know: the denoiser's states
            for parameter in (*self.enter.parameters(), *(self.token.parameters() if self.token else ())):
                nn.init.zeros_(parameter)
        elif states_width:
            self.narrow = nn.Sequential(nn.RMSNorm(states_width), nn.Linear(states_width, width, bias=False))
        self.norm = nn.RMSNorm(width)
        self.readout = nn.Linear(width, 1)

    @classmethod
    def check(cls, config: PolicyConfig) -> None:
        check_heads(config)

    @classmethod
    def reads_states(cls, config: PolicyConfig) -> bool:
        return config.states

    @classmethod
    def keeps(cls, config: PolicyConfig) -> Kept:
        return {"features": ((count_features(config),), torch.float32)}

    @classmethod
    def fit(cls, config: PolicyConfig, denoiser: Any) -> tuple[PolicyConfig, dict[str, Tensor]]:
        blocks = blocks_for(denoiser, config)
        return replace(config, blocks=blocks.shape), {f"blocks.{k}": w for k, w in blocks.state_dict().items()}

    @classmethod
    def require_plausible(cls, config: PolicyConfig, stored: Mapping[str, Shape], file: Path) -> None:
        require_plausible_copy(config, stored, file, blocks_alone=True)

    def observe(self, view: View) -> dict[str, Tensor]:
        return {"features": observe_features(view, self.names, self.vocab_size)}

    def forward(self, seen: dict[str, Tensor], at: Place | None) -> Float[Tensor, "b L"]:
        at = at or hidden_places(seen)
        x = self.enter(seen["features"])
        if self.token is not None:
            x = x + self.token(seen["tokens"])
        if "states" in seen:
            states = seen["states"].to(x.dtype)
            x = x + (states if self.narrow is None else self.narrow(states))
        scores = self.readout(self.norm(self.blocks(x, seen.get("real"), at)))[:, 0]
        return scores.new_zeros(seen["hidden"].shape).index_put(at, scores)


def names_of(config: PolicyConfig) -> tuple[str, ...]:
    return (*config.features, "hidden", "logit")


def reads_distributions(config: PolicyConfig) -> bool:
    return config.distribution and config.small


def count_features(config: PolicyConfig) -> int:
    """Numbers per position besides the states."""
    return len(names_of(config)) + (2 * config.vocab_size if reads_distributions(config) else 0)


def observe_features(view: View, names: Sequence[str], vocab_size: int) -> Float[Tensor, "b L F"]:
    """The statistics and, with a ``vocab_size``, the distribution of every position."""
    features = compute_features(view, names)
    if not vocab_size:
        return features
    spread = distributions(view.prices.logp, view.at, view.tokens.shape, vocab_size)
    return torch.cat([features, spread], dim=-1)


def require_shape(config: PolicyConfig) -> Mapping[str, Any]:
    """The stored shape of what was taken from the denoiser."""
    if not config.blocks:
        raise ValueError(f"a policy of kind {config.kind} is made for a denoiser: build it with build_policy")
    return config.blocks


def build_blocks(shape: Mapping[str, Any]) -> Blocks | MaskedLMBlocks:
    """Blocks of this shape: of a model of transformers if it names a ``model_type``, else of this library's transformer."""
    if "model_type" in shape:
        return MaskedLMBlocks(dict(shape))
    return Blocks(read(TransformerConfig, dict(shape), "the policy's blocks"))


def require_plausible_copy(
    config: PolicyConfig, stored: Mapping[str, Shape], file: Path, blocks_alone: bool = False
) -> None:
    """Refuse a policy that copies a denoiser, or its last blocks alone, by the sizes of the copy."""
    shape = dict(require_shape(config))
    if "model_type" in shape:
        require_plausible_shape(shape, stored, file, blocks_alone)
    else:
        copied = read(TransformerConfig, shape, "the policy's copy")
        require_plausible_size(copied.least_weights, stored, file, copied.n_layers)


def blocks_for(denoiser: Any, config: PolicyConfig) -> Any:
    """Copies of the denoiser's last blocks; new ones of the policy's width if it is wider, has none, or states are not read."""
    copy, width = getattr(denoiser, "last_blocks", None), config.width
    if config.states and copy is not None and denoiser.config.width <= width:
        return copy(config.n_layers).float()
    return Blocks(TransformerConfig(1, width, config.n_layers, config.n_heads, 2 * width, 0))


def distributions(
    logp: Float[Tensor, "N V"], at: tuple[Tensor, Tensor], shape: torch.Size, vocab_size: int
) -> Float[Tensor, "b L F"]:
    """p and log p of every token, 0 where nothing was priced."""
    logp = nn.functional.pad(logp.clamp(min=-20.0), (0, vocab_size - logp.shape[1]), value=-20.0)
    packed = torch.cat([logp.exp(), logp / 5], dim=1)
    return packed.new_zeros(*shape, packed.shape[1]).index_put(at, packed)
