"""``Decoding``: every option of a decoding, declared once. The loop, text generation, evaluations, presets and commands take it."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from unmask.decoding.paces import load_pace
from unmask.decoding.protocols import Pace, Revision
from unmask.decoding.revisions import load_revision
from unmask.runs.config import Count, NonNegative, Share, config

Ends = Literal["allow", "damp", "suppress", "forbid", "logits_eos_inf", "confidence_eos_eot_inf"]
Cache = Literal["none", "prefix", "dual"]


@config
class Decoding:
    """How to decode, whatever the denoiser and the scheduler. The papers' L–B–T are the canvas, ``block`` and ``steps``.

    Attributes:
        block: Positions per block, from the left (semi-autoregressive decoding); None is one block, any order.
        steps: Step budget for the whole region, spread evenly (parallel decoding); None reveals one position per step.
        pace: How many positions per step: top, threshold:p=0.9, factor, entropy_bound, kl_stable, less, dilated, bernoulli.
        order_temperature: 0 takes the position with the best score; above 0, positions are drawn from softmax(scores/τ).
        token_temperature: 0 takes the likeliest token.
        top_p: Draw tokens only from the likeliest ones that together have this probability.
        ends: End tokens: allow; damp them while little is revealed; suppress them until nothing else is left; forbid;
            logits_eos_inf and confidence_eos_eot_inf, as LLaDA's generate.py has them.
        end_floor: The factor that damped end tokens start with, in [0, 1].
        min_length: No end token in this many positions.
        stop_at_end: A row ends when everything before its first end token is revealed.
        guidance: Scale of classifier-free guidance; above 0 it doubles the denoiser calls.
        cache: prefix computes only from the block on, dual only the block; approximate, see docs/caching.md.
        refresh: With a cache, compute everything again after this many steps; None only where a block begins.
        share: Forward equal canvases of a batch once.
        revision: What takes revealed tokens back: t2t, t2m:p=0.9, remdm_conf, remdm_cap, remdm_rescale, p2, doubt; None keeps all.
        revision_budget: At most this many tokens are taken back for each hidden position of a row.
        draft: Canvases of a row that are forwarded at once, the next ones if its scores stayed; the result is the same.
        compile: Run the pricing and a learned policy as compiled graphs of few kernels, for GPUs; last bits may differ.
    """

    block: Count | None = None
    steps: Count | None = None
    pace: str | Pace = "top"
    order_temperature: NonNegative = 0.0
    token_temperature: NonNegative = 0.0
    top_p: Annotated[float, pydantic.Field(gt=0, le=1)] = 1.0
    ends: Ends = "allow"
    end_floor: Share = 0.4
    min_length: Annotated[int, pydantic.Field(ge=0, lt=2**31)] = 0
    stop_at_end: bool = True
    guidance: NonNegative = 0.0
    cache: Cache = "none"
    refresh: Count | None = None
    share: bool = False
    revision: str | Revision | None = None
    revision_budget: NonNegative = 3.0
    draft: Annotated[int, pydantic.Field(ge=1, le=64)] = 1  # the plans of a draft grow with its cube
    compile: bool = False

    def __post_init__(self) -> None:
        if self.refresh is not None and self.cache == "none":
            raise ValueError(
                f"refresh is {self.refresh}, but there is no cache to refresh: set cache to prefix or dual"
            )

        if self.draft > 1 and self.cache != "none":
            raise ValueError(
                f"draft is {self.draft}, but the states of cache {self.cache!r} depend on what came before: use cache='none'"
            )

    @property
    def rule(self) -> Pace:
        """The pace itself."""
        return load_pace(self.pace) if isinstance(self.pace, str) else self.pace

    @property
    def revision_rule(self) -> Revision | None:
        """The revision itself; None keeps every token."""
        return load_revision(self.revision) if isinstance(self.revision, str) else self.revision

    def describe(self) -> str:
        """Blocks, steps and pace in words, for the heading of a table or a trace."""
        parts = [f"blocks of {self.block}"] if self.block else []
        parts += [f"{self.steps} steps"] if self.steps else []
        pace = [self.pace] if isinstance(self.pace, str) and self.pace != "top" else []
        back = [f"revision {self.revision}"] if isinstance(self.revision, str) else []
        drafts = [f"drafts of {self.draft}"] if self.draft > 1 else []
        return ", ".join([*(parts or ["any order"]), *pace, *back, *drafts])
