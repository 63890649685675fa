"""``OrderPolicy``: the learned scheduler ``v_φ``, and the small self-describing artefact it is saved as.

``v_φ(i | s) = exp(u_i(s)/τ) 1{i ∈ M} / Σ_j …`` (Eq. masked_softmax). The score is ``u_i = c_i + f_φ(s)_i``: ``c_i`` is confidence
as a logit, log p̂_i/(1 − p̂_i), and the network's readout starts at zero, so an untrained policy is soft confidence. Another
``base`` makes c_i the score of another heuristic, so that an untrained policy ranks as that one does. With ``residual=False``
there is no c_i, and the policy starts from its random weights.

The policy reads the denoiser's distributions at *every* hidden position and the revealed tokens. It never sees a hidden token: in
the canvas that it observes, hidden tokens are masks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.decoding.pricing import compile_once, constant
from unmask.decoding.protocols import Denoiser, View
from unmask.runs.config import Count, CountOrZero, Positive, config
from unmask.runs.names import did_you_mean
from unmask.schedulers import heuristics
from unmask.schedulers.general import SMALL_VOCABULARY, General, distributions
from unmask.schedulers.networks import MLP, Attentive, Grid, Projection
from unmask.schedulers.opinion import Opinion
from unmask.schedulers.token_network import TokenNetwork

FEATURES = ("confidence", "entropy", "position", "margin", "progress", "left", "right")
PRICED = ("confidence", "entropy", "margin", "logit")
"""Features that are prices; ``logit`` is one of the general kind's."""
KINDS = ("general", "opinion", "mlp", "transformer", "hidden", "grid")
PURPOSES = ("order", "doubt", "pace")
BASES: dict[str, Callable[[View], Float[Tensor, "b L"]]] = {
    "confidence": heuristics.confidence,
    "uncertainty": heuristics.uncertainty,
    "entropy": heuristics.entropy,
    "margin": lambda view: 8 * view.margin,  # a power of two moves no margin onto another
    "left_to_right": heuristics.left_to_right,
}
"""Heuristics that an untrained policy can rank as, and their scores on the scale of logits."""
LOGIT_CAP = 30.0


@config
class PolicyConfig:
    """The shape of a policy, its inputs, and the denoiser it was trained for.

    ``features`` of the statistics kinds: log p̂, entropy / log V, j / L, margin, share revealed, and how far away the nearest token
    is that is known on the ``left`` and on the ``right`` (logarithms of distances); the hidden bit is always there.
    ``tokens``: embed the revealed tokens and the position (small vocabularies). ``distribution``: the grid and the general kind
    read the whole distribution of a position, not only its statistics. ``states``: the general kind goes on from the denoiser's
    states; without them it reads prices alone. ``token_width``: where the vocabulary is small, it has a vector of this width for
    every position and token (:mod:`.token_network`), not blocks (0: always blocks). ``blocks``: the shape of its blocks, or of the
    copy of the denoiser that the kind ``opinion`` is (:mod:`.opinion`), which reads the tokens alone.
    ``blockwise``: in blocks, a policy reads the prices of its block alone, and the head is not computed for the rest.
    ``purpose``: an order, or what a head says of each token (:mod:`.heads`). ``denoiser``, ``vocab_size``, ``mask_id`` and
    ``length`` say what it fits.
    """

    kind: str = "grid"
    width: Count = 24
    n_layers: Count = 3
    n_heads: Count = 4
    features: Sequence[str] = ("confidence", "entropy", "position")
    tokens: bool = True
    distribution: bool = True
    states: bool = True
    token_width: CountOrZero = 0
    blocks: dict[str, Any] | None = None
    blockwise: bool = False
    residual: bool = True
    base: str = "confidence"
    temperature: Positive = 1.0
    size: int | None = None
    length: int | None = None
    vocab_size: int = 0
    mask_id: int = 0
    hidden_width: int = 0
    denoiser: str = ""
    purpose: str = "order"

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))  # JSON brings a list
        for what, values, known in (
            ("kind", (self.kind,), KINDS),
            ("features", self.features, FEATURES),
            ("base", (self.base,), BASES),
            ("purpose", (self.purpose,), PURPOSES),
        ):
            if unknown := [value for value in values if value not in known]:
                near = did_you_mean(unknown[0], known)
                raise ValueError(f"the policy's {what} must be one of {', '.join(known)}, got {unknown[0]!r}{near}")
        if self.blockwise and self.kind == "grid":
            raise ValueError("a grid policy reads the whole board: blockwise goes with the other kinds")
        if self.kind == "opinion" and not (self.residual and self.purpose == "order"):
            raise ValueError(
                "an opinion orders positions, beginning as its base does: leave residual at true and purpose at order"
            )
        if self.kind in ("transformer", "general") and self.width % self.n_heads:
            raise ValueError(f"the policy's width {self.width} is not a multiple of its n_heads {self.n_heads}")

    @property
    def reads_states(self) -> bool:
        return self.kind == "hidden" or (self.kind == "general" and self.states)

    @property
    def per_token(self) -> bool:
        """Does the general kind have a vector for every token?"""
        return self.kind == "general" and self.states and self.reads_distributions and self.token_width > 0

    @property
    def n_features(self) -> int:
        """Numbers per position that the general kind reads besides the states."""
        return len(self.features) + 2 + (2 * self.vocab_size if self.reads_distributions else 0)

    @property
    def reads_distributions(self) -> bool:
        return self.distribution and (self.kind == "grid" or self.vocab_size <= SMALL_VOCABULARY)


