"""Networks of policies: from the observation of a state to one number per position.

A kind of policy is a class of :class:`PolicyNetwork` and nothing else: what it keeps of a state, what it computes from that, and
how it begins for a denoiser. ``mlp``, ``transformer`` and ``hidden`` are the paper's (appendices "Policy Architecture" and
"Hidden-State"). Each returns a *residual*: the policy adds it to the score of its base, and the last layer starts at zero.

``b`` states, ``L`` positions, ``F`` features, ``d`` width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.decoding.kv_store import Place
from unmask.decoding.protocols import View
from unmask.denoisers.checkpoint import Shape, require_plausible_size
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.features import compute_features

Kept = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Name → the shape of a position and its type."""
OF_LOGITS = frozenset({"confidence", "entropy", "margin"})
"""Features that the logits of a position alone give."""


class PolicyNetwork(nn.Module, ABC):
    """What a kind of policy reads, keeps and computes. :meth:`observe` and :meth:`forward` are enough for a new one.

    ``looks_around``: positions are compared, so those that cannot be chosen are priced, too. ``reads_standing``: of heads; tokens
    that stand are read like hidden positions. ``needs_board``: it fits denoisers of boards alone. ``predicts``: it learns the
    tokens of hidden positions. ``masks_padding``: a batch without padding is computed without a mask. ``readout`` is
    the last layer.
    """

    looks_around: ClassVar[bool] = False
    reads_standing: ClassVar[bool] = False
    needs_board: ClassVar[bool] = False
    predicts: ClassVar[bool] = False
    masks_padding: ClassVar[bool] = False
    readout: nn.Linear

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()

    def observe(self, view: View) -> dict[str, Tensor]:
        """What it keeps of a state besides tokens, confidence and what is hidden: all that :meth:`forward` needs later."""
        return {}

    @abstractmethod
    def forward(self, seen: dict[str, Tensor], at: Place | None) -> Float[Tensor, "b L"]:
        """The residual. ``at`` are the hidden positions of the observation, where they are known already."""

    def begin_at_zero(self) -> None:
        """Make the residual zero."""
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    @classmethod
    def check(cls, config: PolicyConfig) -> None:
        """Refuse options that do not go together."""

    @classmethod
    def fit(cls, config: PolicyConfig, denoiser: Any) -> tuple[PolicyConfig, dict[str, Tensor]]:
        """The configuration for this denoiser, and weights to begin with."""
        return config, {}

    @classmethod
    def is_worth_trying(cls, denoiser: Any) -> bool:
        """Whether to try it beside others for this denoiser: not where it costs too much, or others are known to be better."""
        return True

    @classmethod
    def reads_states(cls, config: PolicyConfig) -> bool:
        """Does it read the denoiser's states?"""
        return False

    @classmethod
    def needs_canvas(cls, config: PolicyConfig) -> bool:
        """Does it read more of a position than its logits and its state?"""
        return True

    @classmethod
    def keeps(cls, config: PolicyConfig) -> Kept:
        """What :meth:`observe` returns, for estimates of memory."""
        return {}

    @classmethod
    def require_plausible(cls, config: PolicyConfig, stored: Mapping[str, Shape], file: Path) -> None:
        """Refuse sizes that have far more weights than the ``file`` has, before memory is allocated for them."""


class TokenwiseNetwork(PolicyNetwork):
    """One that has a vector for each token of every position; ``columns`` are those tokens."""

    columns: Tensor

    @abstractmethod
    def compare_tokens(self, seen: dict[str, Tensor], at: Place) -> tuple[Float[Tensor, "N V"], Float[Tensor, "N V"]]:
        """The residual that each of the ``columns`` would have as the likeliest token of a hidden position, and its log p."""


class Statistics(PolicyNetwork):
    """A network of a position's statistics and, where the vocabulary is small, of the tokens and the positions."""

    @classmethod
    def keeps(cls, config: PolicyConfig) -> Kept:
        return {"features": ((len(config.features) + 1,), torch.float32)}

    @classmethod
    def needs_canvas(cls, config: PolicyConfig) -> bool:
        return cls.looks_around or config.tokens or not OF_LOGITS.issuperset(config.features)

    @classmethod
    def require_plausible(cls, config: PolicyConfig, stored: Mapping[str, Shape], file: Path) -> None:
        layers = config.n_layers if cls.looks_around else 0
        embedded = (config.vocab_size + (config.length or 0)) * config.width if config.tokens else 0
        require_plausible_size(embedded + max(1, layers) * config.width**2, stored, file, layers)

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.names = (*config.features, "hidden")

    def observe(self, view: View) -> dict[str, Tensor]:
        return {"features": compute_features(view, self.names)}


class MLP(Statistics):
    """Every position by itself: statistics and token embedding through two hidden layers."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        width = config.width
        self.enter = Enter(len(self.names), width, *config.embedded)
        self.body = nn.Sequential(nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.readout = nn.Linear(width, 1)

    def forward(self, seen: dict[str, Tensor], at: Place | None) -> Float[Tensor, "b L"]:
        return self.readout(self.body(self.enter(seen["features"], seen["tokens"])))[..., 0]


class Attentive(Statistics):
    """A small Transformer encoder: positions are scored relative to each other."""

    looks_around = True
    masks_padding = True

    @classmethod
    def check(cls, config: PolicyConfig) -> None:
        check_heads(config)

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        width, heads = config.width, config.n_heads
        self.enter = Enter(len(self.names), width, *config.embedded)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, config.n_layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, 1)

    def forward(self, seen: dict[str, Tensor], at: Place | None) -> Float[Tensor, "b L"]:
        padding = ~seen["real"] if "real" in seen else None
        x = self.body(self.enter(seen["features"], seen["tokens"]), src_key_padding_mask=padding)
        return self.readout(self.norm(x))[..., 0]


class Projection(PolicyNetwork):
    """The frozen denoiser's own states: linear, activation, linear. No attention: they are contextual already."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.norm = nn.LayerNorm(config.hidden_width)
        self.project = nn.Linear(config.hidden_width, config.width)
        self.readout = nn.Linear(config.width, 1)

    @classmethod
    def reads_states(cls, config: PolicyConfig) -> bool:
        return True

    @classmethod
    def needs_canvas(cls, config: PolicyConfig) -> bool:
        return False

    @classmethod
    def require_plausible(cls, config: PolicyConfig, stored: Mapping[str, Shape], file: Path) -> None:
        require_plausible_size(config.hidden_width * config.width, stored, file)

    def forward(self, seen: dict[str, Tensor], at: Place | None) -> Float[Tensor, "b L"]:
        states = seen["states"].to(self.readout.weight.dtype)
        return self.readout(F.gelu(self.project(self.norm(states))))[..., 0]


def check_heads(config: PolicyConfig) -> None:
    if config.width % config.n_heads:
        raise ValueError(f"the policy's width {config.width} is not a multiple of its n_heads {config.n_heads}")


class Enter(nn.Module):
    """Statistics, and where the vocabulary is small the token and the position, into ``d`` channels."""

    def __init__(self, n_features: int, width: int, vocab_size: int | None, length: int | None) -> None:
        super().__init__()
        self.features = nn.Linear(n_features, width)
        self.token = nn.Embedding(vocab_size, width) if vocab_size else None
        self.position = nn.Embedding(length, width) if length else None

    def forward(self, features: Float[Tensor, "b L F"], tokens: Int[Tensor, "b L"]) -> Float[Tensor, "b L d"]:
        x = self.features(features)
        if self.token is not None:
            x = x + self.token(tokens)
        if self.position is not None:
            x = x + self.position.weight[: tokens.shape[1]]
        return x
