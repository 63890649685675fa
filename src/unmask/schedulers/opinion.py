"""The second opinion: a copy of the denoiser, tuned for the states of a decoding, judges what the frozen one would write.

A masked language model that was trained with few masks is sure of wrong tokens where much is hidden. Its copy learns the true
tokens of such states by cross-entropy, which tells far more of a position than whether the likeliest token is right. The score of a
position is a mean of both models' log-odds of the token that the *denoiser* would write there, so only the order changes. It costs
another forward of the same size in every step. Before training the copy is the denoiser, and the order that of confidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.decoding.kv_store import Place
from unmask.denoisers.masked_lm import MaskedLM, build_masked_lm, copy_shape
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.config import read

WEIGHT = 0.7
"""Of the copy's log-odds; the rest is that of the policy's base."""


class Opinion(nn.Module):
    """A denoiser of the given ``shape`` whose weights are learned. ``readout`` weighs it against the policy's base."""

    forbidden: Tensor

    def __init__(self, shape: Mapping[str, Any], vocab_size: int, mask_id: int) -> None:
        super().__init__()
        self.copy = build_copy(shape, mask_id).requires_grad_(True)
        self.register_buffer("forbidden", torch.zeros(vocab_size, dtype=torch.bool))
        self.readout = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.readout.weight, WEIGHT)

    def forward(self, tokens: Int[Tensor, "b L"], real: Bool[Tensor, "b L"] | None, at: Place) -> Float[Tensor, "N V"]:
        """The logits of the positions ``at``; those of forbidden tokens are −inf."""
        logits = self.copy.logits(self.copy.hidden(tokens, real)[at]).float()
        return logits.masked_fill(self.forbidden[: logits.shape[1]], -torch.inf)

    def judge(
        self, logits: Float[Tensor, "N V"], best: Int[Tensor, "N"], base: Float[Tensor, "N"], cap: float
    ) -> Float[Tensor, "N"]:
        """What is added to ``base``: the log-odds of ``best`` instead of it, as far as ``readout`` weighs them."""
        own = logits.gather(1, best[:, None])[:, 0]
        rest = logits.scatter(1, best[:, None], -torch.inf).logsumexp(1)
        odds = (own - rest).nan_to_num(nan=-cap).clamp(-cap, cap)  # nan: a position that was not priced has no token
        return self.readout((odds - base)[:, None])[:, 0]


def build_copy(shape: Mapping[str, Any], mask_id: int) -> Transformer | MaskedLM:
    """A denoiser of this shape: a model of transformers if it names a ``model_type``, else this library's transformer."""
    if "model_type" in shape:
        return build_masked_lm(dict(shape), mask_id)
    return Transformer(read(TransformerConfig, dict(shape), "the policy's copy"))


def shape_of(denoiser: Any) -> dict[str, Any]:
    """The shape from which :func:`build_copy` makes a denoiser like this one."""
    if isinstance(denoiser, MaskedLM):
        return copy_shape(denoiser.model.config)
    if isinstance(denoiser, Transformer):
        return json.loads(json.dumps(denoiser.config.changed()))  # as a stored configuration has it
    raise ValueError(
        f"a second opinion is a copy of the denoiser: expected one of this library's, got {type(denoiser)}"
    )


def copy_denoiser(denoiser: Transformer | MaskedLM, network: Opinion) -> None:
    """The denoiser's weights and forbidden tokens."""
    with torch.no_grad():
        network.copy.load_state_dict(denoiser.state_dict())
        network.copy.float()
        network.forbidden[list(denoiser.forbidden_ids)] = True
