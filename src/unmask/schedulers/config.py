"""``PolicyConfig``: the shape of a policy, its inputs, and the denoiser that it fits."""

from collections.abc import Sequence
from typing import Any

from unmask.runs.config import Count, CountOrZero, Positive, config
from unmask.runs.names import EntryPoints, did_you_mean
from unmask.schedulers.features import BASES, FEATURES

KINDS = EntryPoints("unmask.policies")
"""Kind → its class of network (:class:`unmask.schedulers.networks.PolicyNetwork`), imported when a policy of it is configured."""
PURPOSES = ("order", "doubt", "pace")
SMALL_VOCABULARY = 64
"""Up to here a general policy reads whole distributions and embeds the tokens."""


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
    ``purpose``: an order, or what a head says of each token (:mod:`.heads`). ``sure``: the probability above which a pace holds a
    token to be final, where the decoding names none; one that ``walks`` ends at the scheduler's first position that is not.
    ``denoiser``, ``vocab_size``, ``mask_id`` and ``length`` say what it fits.
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
            ("base", (self.base,), BASES),
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