class OrderPolicy(nn.Module, PyTorchModelHubMixin, library_name="unmask", tags=["masked-diffusion", "decoding-order"]):
    """A Scheduler. ``policy(view)`` scores; ``observe`` and ``score`` are its two halves, for training on recorded states."""

    compiles = True
    """It takes ``compiled=True``."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = c = config
        embedded = (c.vocab_size, c.length) if c.tokens else (None, None)
        if c.kind in ("general", "opinion"):
            if not c.blocks:
                raise ValueError(f"a policy of kind {c.kind} is made for a denoiser: build it with build_policy")
            self.network = _general_network(c) if c.kind == "general" else Opinion(c.blocks, c.vocab_size, c.mask_id)
        elif c.kind == "mlp":
            self.network = MLP(len(c.features) + 1, c.width, *embedded)
        elif c.kind == "transformer":
            self.network = Attentive(len(c.features) + 1, c.width, c.n_layers, c.n_heads, *embedded)
        elif c.kind == "hidden":
            self.network = Projection(c.hidden_width, c.width)
        else:
            if not c.size:
                raise ValueError("a grid policy needs a denoiser of grids: its configuration has no size")
            self.network = Grid(c.size, 7, c.width, c.n_layers)
        if c.residual and c.kind != "opinion":
            nn.init.zeros_(self.network.readout.weight)
            nn.init.zeros_(self.network.readout.bias)

    @property
    def prices_all(self) -> bool:
        """Whether positions that cannot be chosen are priced too: kinds with attention across positions need them."""
        return self.config.kind in ("general", "transformer", "grid") and not self.config.blockwise

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
        if c.reads_states and width != c.hidden_width:
            raise ValueError(
                f"this policy reads states of width {c.hidden_width} ({c.denoiser}), the denoiser's have {width}"
            )
        return self

    def observe(self, view: View) -> dict[str, Tensor]:
        """The policy's inputs in a state, small enough to store: all that training needs later."""
        c = self.config
        seen = {"eligible": view.eligible, "hidden": view.hidden, "tokens": view.tokens, "confidence": view.confidence}
        if view.attention is not None:
            seen["real"] = view.attention
        if c.residual and c.base != "confidence":
            seen["base"] = torch.where(
                view.confidence > -torch.inf, BASES[c.base](view), constant(0.0, view.tokens.device)
            )
        if c.reads_states:
            seen["states"] = view.states
        if c.kind == "hidden":
            return seen
        if c.kind == "opinion":
            return {**seen, "best": view.best}
        if c.kind == "grid":
            logp = view.prices.logp.new_zeros(*view.tokens.shape, view.prices.logp.shape[1]).index_put(
                view.at, view.prices.logp
            )
            return {**seen, "logp": logp[..., 1:], "best": view.best}
        features = self._features(view)
        if c.kind == "general" and c.reads_distributions:
            shape = view.tokens.shape
            features = torch.cat([features, distributions(view.prices.logp, view.at, shape, c.vocab_size)], dim=-1)
        return {**seen, "features": features}

    def _features(self, view: View) -> Float[Tensor, "b L F"]:
        """The features side by side: what is priced spread over the canvas at once, 0 where nothing was."""
        c, prices = self.config, view.prices
        names = [*c.features, "hidden", *(["logit"] if c.kind == "general" else [])]
        columns: dict[str, Tensor] = {"hidden": view.hidden}
        if priced := [name for name in names if name in PRICED]:
            values = torch.stack([self._price_feature(name, view) for name in priced], dim=1)
            if prices.altered:  # an end token that has no confidence by decree is as if it were not priced
                values = values.masked_fill((prices.confidence == -torch.inf)[:, None], 0.0)
            dense = values.new_zeros(*view.tokens.shape, len(priced)).index_put_(view.at, values)
            columns |= dict(zip(priced, dense.unbind(-1), strict=True))
        if "position" in names:
            columns["position"] = _positions(view)
        if "progress" in names:
            columns["progress"] = _progress(view)[:, None].expand(view.tokens.shape)
        if "left" in names or "right" in names:
            columns["left"], columns["right"] = _distances(view)
        return torch.cat([columns[name][..., None] for name in names], dim=-1).float()

    def _price_feature(self, name: str, view: View) -> Float[Tensor, "N"]:
        prices = view.prices
        if name == "entropy":
            vocabulary = prices.vocabulary - len(view.denoiser.forbidden_ids)
            return prices.entropy / torch.log(torch.tensor(float(max(2, vocabulary))))
        if name == "logit":
            return self._logit(prices.confidence) / 10
        return prices.margin if name == "margin" else prices.confidence

    def score(
        self, seen: dict[str, Tensor], at: tuple[Tensor, Tensor] | None = None, padded: bool = False
    ) -> Float[Tensor, "b L"]:
        """u_φ: differentiable in φ, from an observation. ``at`` are its hidden positions, where they are known already; ``padded``:
        some row is known to be, and the host does not wait to find out."""
        c = self.config
        if c.kind == "hidden":
            residual = self.network(seen["states"].to(self.network.readout.weight.dtype))
        elif c.kind == "opinion":
            return self.weigh(self.predict(seen, at), seen, at)
        elif c.kind == "grid":
            residual = self.network(*self._grid_input(seen))
        elif c.kind == "general":
            at = at or _hidden_places(seen)
            inputs = (seen.get(name) for name in ("features", "tokens", "states", "real"))
            scores = self.network(*inputs, at)
            residual = scores.new_zeros(seen["hidden"].shape).index_put(at, scores)
        else:
            residual = self.network(seen["features"], seen["tokens"], _find_padding(seen, padded))
        if not c.residual:
            return residual
        return residual + (self.confidence_logit(seen) if c.base == "confidence" else seen["base"])

    def predict(self, seen: dict[str, Tensor], at: tuple[Tensor, Tensor] | None = None) -> Float[Tensor, "N V"]:
        """The logits that an opinion has of the tokens at the hidden positions."""
        return self.network(seen["tokens"], seen.get("real"), at or _hidden_places(seen))

    def weigh(
        self, logits: Float[Tensor, "N V"], seen: dict[str, Tensor], at: tuple[Tensor, Tensor] | None = None
    ) -> Float[Tensor, "b L"]:
        """The scores that follow from an opinion's ``logits``."""
        assert isinstance(self.network, Opinion)
        at = at or _hidden_places(seen)
        base = self.confidence_logit(seen) if self.config.base == "confidence" else seen["base"]
        own = self.network.judge(logits, seen["best"][at], base[at], LOGIT_CAP)
        return base.index_put(at, base[at] + own)

    def forward(self, view: View, compiled: bool = False) -> Float[Tensor, "b L"]:
        """``compiled`` runs few kernels, whose last bits may differ."""
        full = _is_full(view)
        if compiled:
            remember(view)
            return compile_once(_judge)(self, view, full)
        return _judge(self, view, full)

    def logv(self, scores: Float[Tensor, "b L"], seen: dict[str, Tensor]) -> Float[Tensor, "b L"]:
        """log v_φ(i | s): −inf off the candidates (Eq. masked_softmax)."""
        return (scores / self.config.temperature).masked_fill(~seen["eligible"], -torch.inf).log_softmax(1)

    @classmethod
    def confidence_logit(cls, seen: dict[str, Tensor]) -> Float[Tensor, "b L"]:
        """log p̂/(1 − p̂); that of p̂ = 1/e where nothing was priced."""
        return cls._logit(seen["confidence"].nan_to_num(neginf=-1.0))

    @staticmethod
    def _logit(confidence: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """log p̂/(1 − p̂) from log p̂, exact where p̂ is all but 1."""
        return -torch.log(torch.expm1(-confidence).clamp(min=1e-30)).clamp(max=LOGIT_CAP)

    def _grid_input(self, seen: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Per cell and digit: p, log p, p relative to the best, revealed here, hidden cell; per cell: p̂ and its logit."""
        hidden = seen["hidden"][..., None]
        digits = seen["logp"].shape[-1]
        logp = seen["logp"].clamp(min=-20.0).masked_fill(~hidden, 0.0)
        p = logp.exp() * hidden
        revealed = torch.nn.functional.one_hot(seen["tokens"], digits + 1)[..., 1:].float()
        best = (seen["best"] - 1).clamp(min=0)
        if not self.config.distribution:
            p, logp = (x * torch.nn.functional.one_hot(best, digits) for x in (p, logp))
        logit = (self.confidence_logit(seen)[..., None] / 10).masked_fill(~hidden, 0.0).expand_as(p)
        entropy = -(p * logp).sum(-1, keepdim=True).expand_as(p)
        leading = torch.nn.functional.one_hot(best, digits).float() * hidden
        features = torch.stack([p, logp / 5, revealed, hidden.float().expand_as(p), logit, entropy, leading], dim=-1)
        return features, best


def _judge(policy: OrderPolicy, view: View, full: bool) -> Float[Tensor, "b L"]:
    seen = policy.observe(view)
    if full:
        seen.pop("real", None)
    own = policy.config.kind == "opinion"  # of positions by themselves: those that are priced will do
    return policy.score(seen, view.at if own or view.whole else None, padded=not full)


def _general_network(c: PolicyConfig) -> General | TokenNetwork:
    assert c.blocks is not None
    if c.per_token:
        return TokenNetwork(c.blocks, c.n_features - 2 * c.vocab_size, c.vocab_size, c.mask_id, c.token_width)
    embeds = c.tokens and c.vocab_size <= SMALL_VOCABULARY
    return General(c.blocks, c.n_features, c.vocab_size if embeds else None, c.hidden_width if c.states else 0)


def _find_padding(seen: dict[str, Tensor], padded: bool) -> Bool[Tensor, "b L"] | None:
    """Where rows have tokens, None if none is padded; unless they are known to be, the host waits for it."""
    real = seen.get("real")
    return real if real is None or padded or not bool(real.all()) else None


def _hidden_places(seen: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    row, position = torch.nonzero(seen["hidden"], as_tuple=True)
    return row, position


def _positions(view: View) -> Float[Tensor, "b L"]:
    """j / L, found once while no row leaves."""
    known = view.memory.get("positions")
    if known is None or known[0] is not view.index:
        region = (view.index >= 0).sum(1, keepdim=True).clamp(min=1)
        known = view.memory["positions"] = (view.index, view.index.clamp(min=0) / region)
    return known[1]


def _is_full(view: View) -> bool:
    """Whether no row is padded, found once while no row leaves: the host waits for it."""
    known = view.memory.get("full")
    if known is None or known[0] is not view.attention:
        known = view.memory["full"] = (view.attention, view.attention is None or bool(view.attention.all()))
    return known[1]


def _progress(view: View) -> Float[Tensor, "b"]:
    """The share that is revealed."""
    known = view.memory.get("total")
    if known is None or known[0] is not view.total:
        known = view.memory["total"] = (view.total, view.total.clamp(min=1))
    return 1 - view.remaining / known[1]


def _distances(view: View) -> tuple[Float[Tensor, "b L"], Float[Tensor, "b L"]]:
    """log₂(1 + steps to the nearest known token)/8 on either side. Padding is neither a known token nor a step."""
    real, places, logarithms = _places(view)
    known = real > view.hidden  # for booleans: and not
    nearest = (torch.stack([known, known.flip(1)]) * places).cummax(2).values
    left, right = logarithms[places - nearest].unbind(0)
    return left, right.flip(1)


def remember(view: View) -> None:
    """Find what is found once while no row leaves: a compiled graph reads it."""
    for find in (_positions, _progress, _places):
        find(view)


def _places(view: View) -> tuple[Bool[Tensor, "b L"], Int[Tensor, "2 b L"], Float[Tensor, "n"]]:
    """What is no padding; the number of each token in its row, from its left end and, in reverse, from its right one; the
    logarithm of each distance. Found once while no row leaves."""
    known = view.memory.get("places")
    if known is None or known[0] is not view.rows:
        real = torch.ones_like(view.hidden) if view.attention is None else view.attention
        place = real.long().cumsum(1)
        places = torch.stack([place, (real.sum(1, keepdim=True) + 1 - place).flip(1)])
        distances = torch.arange(real.shape[1] + 2, device=real.device)
        known = view.memory["places"] = (view.rows, (real, places, torch.log2(1.0 + distances) / 8))
    return known[1]
