"""From the options of a decoding to the denoiser, the scheduler and the pace that the loop runs."""

from __future__ import annotations

from functools import partial

from jaxtyping import Bool
from torch import Tensor

from unmask.decoding.caching import with_cache
from unmask.decoding.guidance import (
    DenoiserWrapper,
    EndingDenoiser,
    GuidedDenoiser,
    discount_ends,
    postpone_ends,
    score_inner_states,
    wrap_scheduler,
)
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler


def prepare(
    denoiser: Denoiser, scheduler: Scheduler, canvas: Canvas, decoding: Decoding, *, forbid_padding: bool = False
) -> tuple[Denoiser, Scheduler, Decoding]:
    """The denoiser with the cache, guidance and end policy of ``decoding`` around it, and a scheduler and a pace to match.

    ``forbid_padding``: padding that does not end texts is never revealed.
    """
    scheduler = _compile(scheduler) if decoding.compile else scheduler
    altered = decoding.ends != "allow" or decoding.min_length > 0 or forbid_padding
    if decoding.cache == "none" and decoding.guidance == 0 and not altered:
        return denoiser, scheduler, decoding
    inner = with_cache(denoiser, decoding.cache, decoding.refresh)
    if decoding.guidance > 0:
        inner = GuidedDenoiser(inner, decoding.guidance, _start(canvas, inner.mask_id))
    if altered:
        floor = decoding.end_floor if decoding.ends == "damp" else None
        by_position = floor is not None or decoding.min_length > 0
        start = _start(canvas, inner.mask_id) if by_position else 0
        length = _length(canvas, inner.mask_id) if by_position else 0
        forbidden = {"forbid": inner.end_ids, "logits_eos_inf": inner.end_ids[:1]}.get(decoding.ends, ())
        inner = EndingDenoiser(inner, start, length, floor=floor, least=decoding.min_length, forbidden=forbidden)
    if decoding.ends == "suppress":
        decoding = postpone_ends(decoding)
    if decoding.ends == "confidence_eos_eot_inf":
        scheduler, decoding = discount_ends(scheduler, decoding)
    assert isinstance(inner, DenoiserWrapper)
    return inner, score_inner_states(scheduler, inner), decoding


def _compile(scheduler: Scheduler) -> Scheduler:
    """One that runs as a compiled graph, where it says that it can."""
    if not getattr(scheduler, "compiles", False):
        return scheduler
    return wrap_scheduler(scheduler, partial(scheduler, compiled=True))  # pyright: ignore[reportCallIssue]


def _start(canvas: Canvas, mask_id: int) -> int:
    """The column in which the region begins, the same in every row."""
    first = _region(canvas, mask_id).int().argmax(1)
    if len(first) and bool((first != first[0]).any()):
        raise ValueError(
            "guidance, damped end tokens and min_length need regions that begin in the same column: pad prompts on the left"
        )
    return int(first[0]) if len(first) else 0


def _length(canvas: Canvas, mask_id: int) -> int:
    """The length of the region, the same in every row."""
    count = _region(canvas, mask_id).sum(1)
    if len(count) and bool((count != count[0]).any()):
        raise ValueError("damped end tokens and min_length need regions of one length: decode other lengths apart")
    return int(count[0]) if len(count) else 0


def _region(canvas: Canvas, mask_id: int) -> Bool[Tensor, "B L"]:
    return canvas.tokens == mask_id if canvas.region is None else canvas.region
