"""Traces: a decoding with everything that the viewer shows, recorded while it happens.

``record`` decodes canvases once per scheduler; what the other schedulers would have chosen, and the alternatives of every
candidate, are observed in the states that the loop visits anyway. ``make_trace`` makes a trace of existing trajectories.
``B`` canvases, ``b`` live ones, ``L`` positions, ``S`` states, ``A`` tokens kept per candidate, ``O`` schedulers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler, States, Trajectory
from unmask.report.traces.format import Candidates, Trace, TracedTrajectory, write
from unmask.report.traces.reading import read
from unmask.report.traces.recording import ALTERNATIVES, RecordingScheduler
from unmask.report.viewer import page as viewer
from unmask.tasks.kinds import Draw
from unmask.tasks.sudoku.grid import BOXES, Grid, grid

__all__ = [
    "About",
    "Candidates",
    "Trace",
    "TracedTrajectory",
    "about_boards",
    "html",
    "make_trace",
    "read",
    "record",
    "record_trajectory",
    "trajectory_html",
    "write",
]

LEAST_LOGP = -1e4  # JSON has no −inf


@dataclass(frozen=True)
class About:
    """What the tensors do not hold: names, the text of each token, the shape of a board (None: text), a picture of an answer."""

    task: str = "text"
    denoiser: str = "denoiser"
    labels: Callable[[int], str] = str
    grid: Grid | None = None
    decoding: str = ""
    draw: Draw | None = None


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
    alternatives: int = ALTERNATIVES,
) -> list[Trace]:
    """Decode every row of ``canvas`` with every scheduler; a trace per row, named by ``problems``.

    Without a target in the canvas nothing is marked as wrong.
    """
    if not schedulers:
        raise ValueError("there is nothing to record: name at least one scheduler")
    if alternatives < 1:
        raise ValueError(f"alternatives must be at least 1, the token that is revealed, got {alternatives}")
    traces = []
    for row in range(len(canvas.tokens)):
        # One row at a time, so that the denoiser's count of calls is that of this row.
        one = canvas.rows(slice(row, row + 1))
        trajectories = {
            name: record_trajectory(denoiser, name, schedulers, one, decoding, alternatives) for name in schedulers
        }
        problem = problems[row] if problems else f"problem {row + 1}"
        traces.append(make_trace(denoiser, trajectories, one, about, decoding, problem=problem))
    return traces


def record_trajectory(
    denoiser: Denoiser,
    name: str,
    schedulers: Mapping[str, Scheduler],
    canvas: Canvas,
    decoding: Decoding = Decoding(),  # noqa: B008
    alternatives: int = ALTERNATIVES,
) -> Trajectory:
    """The trajectory of one of ``schedulers``, with what the others would have revealed in its states, for :func:`make_trace`.

    Denoiser calls of the other schedulers are not charged to it.
    """
    scheduler = RecordingScheduler(name, schedulers, alternatives)
    trajectory = unmask(denoiser, scheduler, canvas, decoding, observe=scheduler.observe)
    return replace(trajectory, denoiser_calls=trajectory.denoiser_calls - scheduler.foreign_calls)


def make_trace(
    denoiser: Denoiser | NamedIds,
    trajectories: Mapping[str, Trajectory],
    canvas: Canvas,
    about: About,
    decoding: Decoding = Decoding(),  # noqa: B008
    *,
    row: int = 0,
    problem: str = "",
) -> Trace:
    """The trace of one row of trajectories that were decoded from ``canvas``, one per scheduler.

    Trajectories without states have an order and nothing more; those of ``record`` carry alternatives and the choices of the other
    schedulers. The denoiser calls are the trajectory's: of a batch, those of all its rows.
    """
    canvas, trajectories = canvas.to("cpu"), {name: to_cpu(one) for name, one in trajectories.items()}
    real = torch.ones_like(canvas.tokens[row]).bool() if canvas.attention is None else canvas.attention[row]
    prompt = tuple(canvas.tokens[row][real].tolist())
    target = None if canvas.target is None else tuple(canvas.target[row][real].tolist())
    traced = tuple(_trace_row(name, trajectories, row, real, target is not None) for name in trajectories)
    if about.draw is not None:
        traced = tuple(replace(one, drawing=about.draw(one.tokens, _reveal_times(one))) for one in traced)
    ids = {denoiser.mask_id, *denoiser.end_ids, *prompt, *(target or ())}
    for trajectory in traced:
        ids |= {*trajectory.tokens, *(token for _, _, token in trajectory.taken_back)}
        if trajectory.candidates is not None:
            ids |= {*np.unique(trajectory.candidates.token).tolist()}
    return Trace(
        task=about.task,
        problem=problem or f"problem {row + 1}",
        denoiser=about.denoiser,
        decoding=about.decoding or decoding.describe(),
        grid=about.grid,
        prompt=prompt,
        target=target,
        mask_id=denoiser.mask_id,
        end_ids=tuple(denoiser.end_ids),
        block=_blocks(denoiser, canvas, decoding, row, real),
        labels={token: about.labels(token) for token in sorted(ids)},
        trajectories=traced,
    )


def html(traces: Trace | Sequence[Trace], height: int = 760) -> str:
    """The viewer in a frame of its own, for a notebook: ``HTML(trace.html(traces))``."""
    page = viewer.page([traces] if isinstance(traces, Trace) else traces)
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe title="The order of thought" style="{style}" srcdoc="{escape(page)}"></iframe>'


def trajectory_html(trajectory: Trajectory, rows: int = 4) -> str:
    """The first rows of a trajectory in the viewer, for a notebook. Tokens are their numbers: it knows no tokenizer."""
    hidden, mask = trajectory.rank >= 0, int(trajectory.tokens.max()) + 1
    size = round(trajectory.tokens.shape[1] ** 0.5)
    is_board = size * size == trajectory.tokens.shape[1] and size in BOXES and mask <= size + 1
    about = About("decoding", "denoiser", str, grid(size) if is_board else None, "as decoded")
    canvas, model = Canvas(trajectory.tokens.masked_fill(hidden, mask)), NamedIds(mask)
    shown = range(min(rows, len(trajectory.tokens)))
    return html([make_trace(model, {"order": trajectory}, canvas, about, row=row) for row in shown])


@dataclass(frozen=True)
class NamedIds:
    """What :func:`make_trace` reads of a denoiser."""

    mask_id: int
    end_ids: tuple[int, ...] = ()


def _reveal_times(trajectory: TracedTrajectory) -> dict[int, float]:
    """0 for positions of the first step to 1 for those of the last."""
    last = max(1, trajectory.steps - 1)
    return {position: step / last for position, step in zip(trajectory.order, trajectory.step, strict=True)}


def to_cpu(trajectory: Trajectory) -> Trajectory:
    """The same record in the CPU's memory."""

    def move(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: move(item) for key, item in value.items()}
        return value.cpu() if isinstance(value, Tensor) else value

    parts = {name: getattr(trajectory, name) for name in ("states", "revisions")}
    parts = {name: None if part is None else replace(part, **move(vars(part))) for name, part in parts.items()}
    return replace(trajectory, **{**move(vars(trajectory)), **parts})


