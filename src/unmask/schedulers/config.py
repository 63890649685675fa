"""``PolicyConfig``: the shape of a policy, its inputs, and the denoiser that it fits."""

from collections.abc import Sequence
from typing import Any

from unmask.runs.config import Count, CountOrZero, Positive, config
from unmask.runs.names import EntryPoints, did_you_mean
from unmask.schedulers.features import BASES, FEATURES, OF_SCHEDULER

KINDS = EntryPoints("unmask.policies")
"""Kind → its class of network (:class:`unmask.schedulers.networks.PolicyNetwork`), imported when a policy of it is configured."""
PURPOSES = ("order", "doubt", "pace")
SMALL_VOCABULARY = 64
"""Up to here a general policy reads whole distributions and embeds the tokens."""


@config
class PolicyConfig:
    """The shape of a policy, its inputs, and the denoiser it was trained for.

    Attributes:
        kind: general, opinion, mlp, transformer, hidden, grid, or a plug-in's.
        width: The width of the network; of the general kind, the widest blocks that it copies.
        n_layers: Layers of the network.
        n_heads: Attention heads, where a kind has its own.
        features: Inputs of the statistics kinds: confidence (log p̂), entropy (/ log V), position (j / L), margin, progress (the
            share revealed), left and right (log distances to the nearest known token). The hidden bit is always there.
        tokens: Embed the revealed tokens and the position, for small vocabularies.
        distribution: The grid and the general kind read the whole distribution of a position, not only its statistics.
        states: The general kind goes on from the denoiser's states; without them it reads prices alone.
        token_width: Where there are at most 16 tokens, the general kind has a vector of this width for every position and token,
            not blocks (0: always blocks).
        blocks: The shape of copied blocks, or of the copy of the denoiser that the kind opinion is. Set when the policy
            is built.
        blockwise: In blocks, read the prices of the current block alone; the head is not computed for the rest.
        residual: The network is added to the base; without it, scores start at random.
        base: The heuristic that an untrained policy equals: confidence, margin, entropy, uncertainty or left_to_right. That of a
            pace may be scheduler: the scores of the learned order that it is used with, read as log-odds.
        temperature: Orders are drawn from softmax(scores / temperature) in training.
        size: The side of a board. Set when the policy is built, as are the next five.
        length: The positions that it fits.
        vocab_size: The tokens that it fits.
        mask_id: The denoiser's mask token.
        hidden_width: The width of the denoiser's states.
        denoiser: The name of the denoiser it was trained for.
        purpose: order, or of a head doubt or pace.
        sure: The probability above which a pace holds a token to be final, where the decoding names none.
        walks: A pace goes down the scheduler's ranking and ends at the first position that is not final.
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
    sure: float = 0.99
    walks: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))  # JSON brings a list
        for what, values, known in (
            ("kind", (self.kind,), KINDS),
            ("features", self.features, FEATURES),
            ("base", (self.base,), (*BASES, OF_SCHEDULER) if self.purpose == "pace" else tuple(BASES)),
            ("purpose", (self.purpose,), PURPOSES),
        ):
            if unknown := [value for value in values if value not in known]:
                near = did_you_mean(unknown[0], known)
                raise ValueError(f"the policy's {what} must be one of {', '.join(known)}, got {unknown[0]!r}{near}")
        KINDS[self.kind].check(self)

    @property
    def embedded(self) -> tuple[int | None, int | None]:
        """How many tokens and positions the paper's kinds have an embedding for."""
        return (self.vocab_size, self.length) if self.tokens else (None, None)

    @property
    def small(self) -> bool:
        """Is the vocabulary small enough to read the distribution of each position?"""
        return self.vocab_size <= SMALL_VOCABULARY
