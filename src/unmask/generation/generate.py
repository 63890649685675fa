"""``generate()`` and ``infill()``: text in, text out, decoded by the one loop in any order.

``B`` prompts become one batch of canvases; L–B–T of the papers are ``length``, ``block`` and ``steps``. What a row becomes does not
depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from unmask.decoding.loop import Step, run_loop
from unmask.decoding.options import Decoding
from unmask.decoding.prepare import prepare
from unmask.decoding.protocols import RENDERERS, Denoiser, Observe, Scheduler, Trajectory
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
from unmask.schedulers.loading import load_scheduler


@dataclass(frozen=True)
class Generation:
    """``texts``: a completion per prompt, or a whole text per template. ``trajectory`` has the order of its tokens."""

    texts: list[str]
    trajectory: Trajectory
    canvas: TextCanvas
    tokenizer: Tokenizer = field(repr=False, compare=False)

    def _repr_html_(self) -> str:
        return RENDERERS["Generation"](self)

    def order(self, row: int) -> list[int]:
        """The indices in the row's region, from the first revealed to the last."""
        return [place - self.canvas.start for place in self.trajectory.order[row].tolist() if place >= 0]


@dataclass(frozen=True)
class Watch:
    """What happens while decoding: ``on_step`` is called after every step, ``record`` keeps states, ``observe`` adds to them."""

    on_step: Callable[[Step], None] | None = None
    record: bool = False
    observe: Observe | None = None


def generate(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    scheduler: str | Scheduler = "confidence",
    decoding: Decoding = Decoding(),  # noqa: B008
    *,
    length: int = 128,
    seeds: Sequence[int] | None = None,
    watch: Watch = Watch(),  # noqa: B008
) -> Generation:
    """Continue each prompt by at most ``length`` tokens, up to its first end token.

    A prompt is a text, or a conversation that the tokenizer's chat template formats: ``[{"role": "user", "content": "…"}]``.
    ``seeds`` has a number per prompt, for everything that is drawn.
    """
    canvas = prompt_canvas(denoiser, tokenizer, prompts, length)
    if decoding.min_length > length:
        raise ValueError(f"min_length must be in 0 .. {length}, the length, got {decoding.min_length}")
    trajectory = _decode(denoiser, scheduler, canvas, decoding, seeds, watch)
    return Generation(completions(denoiser, tokenizer, canvas, trajectory.tokens), trajectory, canvas, tokenizer)


def infill(
    denoiser: Denoiser,
    tokenizer: Tokenizer,
    templates: Sequence[Template],
    scheduler: str | Scheduler = "confidence",
    decoding: Decoding = Decoding(),  # noqa: B008
    *,
    seeds: Sequence[int] | None = None,
    watch: Watch = Watch(),  # noqa: B008
) -> Generation:
    """Fill the gaps of texts: ``"The <mask> sat on <mask:3>."``, or ``["The", 1, " sat on", 3, "."]``.

    A gap keeps its length: no end token is put into it, and the end-token options of ``decoding`` are ignored. Blocks count from
    the first gap on, given text included. The prompt of the guidance is the text before the first gap.
    """
    canvas = gap_canvas(denoiser, tokenizer, templates)
    decoding = replace(decoding, ends="forbid", min_length=0, stop_at_end=False)
    trajectory = _decode(denoiser, scheduler, canvas, decoding, seeds, watch)
    return Generation(whole_texts(denoiser, tokenizer, canvas, trajectory.tokens), trajectory, canvas, tokenizer)


def _decode(
    denoiser: Denoiser,
    scheduler: str | Scheduler,
    canvas: TextCanvas,
    decoding: Decoding,
    seeds: Sequence[int] | None,
    watch: Watch,
) -> Trajectory:
    if seeds is not None and len(seeds) != len(canvas.tokens):
        raise ValueError(f"expected a seed for each of {len(canvas.tokens)} rows, got {len(seeds)}")
    chosen = load_scheduler(scheduler, denoiser) if isinstance(scheduler, str) else scheduler
    rows = canvas.canvas(seeds)
    wrapped = prepare(denoiser, chosen, rows, decoding, forbid_padding=True)
    return run_loop(*wrapped[:2], rows, wrapped[2], record=watch.record, observe=watch.observe, on_step=watch.on_step)
