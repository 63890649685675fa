"""The nouns of the library: what is plugged in (Denoiser, Scheduler, Pace, Revision, Task), what flows between (View, Trajectory).

Axis letters, everywhere: ``B`` canvases, ``b`` of them still live, ``L`` positions, ``V`` vocabulary, ``D`` width, ``K`` reveals
of the longest row, ``N`` positions priced in one step, ``S`` states of all rows. Boolean tensors are adjectives: *hidden*,
*eligible*, *live*. Log-probabilities end in ``_logp``.

A canvas is a row of tokens in which ``mask_id`` marks what is hidden. At each step the denoiser prices the eligible positions,
a scheduler scores them, a pace says how many are revealed, and a revision may take tokens back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.draws import counter_uniform
from unmask.decoding.lazy import lazy
from unmask.decoding.pricing import Prices
from unmask.decoding.standing import Revisions, Standing
from unmask.runs.names import EntryPoints

RENDERERS = EntryPoints("unmask.renderers")
"""Class name → a function from its instance to HTML, for notebooks: HTML is made by the report, far above this module."""


@runtime_checkable
class Denoiser(Protocol):
    """A frozen masked language model. ``hidden`` and ``logits`` are two calls so that only eligible positions pay for a head.

    ``hidden(tokens, attention)[:, i]`` is the state that predicts position ``i``: a model that predicts its right neighbour
    shifts inside ``hidden``. ``attention`` is False on padding, which must change nothing. ``forbidden_ids`` are never
    revealed (the mask at least). ``forwarded`` counts the canvases that went through ``hidden``.
    """

    forwarded: int

    @property
    def mask_id(self) -> int: ...
    @property
    def pad_id(self) -> int | None: ...
    @property
    def end_ids(self) -> tuple[int, ...]: ...
    @property
    def forbidden_ids(self) -> tuple[int, ...]: ...
    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]: ...
    def logits(self, hidden: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]: ...


@dataclass(frozen=True)
class Focus:
    """Where a decoding stands, for denoisers that compute less where nothing can be revealed.

    ``rows`` are ids that the rows keep until the decoding ends; ``block`` is the number of each row's current block and
    ``active`` its positions, revealed ones included. Step 0 begins a decoding. The host knows without waiting
    ``numbers``, those of the blocks, and ``span``, the block's columns, if they are the same in all rows, next to each other,
    and no padding stands from the one before them on. ``at``: the only (row, position) pairs whose states are looked at; None if
    that is not known.
    """

    rows: Int[Tensor, "b"]
    block: Int[Tensor, "b"]
    active: Bool[Tensor, "b L"]
    step: int
    numbers: tuple[int, ...] | None = None
    span: slice | None = None
    at: tuple[Int[Tensor, "N"], Int[Tensor, "N"]] | None = None

    def double(self) -> Focus:
        """For two canvases per row, all first ones before all second ones: each has an id of its own."""
        rows = torch.cat([2 * self.rows, 2 * self.rows + 1])
        numbers = None if self.numbers is None else 2 * self.numbers
        return Focus(rows, self.block.repeat(2), self.active.repeat(2, 1), self.step, numbers, self.span)


class FocusedDenoiser(Denoiser, Protocol):
    """A denoiser that takes a focus. Without one its states depend on the canvas alone."""

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None, focus: Focus | None = None
    ) -> Float[Tensor, "B L D"]: ...


def takes_focus(denoiser: Denoiser) -> TypeGuard[FocusedDenoiser]:
    """Whether ``denoiser`` has the optional attribute ``takes_focus``, and it is true."""
    return bool(getattr(denoiser, "takes_focus", False))


def count_positions(denoiser: Denoiser, length: int) -> int:
    """Positions that went through the denoiser: its own count, or every position of its canvases of this length."""
    return getattr(denoiser, "computed", denoiser.forwarded * length)


@dataclass(frozen=True)
class View:
    """What a scheduler sees: the live rows of one step. Dense properties are ``[b, L]``, −inf where nothing was priced.

    ``rows`` are the live rows' indices in the caller's batch; ``index`` the place of each position inside its row's region
    (−1 outside), ``place`` the same inside its block; ``at`` the (row, position) pairs that were priced, in row-major order;
    ``step`` the number of steps taken. ``reference`` is None except for oracles. ``memory`` lives as long as the
    decoding, for rules that look back. ``quota`` is the step budget's number, and ``most`` what the host knows of it without
    waiting for the device: no row's is larger, 0 if it knows nothing. ``whole``: ``at`` are all hidden positions.
    """

    denoiser: Denoiser
    tokens: Int[Tensor, "b L"]
    attention: Bool[Tensor, "b L"] | None
    hidden: Bool[Tensor, "b L"]
    eligible: Bool[Tensor, "b L"]
    index: Int[Tensor, "b L"]
    place: Int[Tensor, "b L"]
    rows: Int[Tensor, "b"]
    step: int
    total: Int[Tensor, "b"]
    states: Float[Tensor, "b L D"]
    at: tuple[Int[Tensor, "N"], Int[Tensor, "N"]]
    prices: Prices
    seeds: Int[Tensor, "b"]
    reference: Int[Tensor, "b L"] | None = None
    memory: dict[Any, Any] = field(default_factory=dict)
    quota: Int[Tensor, "b"] | None = None
    most: int = 0
    whole: bool = False

    def dense(self, packed: Float[Tensor, "N"], fill: float = -torch.inf, at: Any = None) -> Float[Tensor, "b L"]:
        """Spread packed values over the canvas: those of the priced positions, or of ``at``."""
        return packed.new_full(self.tokens.shape, fill).index_put_(self.at if at is None else at, packed)

    @lazy
    def confidence(self) -> Float[Tensor, "b L"]:
        return self.dense(self.prices.confidence)

    @lazy
    def margin(self) -> Float[Tensor, "b L"]:
        return self.dense(self.prices.margin)

    @lazy
    def entropy(self) -> Float[Tensor, "b L"]:
        """+inf where nothing was priced: an unpriced position is the least certain."""
        return self.dense(self.prices.entropy, torch.inf)

    @lazy
    def best(self) -> Int[Tensor, "b L"]:
        """The likeliest token of each priced position; the canvas elsewhere."""
        return self.tokens.index_put(self.at, self.prices.best)

    @lazy
    def reference_logp(self) -> Float[Tensor, "b L"] | None:
        """log p(x*_i | s) of each priced position, for oracles and rewards."""
        if self.reference is None:
            return None
        return self.dense(self.prices.logp.gather(1, self.reference[self.at][:, None])[:, 0])

    @lazy
    def remaining(self) -> Int[Tensor, "b"]:
        return self.hidden.sum(1)

    def uniform(self, purpose: int) -> Float[Tensor, "b L"]:
        """Numbers in (0, 1) that depend only on the row's seed, the step, the purpose and the index in the region.

        Neither the other rows nor padding, which moves a position but not its index, change them.
        """
        return counter_uniform(self.seeds[:, None], self.step, purpose, self.index)

    def gumbel(self, purpose: int) -> Float[Tensor, "b L"]:
        return -torch.log(-torch.log(self.uniform(purpose)))


@runtime_checkable
class Scheduler(Protocol):
    """Scores positions: the higher, the sooner. A plain function is one; :func:`scheduler` declares what it needs."""

    def __call__(self, view: View, /) -> Float[Tensor, "b L"]: ...


@dataclass(frozen=True)
class DeclaredScheduler:
    """A scoring function and its needs.

    ``needs_truth``: the view carries the reference. ``prices_all``: every hidden position is priced, not only the eligible ones.
    ``reads_states``: also states where nothing is priced.
    """

    score: Callable[[View], Float[Tensor, "b L"]]
    needs_truth: bool = False
    prices_all: bool = False
    reads_states: bool = True

    def __call__(self, view: View) -> Float[Tensor, "b L"]:
        return self.score(view)


def scheduler(*, needs_truth: bool = False, prices_all: bool = False) -> Callable[[Scheduler], DeclaredScheduler]:
    """Declare what a scoring function needs: ``@scheduler(needs_truth=True)`` above it."""
    return lambda score: DeclaredScheduler(score, needs_truth, prices_all)


def needs_truth(scheduler: Scheduler) -> bool:
    return bool(getattr(scheduler, "needs_truth", False))


def prices_all(rule: Scheduler | Pace | Revision | None) -> bool:
    return bool(getattr(rule, "prices_all", False))


def reads_states(rule: Scheduler | Pace) -> bool:
    """Whether it may read states of positions that are not priced: so does every rule that does not declare otherwise."""
    return bool(getattr(rule, "reads_states", True))


@runtime_checkable
class Pace(Protocol):
    """How many at once: from a view, the keys that rank its eligible positions and the step's quota, the set to reveal.

    Every row with an eligible position reveals at least one; rows do not influence each other.
    """

    def __call__(self, view: View, keys: Float[Tensor, "b L"], quota: Int[Tensor, "b"], /) -> Bool[Tensor, "b L"]: ...


@runtime_checkable
class Revision(Protocol):
    """Doubts the tokens that stand: the higher the sooner, −inf where a token stays. Rows do not influence each other.

    A doubted token is hidden again, or replaced by the likeliest one if an attribute ``replaces`` is true. A row's budget ends it.
    """

    def __call__(self, view: View, standing: Standing, /) -> Float[Tensor, "N"]: ...


@dataclass(frozen=True)
class States:
    """Every state that a decoding visited, flat: what rewards, training and viewers need, without another denoiser call.

    ``keys`` are the scores after division by the temperature; ``target_logp`` prices *all* candidates of the state.
    ``observed`` holds what the caller's ``observe`` returned, by name.
    """

    row: Int[Tensor, "S"]
    step: Int[Tensor, "S"]
    tokens: Int[Tensor, "S L"]
    eligible: Bool[Tensor, "S L"]
    revealed: Bool[Tensor, "S L"]
    scores: Float[Tensor, "S L"]
    confidence: Float[Tensor, "S L"]
    margin: Float[Tensor, "S L"]
    entropy: Float[Tensor, "S L"]
    best: Int[Tensor, "S L"]
    target_logp: Float[Tensor, "S L"] | None
    observed: dict[str, Tensor]

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class Trajectory:
    """The record of one decoding of ``B`` canvases; −1 and 0 pad rows with fewer than ``K`` reveals.

    ``order[r, k]`` is the ``k``-th revealed position, ``step[r, k]`` the step it fell in (several share a step when the
    decoding is parallel). ``logp`` is log p of the revealed token under the denoiser; under teacher forcing its row sum is
    log p(x | σ). ``order_logp`` is log v of the choice at the order temperature (0 for a greedy order). ``steps`` counts forwards
    one after another, ``denoiser_calls`` canvases, ``positions`` what was computed of them: a cache computes fewer than all.
    Without a revision, ``revisions`` is None; a row with one is no permutation, and ``order`` names each reveal and replacement.
    """

    tokens: Int[Tensor, "B L"]
    order: Int[Tensor, "B K"]
    step: Int[Tensor, "B K"]
    logp: Float[Tensor, "B K"]
    order_logp: Float[Tensor, "B K"]
    score: Float[Tensor, "B K"]
    states: States | None
    denoiser_calls: int
    steps: int
    seconds: float
    denoiser_seconds: float
    positions: int = 0
    revisions: Revisions | None = None

    @property
    def reveals(self) -> Int[Tensor, "B"]:
        return (self.order >= 0).sum(1)

    @property
    def total_logp(self) -> Float[Tensor, "B"]:
        """log p(x | σ): the sum of what the denoiser gave to each revealed token (Eq. monte_carlo_return); NaN for revised rows."""
        return self.logp.sum(1).masked_fill(self.revised > 0, torch.nan) if self.revisions else self.logp.sum(1)

    @property
    def revised(self) -> Int[Tensor, "B"]:
        """How many tokens of each row were taken back."""
        rows = self.order.new_zeros(0) if self.revisions is None else self.revisions.row
        return torch.bincount(rows, minlength=len(self.tokens))

    def _repr_html_(self) -> str:
        return RENDERERS["Trajectory"](self)

    @property
    def rank(self) -> Int[Tensor, "B L"]:
        """The place of each position in the order (the last, if it was revised), −1 where it was given."""
        k = torch.arange(self.order.shape[1], device=self.order.device).expand_as(self.order)
        place = torch.where(self.order >= 0, k, -1)
        return torch.full_like(self.tokens, -1).scatter_reduce(1, self.order.clamp(min=0), place, "amax")


@dataclass(frozen=True)
class Canvas:
    """What the loop decodes: partly hidden tokens, and what is known about them.

    ``target`` is the truth, for teacher forcing, oracles and records. ``region`` is where the answer stands (default: from the
    first to the last hidden position); blocks and indices count inside it. ``attention`` is False on padding. ``candidates``
    restricts what may be revealed: other hidden positions stay hidden. ``seeds`` make each row's randomness its own (default: the
    row's number). Of positions that are no candidates, those that are ``waiting`` are hidden to schedulers too, as if they could be
    revealed. ``weight`` is how much the reward of a position counts in training (default: 1).
    """

    tokens: Int[Tensor, "B L"]
    target: Int[Tensor, "B L"] | None = None
    region: Bool[Tensor, "B L"] | None = None
    attention: Bool[Tensor, "B L"] | None = None
    candidates: Bool[Tensor, "B L"] | None = None
    seeds: Int[Tensor, "B"] | None = None
    waiting: Bool[Tensor, "B L"] | None = None
    weight: Float[Tensor, "B L"] | None = None

    def check(self) -> None:
        """Refuse tensors of other shapes than the tokens."""
        for name in ("target", "region", "attention", "candidates", "waiting", "weight"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != self.tokens.shape:
                raise ValueError(
                    f"{name} must have the shape of the tokens {tuple(self.tokens.shape)}, got {tuple(tensor.shape)}"
                )

    @property
    def truth(self) -> Int[Tensor, "B L"]:
        """The target; an error if there is none."""
        if self.target is None:
            raise ValueError("this canvas has no target: give the truth as Canvas(tokens, target)")
        return self.target

    def seeded(self, seeds: Int[Tensor, "B"] | None) -> Canvas:
        return replace(self, seeds=seeds)

    def without_target(self) -> Canvas:
        return replace(self, target=None)

    def rows(self, rows: slice | Tensor) -> Canvas:
        """Some of the canvases, by a slice, indices or a boolean tensor."""
        return Canvas(*(None if x is None else x[rows] for x in vars(self).values()))  # pyright: ignore

    def repeated(self, group: int) -> Canvas:
        """Every canvas ``group`` times, copies next to each other."""
        return Canvas(*(None if x is None else x.repeat_interleave(group, dim=0) for x in vars(self).values()))  # pyright: ignore

    def answer(self, mask_id: int) -> Bool[Tensor, "B L"]:
        """Where something is to be revealed: what is hidden, but for hidden positions that are no candidates."""
        hidden = self.tokens == mask_id
        return hidden if self.candidates is None else hidden & self.candidates

    def to(self, device: torch.device | str) -> Canvas:
        return Canvas(*(None if x is None else x.to(device) for x in vars(self).values()))  # pyright: ignore


@dataclass(frozen=True)
class Verdict:
    """``exact``: the answer is right as a whole; ``share``: the part of it that is right."""

    exact: Bool[Tensor, "B"]
    share: Float[Tensor, "B"]

    @classmethod
    def of(cls, tokens: Int[Tensor, "B L"], target: Int[Tensor, "B L"], scored: Bool[Tensor, "B L"]) -> Verdict:
        """Token by token, over the ``scored`` positions."""
        share = ((tokens == target) & scored).sum(1) / scored.sum(1)
        return cls(exact=share == 1, share=share)


@runtime_checkable
class Task(Protocol):
    """A finite set of problems: canvases, their truth, a verifier, a stratum for each, and how to draw an answer."""

    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...
    def canvas(self, rows: Sequence[int]) -> Canvas: ...
    def verify(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> Verdict: ...
    def stratum(self, row: int) -> str: ...
    def draw(self, row: int, tokens: Int[Tensor, "L"]) -> str: ...


Observe = Callable[[View], dict[str, Tensor]]
