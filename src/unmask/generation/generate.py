"""``generate()`` and ``infill()``: text in, text out, decoded by the one loop in any order.

``B`` prompts become one batch of canvases; L–B–T of the papers are ``length``, ``block`` and ``steps``. What a row becomes does not
depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from unmask.decoding.loop import Step, unmask
from unmask.decoding.paces import load_pace
from unmask.decoding.protocols import Denoiser, Pace, Path, Scheduler
from unmask.decoding.rows import Regime
from unmask.generation.caching import cached
from unmask.generation.guidance import ENDS, Around, Ending, Guided, ends_last, unwrapped
from unmask.generation.text_canvas import (
    Prompt,
    Template,
    TextCanvas,
    Tokenizer,
    completions,
    gap_canvas,
    prompt_canvas,
    whole_texts,
)
from unmask.runs.names import did_you_mean
from unmask.schedulers.loading import load_scheduler

FLOOR = 0.4
"""g of damped end tokens."""


@dataclass(frozen=True)
class Generation:
    """``texts``: a completion per prompt, or a whole text per template. ``path`` says in which order its tokens came."""

    texts: list[str]
    path: Path
    canvas: TextCanvas

    def order(self, row: int) -> list[int]:
        """The indices in the row's region, from the first revealed to the last."""
        return [place - self.canvas.start for place in self.path.order[row].tolist() if place >= 0]


def generate(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    *,
    length: int = 128,
    block: int | None = None,
    steps: int | None = None,
    scheduler: str | Scheduler = "confidence",
    pace: str | Pace = "top",
    order_temperature: float = 0.0,
    token_temperature: float = 0.0,
    top_p: float = 1.0,
    ends: str = "allow",
    end_floor: float = FLOOR,
    min_length: int = 0,
    stop_at_end: bool = True,
    guidance: float = 0.0,
    cache: str = "none",
    refresh: int | None = None,
    chat: bool = False,
    seeds: Sequence[int] | None = None,
    on_step: Callable[[Step], None] | None = None,
    record: bool = False,
) -> Generation:
    """Continue each prompt by at most ``length`` tokens, up to its first end token.

    ``block`` positions at a time from the left (None: all at once), in ``steps`` steps for the whole length (None: a token a step).
    ``ends``: ``allow`` end tokens as they come, ``damp`` them by g + (1 − g)·t/T with g = ``end_floor``, or ``suppress`` them until
    nothing else is left; none in the first ``min_length`` positions. ``guidance`` > 0 is the scale of classifier-free
    guidance and doubles the forwards. ``cache``: ``prefix`` or ``dual`` computes only from the block on, or the block alone, and
    all where a block begins and every ``refresh`` steps (:mod:`unmask.generation.caching`). ``chat`` uses the tokenizer's chat template.
    ``seeds`` has a number per prompt for whatever is drawn. ``on_step`` is told of every step; ``record`` keeps all states.
    """
    if ends not in ENDS:
        raise ValueError(f"ends must be one of {', '.join(ENDS)}, got {ends!r}{did_you_mean(ends, ENDS)}")
    canvas = prompt_canvas(denoiser, tokenizer, prompts, length, chat)
    regime = Regime(block, steps, _pace(pace), order_temperature, token_temperature, top_p, stop_at_end)
    regime = ends_last(regime) if ends == "suppress" else regime
    floor = end_floor if ends == "damp" else None
    inner = _guided(cached(denoiser, cache, refresh), guidance, canvas)
    around = Ending(inner, canvas.start, length, floor=floor, least=min_length)
    path = _decode(denoiser, around, scheduler, canvas, regime, seeds, on_step, record)
    return Generation(completions(denoiser, tokenizer, canvas, path.tokens), path, canvas)


def infill(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    templates: Sequence[Template],
    *,
    block: int | None = None,
    steps: int | None = None,
    scheduler: str | Scheduler = "confidence",
    pace: str | Pace = "top",
    order_temperature: float = 0.0,
    token_temperature: float = 0.0,
    top_p: float = 1.0,
    guidance: float = 0.0,
    cache: str = "none",
    refresh: int | None = None,
    seeds: Sequence[int] | None = None,
    on_step: Callable[[Step], None] | None = None,
    record: bool = False,
) -> Generation:
    """Fill the gaps of texts: ``"The <mask> sat on <mask:3>."``, or ``["The", 1, " sat on", 3, "."]``.

    A gap has as many tokens as it says: no end token is put into it. Blocks count from the first gap on, given text included. The
    prompt of the guidance is what stands before the first gap. The other options are those of :func:`generate`.
    """
    canvas = gap_canvas(denoiser, tokenizer, templates)
    regime = Regime(block, steps, _pace(pace), order_temperature, token_temperature, top_p, stop_at_end=False)
    around = Ending(_guided(cached(denoiser, cache, refresh), guidance, canvas), forbid=True)
    path = _decode(denoiser, around, scheduler, canvas, regime, seeds, on_step, record)
    return Generation(whole_texts(denoiser, tokenizer, canvas, path.tokens), path, canvas)


def _pace(pace: str | Pace) -> Pace:
    return load_pace(pace) if isinstance(pace, str) else pace


def _guided(denoiser: Denoiser, scale: float, canvas: TextCanvas) -> Denoiser:
    return denoiser if scale == 0 else Guided(denoiser, scale, canvas.start)


def _decode(
    denoiser: Denoiser,
    around: Around,
    scheduler: str | Scheduler,
    canvas: TextCanvas,
    regime: Regime,
    seeds: Sequence[int] | None,
    on_step: Callable[[Step], None] | None,
    record: bool,
) -> Path:
    if seeds is not None and len(seeds) != len(canvas.tokens):
        raise ValueError(f"expected a seed for each of {len(canvas.tokens)} rows, got {len(seeds)}")
    order = load_scheduler(scheduler, denoiser) if isinstance(scheduler, str) else scheduler
    return unmask(
        around,
        unwrapped(order, around),
        canvas.tokens,
        regime,
        attention=canvas.attention,
        region=canvas.region,
        seeds=None if seeds is None else torch.tensor(seeds, dtype=torch.long, device=canvas.tokens.device),
        record=record,
        on_step=on_step,
    )
