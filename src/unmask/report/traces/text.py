"""Traces of texts that are decoded already, from their ``Trajectory``: generation, and benchmarks built on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Trajectory
from unmask.generation.generate import Generation
from unmask.generation.text_canvas import TextCanvas
from unmask.report.terminal.text import Pieces
from unmask.report.traces.record import About, NamedIds, Trace, html, make_trace


def trace_texts(
    denoiser: Denoiser | NamedIds,
    labels: Callable[[int], str],
    canvas: TextCanvas,
    trajectories: Mapping[str, Trajectory],
    name: str,
    decoding: Decoding = Decoding(),  # noqa: B008
    problems: Sequence[str] | None = None,
) -> list[Trace]:
    """A trace per row of ``canvas``, with a trajectory per scheduler.

    ``labels`` gives the text of a token (``unmask.report.terminal.text.Pieces``); ``name`` is the denoiser's, ``problems`` are
    the rows'. Trajectories decoded with ``record=True`` show the best guess at every candidate, others the order alone. The calls
    of a trajectory are those of all its rows. No truth is known: nothing is marked as wrong.
    """
    about = About("text", name, labels)
    whole = Canvas(canvas.tokens, region=canvas.region, attention=canvas.attention)
    names = problems or [f"text {row + 1}" for row in range(len(canvas.tokens))]
    return [
        make_trace(denoiser, trajectories, whole, about, decoding, row=row, problem=problem)
        for row, problem in enumerate(names)
    ]


def generation_html(done: Generation, rows: int = 4) -> str:
    """The first texts of a generation in the viewer, for a notebook."""
    ids = NamedIds(int(done.canvas.tokens[0, done.canvas.start]))
    trajectories = {"order": done.trajectory}
    return html(trace_texts(ids, Pieces(done.tokenizer), done.canvas, trajectories, "denoiser", Decoding())[:rows])