def _trace_row(
    name: str, trajectories: Mapping[str, Trajectory], row: int, real: Tensor, has_truth: bool
) -> TracedTrajectory:
    """One row of a trajectory without its padding: ``real`` is ``[L]``."""
    trajectory = trajectories[name]
    place = real.long().cumsum(0) - 1
    taken = trajectory.order[row] >= 0
    candidates, others, taken_back = None, {}, ()
    if (revisions := trajectory.revisions) is not None:
        events = (revisions.step, place[revisions.position], revisions.before)
        taken_back = tuple(zip(*(x[revisions.row == row].tolist() for x in events), strict=True))
    if trajectory.states is not None:
        # The last look of a revision, which takes nothing back, is no step.
        mine = (trajectory.states.row == row) & (trajectory.states.step <= trajectory.step[row].max())
        candidates = _candidates(trajectory.states, mine, real, has_truth)
        choice = trajectory.states.observed.get("choice")
        if choice is not None:
            columns = place[choice[mine]].T.tolist()
            others = {other: tuple(columns[o]) for o, other in enumerate(trajectories) if other != name}
    return TracedTrajectory(
        scheduler=name,
        tokens=tuple(trajectory.tokens[row][real].tolist()),
        order=tuple(place[trajectory.order[row][taken]].tolist()),
        step=tuple(trajectory.step[row][taken].tolist()),
        logp=tuple(trajectory.logp[row][taken].clamp(min=LEAST_LOGP).tolist()),
        total_logp=None if taken_back else max(LEAST_LOGP, trajectory.total_logp[row].item()),
        denoiser_calls=trajectory.denoiser_calls,
        candidates=candidates,
        others=others,
        taken_back=taken_back,
    )


def _candidates(states: States, mine: Tensor, real: Tensor, has_truth: bool) -> Candidates:
    """What could have been revealed in each state of a row: the observed alternatives, or else the best token alone."""
    eligible = states.eligible[mine][:, real]
    if "token" in states.observed:
        token, logp = (states.observed[key][mine][:, real][eligible] for key in ("token", "logp"))
    else:
        token, logp = (x[mine][:, real][eligible][:, None] for x in (states.best, states.confidence))
    truth = None
    if has_truth and states.target_logp is not None:
        truth = states.target_logp[mine][:, real][eligible].exp().numpy()
    return Candidates(
        eligible=eligible.numpy(),
        score=states.scores[mine][:, real][eligible].numpy(),
        token=token.numpy(),
        probability=logp.exp().numpy(),
        truth=truth,
    )


def _blocks(
    denoiser: Denoiser | NamedIds, canvas: Canvas, decoding: Decoding, row: int, real: Tensor
) -> tuple[int, ...]:
    """The block of each position, as the loop counts them: −1 outside the region."""
    hidden = (canvas.tokens[row] == denoiser.mask_id) & real
    if canvas.region is not None:
        region = canvas.region[row]
    else:
        region = (hidden.long().cumsum(0) > 0) & (hidden.long().flip(0).cumsum(0).flip(0) > 0)
    index = region.long().cumsum(0) - 1
    return tuple(torch.where(region, index // (decoding.block or len(index)), -1)[real].tolist())


# A notebook shows a trace in its viewer. Set here, since the viewer imports the format of traces.
Trace._repr_html_ = html  # pyright: ignore[reportAttributeAccessIssue]
