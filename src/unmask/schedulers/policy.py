"""``OrderPolicy``: the learned scheduler ``v_φ``, and the small self-describing artefact it is saved as.

``v_φ(i | s) = exp(u_i(s)/τ) 1{i ∈ M} / Σ_j …`` (Eq. masked_softmax). The score is ``u_i = c_i + f_φ(s)_i``: ``c_i`` is confidence
as a logit, log p̂_i/(1 − p̂_i), and the network's readout starts at zero, so an untrained policy is soft confidence. Another
``base`` makes c_i the score of another heuristic, so that an untrained policy ranks as that one does. With ``residual=False``
there is no c_i, and the policy starts from its random weights.

The policy reads the denoiser's distributions at *every* hidden position and the revealed tokens. It never sees a hidden token: in
the canvas that it observes, hidden tokens are masks.
"""

from dataclasses import replace
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Float
from torch import Tensor, nn

from unmask.decoding.kv_store import Place
from unmask.decoding.pricing import compile_once
from unmask.decoding.protocols import Denoiser, View
from unmask.schedulers.config import KINDS, PolicyConfig
from unmask.schedulers.features import (
    OF_SCHEDULER,
    add_base,
    compute_logit,
    confidence_logit,
    hidden_places,
    is_full,
    observe_base,
    remember,
)
from unmask.schedulers.general import General
from unmask.schedulers.networks import PolicyNetwork, TokenwiseNetwork
from unmask.schedulers.token_network import TokenNetwork


def choose_network(config: PolicyConfig) -> type[PolicyNetwork]:
    """The network of this kind; a general policy of a small vocabulary has one with a vector for every token."""
    found: type[PolicyNetwork] = KINDS[config.kind]
    return TokenNetwork if found is General and TokenNetwork.suits(config) else found


