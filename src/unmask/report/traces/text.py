"""Traces of texts that were decoded already, for whoever holds their ``Trajectory``: generation, and benchmarks built on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Trajectory
from unmask.generation.text_canvas import TextCanvas
from unmask.report.traces.record import About, Trace, of


def of_texts(
    denoiser: Denoiser,
    labels: Callable[[int], str],
    canvas: TextCanvas,
    paths: Mapping[str, Trajectory],
    name: str,
    decoding: Decoding = Decoding(),  # noqa: B008
    problems: Sequence[str] | None = None,
) -> list[Trace]:
    """A trace per row of ``canvas``, with a path per order.

    ``labels`` gives the text of a token (``unmask.report.terminal.text.Pieces``); ``name`` is the denoiser's, ``problems`` are the rows'.
    Paths that were decoded with ``record=True`` show the best guess at every candidate, others the order alone. The calls of a
    path are those of all its rows. No truth is known: nothing is marked as wrong.
    """
    about = About("text", name, labels)
    whole = Canvas(canvas.tokens, canvas.tokens, canvas.region, canvas.attention)
    return [
        of(
            denoiser,
            paths,
            whole,
            about,
            decoding,
            row=row,
            problem=problems[row] if problems else f"text {row + 1}",
            truth=False,
        )
        for row in range(len(canvas.tokens))
    ]
