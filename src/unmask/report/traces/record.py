"""Traces: a decoding with everything a viewer shows, recorded while it happens.

``record`` decodes canvases once per scheduler; what the other schedulers would have chosen, and the alternatives of every
candidate, are observed in the states that the loop visits anyway. ``of`` makes a trace of paths that exist already.
``B`` canvases, ``b`` live ones, ``L`` positions, ``S`` states, ``A`` tokens kept per candidate, ``O`` schedulers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler, Trajectory
from unmask.report.terminal import tables as terminal
from unmask.report.traces.format import Candidates, Trace, TracedPath, write
from unmask.report.traces.reading import read
from unmask.report.traces.watch import ALTERNATIVES, Watched
from unmask.report.viewer import page as viewer
from unmask.tasks.sudoku.grid import BOXES, Grid, grid

__all__ = [
    "About",
    "Candidates",
    "Trace",
    "TracedPath",
    "about_boards",
    "html",
    "of",
    "path_html",
    "read",
    "record",
    "watched_path",
    "write",
]

LEAST_LOGP = -1e4  # JSON has no −inf


@dataclass(frozen=True)
class About:
    """What the tensors do not say: names, the text of each token, and the shape of a board (None: text)."""

    task: str = "text"
    denoiser: str = "denoiser"
    labels: Callable[[int], str] = str
    grid: Grid | None = None
    decoding: str = ""


def about_boards(size: int, denoiser: str, decoding: str = "") -> About:
    """For Sudoku: a token is its digit, a blank has no text."""
    return About("sudoku", denoiser, lambda token: str(token) if token else "", grid(size), decoding)


def record(
    denoiser: Denoiser,
    schedulers: Mapping[str, Scheduler],
    canvas: Canvas,
    about: About,
    decoding: Decoding = Decoding(),  # noqa: B008
    *,
    problems: Sequence[str] | None = None,
    seeds: Int[Tensor, "B"] | None = None,
    alternatives: int = ALTERNATIVES,
    truth: bool = True,
) -> list[Trace]:
    """Decode every row of ``canvas`` with every scheduler; a trace per row.

    ``problems`` name the rows. With ``truth=False`` the canvas's target is not the truth, and the traces have none.
    """
    if not schedulers:
        raise ValueError("there is nothing to record: name at least one scheduler")
    if alternatives < 1:
        raise ValueError(f"alternatives must be at least 1, the token that is revealed, got {alternatives}")
    traces = []
    for row in range(len(canvas.tokens)):
        # One row at a time: then the denoiser's own count is this row's, whatever the scheduler asks of it.
        one = canvas.rows(slice(row, row + 1))
        seed = None if seeds is None else seeds[row : row + 1]
        paths = {
            name: watched_path(denoiser, name, schedulers, one, decoding, seed, alternatives, truth)
            for name in schedulers
        }
        problem = problems[row] if problems else f"problem {row + 1}"
        traces.append(of(denoiser, paths, one, about, decoding, problem=problem, truth=truth))
    return traces


def of(
    denoiser: Denoiser,
    paths: Mapping[str, Trajectory],
    canvas: Canvas,
    about: About,
    decoding: Decoding = Decoding(),  # noqa: B008
    *,
    row: int = 0,
    problem: str = "",
    truth: bool = True,
) -> Trace:
    """The trace of one row of paths that were decoded from ``canvas``, a path per scheduler.

    Paths without states have an order and nothing more; those of ``record`` carry alternatives and the other schedulers. The
    denoiser calls are the path's: of a batch, those of all its rows.
    """
    canvas, paths = canvas.to("cpu"), {name: _on_cpu(path) for name, path in paths.items()}
    real = torch.ones_like(canvas.tokens[row]).bool() if canvas.attention is None else canvas.attention[row]
    prompt, target = canvas.tokens[row][real], canvas.truth[row][real]
    traced = tuple(_traced(name, path, paths, row, real, truth) for name, path in paths.items())
    ids = {denoiser.mask_id, *denoiser.end_ids, *prompt.tolist(), *(target.tolist() if truth else [])}
    for path in traced:
        ids |= {*path.tokens, *(np.unique(path.candidates.token).tolist() if path.candidates else [])}
    return Trace(
        task=about.task,
        problem=problem or f"problem {row + 1}",
        denoiser=about.denoiser,
        decoding=about.decoding or decoding_name(decoding),
        grid=about.grid,
        prompt=tuple(prompt.tolist()),
        target=tuple(target.tolist()) if truth else None,
        mask_id=denoiser.mask_id,
        end_ids=tuple(denoiser.end_ids),
        block=_blocks(denoiser, canvas, decoding, row, real),
        labels={token: about.labels(token) for token in sorted(ids)},
        paths=traced,
    )


def decoding_name(decoding: Decoding, pace: str = "top") -> str:
    """In words, as far as the decoding's numbers say, and the name of its pace."""
    parts = [f"blocks of {decoding.block}"] if decoding.block else []
    parts += [f"{decoding.steps} steps"] if decoding.steps else []
    return ", ".join([*(parts or ["any order"]), *([pace] if pace != "top" else [])])


def html(traces: Trace | Sequence[Trace], height: int = 760) -> str:
    """The viewer in a frame of its own, for a notebook: ``HTML(trace.html(traces))``."""
    page = viewer.page([traces] if isinstance(traces, Trace) else traces)
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe title="The order of thought" style="{style}" srcdoc="{escape(page)}"></iframe>'