class OrderPolicy(nn.Module, PyTorchModelHubMixin, library_name="unmask", tags=["masked-diffusion", "decoding-order"]):
    """A Scheduler. ``policy(view)`` scores; ``observe`` and ``score`` are its two halves, for training on recorded states."""

    compiles = True
    """It takes ``compiled=True``."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config
        self.network = choose_network(config)(config)
        if config.residual:
            self.network.begin_at_zero()

    @property
    def prices_all(self) -> bool:
        """Whether positions that cannot be chosen are priced too: networks that compare positions need them."""
        return self.network.looks_around and not self.config.blockwise

    @classmethod
    def _load_as_pickle(cls, *_: Any, **__: Any) -> "OrderPolicy":
        """Refuse: without safetensors, the hub's loader would unpickle."""
        raise ValueError("expected model.safetensors: a policy is never read from a pickle")

    def check(self, denoiser: Denoiser, length: int | None = None) -> "OrderPolicy":
        """Refuse a denoiser that this policy was not made for."""
        c = self.config
        if denoiser.mask_id != c.mask_id:
            raise ValueError(f"this policy was trained for mask id {c.mask_id}, the denoiser's is {denoiser.mask_id}")
        theirs = getattr(getattr(denoiser, "config", None), "vocab_size", c.vocab_size)
        if c.vocab_size and theirs != c.vocab_size:
            raise ValueError(
                f"this policy was trained for {c.vocab_size} tokens ({c.denoiser}), the denoiser has {theirs}"
            )
        width = getattr(getattr(denoiser, "config", None), "width", c.hidden_width)
        if self.network.reads_states(c) and width != c.hidden_width:
            raise ValueError(
                f"this policy reads states of width {c.hidden_width} ({c.denoiser}), the denoiser's have {width}"
            )
        grid = (c.blocks or {}).get("grid")
        if grid is not None and grid != getattr(getattr(denoiser, "config", None), "grid", grid):
            raise ValueError(f"this policy looks along the units of a board of size {grid}, which the denoiser has not")
        return self

    def observe(self, view: View) -> dict[str, Tensor]:
        """The policy's inputs in a state, small enough to store: all that training needs later. Found once in a state."""
        if torch.compiler.is_compiling():
            return self._observe(view)
        known = view.memory.get(self)
        if known is None or known[0] is not view.prices or known[1] is not view.states:
            known = view.memory[self] = (view.prices, view.states, self._observe(view))
        return dict(known[2])

    def _observe(self, view: View) -> dict[str, Tensor]:
        seen = {"eligible": view.eligible, "hidden": view.hidden, "tokens": view.tokens, "confidence": view.confidence}
        if view.attention is not None:
            seen["real"] = view.attention
        if self.config.residual and self.config.base not in ("confidence", OF_SCHEDULER):
            seen["base"] = observe_base(view, self.config.base)
        if self.network.reads_states(self.config):
            seen["states"] = view.states
        return {**seen, **self.network.observe(view)}

    def score(self, seen: dict[str, Tensor], at: Place | None = None, padded: bool = False) -> Float[Tensor, "b L"]:
        """u_φ: differentiable in φ, from an observation. ``at`` are its hidden positions, where they are known already; ``padded``:
        some row is known to be, and the host does not wait to find out."""
        if self.network.masks_padding and "real" in seen and not padded and bool(seen["real"].all()):
            seen = {name: value for name, value in seen.items() if name != "real"}
        residual = self.network(seen, at)
        return add_base(residual, seen) if self.config.residual else residual

    def score_tokens(self, seen: dict[str, Tensor]) -> tuple[Float[Tensor, "b L"], Float[Tensor, "N V"]]:
        """The scores, and those that each token of a hidden position would have if it were the likeliest one there.

        The tokens are those of ``network.columns``.
        """
        if not isinstance(self.network, TokenwiseNetwork):
            raise ValueError(
                "only policies with a vector for every token score each of them: expected kind grid, or kind general, a small "
                f"vocabulary and token_width above 0, got kind {self.config.kind}"
            )
        at = hidden_places(seen)
        residual, logp = self.network.compare_tokens(seen, at)
        logits = residual + compute_logit(logp.clamp(min=-20.0))
        return confidence_logit(seen).index_put(at, logits.gather(1, logp.argmax(1, keepdim=True))[:, 0]), logits

    def forward(
        self, view: View, compiled: bool = False, base: Float[Tensor, "b L"] | None = None
    ) -> Float[Tensor, "b L"]:
        """``compiled`` runs few kernels, whose last bits may differ. ``base``, of a pace, are the scores that it begins with."""
        full = is_full(view)
        if compiled:
            remember(view)
            return compile_once(_judge)(self, view, full, base)
        return _judge(self, view, full, base)

    def logv(self, scores: Float[Tensor, "b L"], seen: dict[str, Tensor]) -> Float[Tensor, "b L"]:
        """log v_φ(i | s): −inf off the candidates (Eq. masked_softmax)."""
        return (scores / self.config.temperature).masked_fill(~seen["eligible"], -torch.inf).log_softmax(1)


def _judge(policy: OrderPolicy, view: View, full: bool, base: Float[Tensor, "b L"] | None) -> Float[Tensor, "b L"]:
    seen = policy.observe(view)
    if base is not None:
        seen["base"] = base
    if full:
        seen.pop("real", None)
    # Positions by themselves are scored where they are priced; those that are compared, wherever something is hidden.
    at = view.at if view.whole or not policy.network.looks_around else None
    return policy.score(seen, at, padded=not full)


def fit_config(config: PolicyConfig, denoiser: Any, name: str) -> tuple[PolicyConfig, dict[str, Tensor]]:
    """The configuration completed by the denoiser's vocabulary, length and width, and weights to begin with."""
    shape = getattr(denoiser, "config", None)
    if shape is None or not hasattr(shape, "max_length"):
        raise ValueError(f"{name} has no configuration: expected one of this library's denoisers, got {type(denoiser)}")
    complete = replace(
        config,
        size=shape.grid,
        length=shape.max_length,
        vocab_size=shape.vocab_size,
        mask_id=shape.mask_id,
        hidden_width=shape.width,
        denoiser=name,
    )
    return choose_network(complete).fit(complete, denoiser)


def build_policy(config: PolicyConfig, denoiser: Any, name: str) -> OrderPolicy:
    """A new policy for this denoiser."""
    complete, weights = fit_config(config, denoiser, name)
    policy = OrderPolicy(complete)
    # The denoiser has parts that the network does not copy, such as the values of its attention.
    policy.network.load_state_dict(weights, strict=False)
    return policy
