"""The second opinion: a copy of the denoiser, tuned for the states of a decoding, judges what the frozen one would write.

A masked language model that was trained with few masks is sure of wrong tokens where much is hidden. Its copy learns the true
tokens of such states by cross-entropy, which tells far more of a position than whether the likeliest token is right. The score of a
position is a mean of both models' log-odds of the token that the *denoiser* would write there, so only the order changes. It costs
another forward of the same size in every step. Before training the copy is the denoiser, and the order that of confidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.decoding.kv_store import Place
from unmask.decoding.protocols import View
from unmask.denoisers.checkpoint import Shape
from unmask.denoisers.masked_lm import MaskedLM, build_masked_lm, copy_shape
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.config import read
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.features import LOGIT_CAP, base_scores, hidden_places
from unmask.schedulers.general import require_plausible_copy, require_shape
from unmask.schedulers.networks import Kept, PolicyNetwork
from unmask.schedulers.token_network import MOST_TOKENS

WEIGHT = 0.7
"""Of the copy's log-odds; the rest is that of the policy's base."""
LARGEST = 50_000_000
"""Weights of a denoiser for which a copy is tried: it is kept, trained and forwarded in every step like the denoiser itself."""


class Opinion(PolicyNetwork):
    """A denoiser of the shape ``config.blocks`` whose weights are learned. ``readout`` weighs it against the policy's base."""

    predicts = True
    forbidden: Tensor

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config)
        self.copy = build_copy(require_shape(config), config.mask_id).float().requires_grad_(True)
        self.register_buffer("forbidden", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.readout = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.readout.weight, WEIGHT)

    def begin_at_zero(self) -> None:
        """Nothing: the copy, being the denoiser, adds nothing to confidence."""

    @classmethod
    def check(cls, config: PolicyConfig) -> None:
        if not (config.residual and config.purpose == "order"):
            raise ValueError(
                "an opinion orders positions, beginning as its base does: leave residual at true and purpose at order"
            )

    @classmethod
    def keeps(cls, config: PolicyConfig) -> Kept:
        return {"best": ((), torch.long)}

    @classmethod
    def fit(cls, config: PolicyConfig, denoiser: Any) -> tuple[PolicyConfig, dict[str, Tensor]]:
        forbidden = torch.zeros(config.vocab_size, dtype=torch.bool)
        forbidden[list(denoiser.forbidden_ids)] = True
        weights = {f"copy.{name}": weight for name, weight in denoiser.state_dict().items()}
        return replace(config, blocks=shape_of(denoiser)), {**weights, "forbidden": forbidden}

    @classmethod
    def is_worth_trying(cls, denoiser: Any) -> bool:
        """The denoiser is small, and its tokens are too many for a policy with a vector for each."""
        copies = isinstance(denoiser, MaskedLM | Transformer)
        return copies and denoiser.config.vocab_size > MOST_TOKENS and _count_weights(denoiser) <= LARGEST

    @classmethod
    def require_plausible(cls, config: PolicyConfig, stored: Mapping[str, Shape], file: Path) -> None:
        require_plausible_copy(config, stored, file)

    def observe(self, view: View) -> dict[str, Tensor]:
        return {"best": view.best}

    def forward(self, seen: dict[str, Tensor], at: Place | None) -> Float[Tensor, "b L"]:
        at = at or hidden_places(seen)
        return self.weigh(self.predict(seen, at), seen, at)

    def predict(self, seen: dict[str, Tensor], at: Place | None = None) -> Float[Tensor, "N V"]:
        """The logits of the hidden positions; those of forbidden tokens are −inf."""
        states = self.copy.hidden(seen["tokens"], seen.get("real"))
        logits = self.copy.logits(states[at or hidden_places(seen)]).float()
        return logits.masked_fill(self.forbidden[: logits.shape[1]], -torch.inf)

    def weigh(
        self, logits: Float[Tensor, "N V"], seen: dict[str, Tensor], at: Place | None = None
    ) -> Float[Tensor, "b L"]:
        """What these ``logits`` add to the policy's base: the log-odds of the denoiser's token instead of it, weighed."""
        at, base = at or hidden_places(seen), base_scores(seen)
        best = seen["best"][at][:, None]
        rest = logits.scatter(1, best, -torch.inf).logsumexp(1)
        # nan: a position that was not priced has no token
        odds = (logits.gather(1, best)[:, 0] - rest).nan_to_num(nan=-LOGIT_CAP).clamp(-LOGIT_CAP, LOGIT_CAP)
        own = self.readout((odds - base[at])[:, None])[:, 0]
        return own.new_zeros(base.shape).index_put(at, own)


def build_copy(shape: Mapping[str, Any], mask_id: int) -> Transformer | MaskedLM:
    """A denoiser of this shape: a model of transformers if it names a ``model_type``, else this library's transformer."""
    if "model_type" in shape:
        return build_masked_lm(dict(shape), mask_id)
    return Transformer(read(TransformerConfig, dict(shape), "the policy's copy"))


def _count_weights(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def shape_of(denoiser: Any) -> dict[str, Any]:
    """The shape from which :func:`build_copy` makes a denoiser like this one."""
    if isinstance(denoiser, MaskedLM):
        return copy_shape(denoiser.model.config)
    if isinstance(denoiser, Transformer):
        return json.loads(json.dumps(denoiser.config.changed()))  # as a stored configuration has it
    raise ValueError(
        f"a second opinion is a copy of the denoiser: expected one of this library's, got {type(denoiser)}"
    )