def path_html(path: Trajectory, rows: int = 4) -> str:
    """The first rows of a path, coloured from the first reveal (blue) to the last (red): what a notebook shows of it."""
    drawn = [
        _row_html(path.tokens[row].tolist(), path.rank[row].tolist()) for row in range(min(rows, len(path.tokens)))
    ]
    many = f"{len(path.tokens)} canvases, " if len(path.tokens) != 1 else ""
    note = f"{many}{path.steps} steps, {path.denoiser_calls} denoiser calls; blue first, red last"
    body = "".join(f'<div style="margin:0 1.5em 1em 0">{part}</div>' for part in drawn)
    return f'<div style="display:flex;flex-wrap:wrap">{body}</div><div>{escape(note)}</div>'


def _row_html(tokens: list[int], rank: list[int]) -> str:
    last = max(1, *rank)

    def cell(i: int, tag: str, style: str) -> str:
        colour = f"background:{terminal.heat(rank[i] / last)};color:#10141a;" if rank[i] >= 0 else "font-weight:bold;"
        title = f' title="reveal {rank[i] + 1}"' if rank[i] >= 0 else ""
        return f'<{tag} style="{colour}{style}"{title}>{tokens[i]}</{tag}>'

    size = round(len(tokens) ** 0.5)
    if size * size != len(tokens) or size not in BOXES or max(tokens) > size:
        return " ".join(cell(i, "span", "padding:0 .3em;border-radius:3px") for i in range(len(tokens)))
    shape, style = grid(size), "padding:0;width:1.7em;height:1.7em;text-align:center;border:1px solid #8888;"
    lines = []
    for row in range(size):
        under = "border-bottom:2px solid #888;" if row % shape.box_rows == shape.box_rows - 1 else ""
        edges = [
            "border-right:2px solid #888;" if c % shape.box_cols == shape.box_cols - 1 else "" for c in range(size)
        ]
        cells = [cell(row * size + c, "td", style + under + edge) for c, edge in enumerate(edges)]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table style="border-collapse:collapse;border:2px solid #888">{"".join(lines)}</table>'


def watched_path(
    denoiser: Denoiser,
    name: str,
    schedulers: Mapping[str, Scheduler],
    canvas: Canvas,
    decoding: Decoding = Decoding(),  # noqa: B008
    seeds: Int[Tensor, "B"] | None = None,
    alternatives: int = ALTERNATIVES,
    truth: bool = True,
) -> Trajectory:
    """The path of one of ``schedulers``, with what the others would have done in its states: what :func:`of` makes a trace of.

    Its calls are its own: what the other schedulers asked of the denoiser is not charged to it.
    """
    watched = Watched(name, schedulers, alternatives)
    shown = canvas.seeded(seeds) if truth else canvas.seeded(seeds).without_target()
    path = unmask(denoiser, watched, shown, decoding, observe=watched.observe)
    return replace(path, denoiser_calls=path.denoiser_calls - watched.foreign_calls)


def _on_cpu(path: Trajectory) -> Trajectory:
    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(item) for key, item in value.items()}
        return value.cpu() if isinstance(value, Tensor) else value

    states = None if path.states is None else replace(path.states, **moved(vars(path.states)))
    return replace(path, **{**moved(vars(path)), "states": states})


def _traced(
    name: str, path: Trajectory, paths: Mapping[str, Trajectory], row: int, real: Tensor, truth: bool
) -> TracedPath:
    place = real.long().cumsum(0) - 1
    taken = path.order[row] >= 0
    found, others = None, {}
    if path.states is not None:
        states = path.states
        mine = states.row == row
        eligible = states.eligible[mine][:, real]
        seen = states.observed
        if "choice" in seen:
            choice = place[seen["choice"][mine]].T.tolist()
            others = {other: tuple(choice[o]) for o, other in enumerate(paths) if other != name}
            token, logp = (seen[key][mine][:, real][eligible] for key in ("token", "logp"))
        else:
            token, logp = (x[mine][:, real][eligible][:, None] for x in (states.best, states.confidence))
        known = truth and states.target_logp is not None
        found = Candidates(
            eligible=eligible.numpy(),
            score=states.scores[mine][:, real][eligible].numpy(),
            token=token.numpy(),
            probability=logp.exp().numpy(),
            truth=states.target_logp[mine][:, real][eligible].exp().numpy() if known else None,  # pyright: ignore
        )
    return TracedPath(
        scheduler=name,
        tokens=tuple(path.tokens[row][real].tolist()),
        order=tuple(place[path.order[row][taken]].tolist()),
        step=tuple(path.step[row][taken].tolist()),
        logp=tuple(path.logp[row][taken].clamp(min=LEAST_LOGP).tolist()),
        total_logp=max(LEAST_LOGP, path.total_logp[row].item()),
        denoiser_calls=path.denoiser_calls,
        candidates=found,
        others=others,
    )


def _blocks(denoiser: Denoiser, canvas: Canvas, decoding: Decoding, row: int, real: Tensor) -> tuple[int, ...]:
    """The block of each position, as the loop counts them: −1 outside the region."""
    hidden = (canvas.tokens[row] == denoiser.mask_id) & real
    if canvas.region is not None:
        region = canvas.region[row]
    else:
        region = (hidden.long().cumsum(0) > 0) & (hidden.long().flip(0).cumsum(0).flip(0) > 0)
    index = region.long().cumsum(0) - 1
    return tuple(torch.where(region, index // (decoding.block or len(index)), -1)[real].tolist())


# A notebook shows a trace in its viewer. Here, because the viewer reads traces and cannot be known to them.
Trace._repr_html_ = html  # pyright: ignore[reportAttributeAccessIssue]
