"""How good a policy is on held-out problems: greedy free-running accuracy, or the likelihood of the answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler, Trajectory, Verdict
from unmask.runs.processes import ProcessGroup

ROWS_AT_ONCE = 64
"""Held-out problems that are decoded together by default."""

Verify = Callable[[Sequence[int], Tensor], Verdict]
"""A task's ``verify``: rows of the validation and their finished tokens, on the CPU."""


def score(record: Mapping[str, Any], prefix: str = "") -> float:
    """The higher the better: accuracy, or the likelihood of a token; −1 without validation."""
    if isinstance(nll := record.get(f"{prefix}nll"), float):
        return math.exp(-nll)
    return accuracy if isinstance(accuracy := record.get(f"{prefix}accuracy"), float) else -1.0


def best_step(metrics: Sequence[Mapping[str, Any]], starts: bool = True) -> int | None:
    """The step with the best validation, whose policy is kept; 0 is the start or a heuristic of the race, None without validation.

    ``starts``: the policy may be kept as it began, which a head is not. Metrics may be damaged: lines that are no record of a step
    are skipped.
    """
    records = [record for record in metrics if isinstance(record.get("step"), int)]
    scores = [(0, score(record, "start_")) for record in records[:1] if starts]
    scores += [(r["step"], score(r)) for r in records]
    scores[:0] = [(0, value) for r in records[:1] for name, value in r.items() if name.startswith("race_")]
    best = max((value for _, value in scores), default=-1.0)
    return None if best < 0 else next(step for step, value in scores if value == best)


def share_before_end(trajectory: Trajectory, denoiser: Denoiser) -> Float[Tensor, "B"]:
    """The share of a row's reveals that came before its first end token (or padding): 1 where there was none."""
    ids = [*denoiser.end_ids, *(() if denoiser.pad_id is None else (denoiser.pad_id,))]
    revealed = trajectory.tokens.gather(1, trajectory.order.clamp(min=0))
    ending = torch.isin(revealed, torch.tensor(ids, device=revealed.device)) & (trajectory.order >= 0)
    before = (ending.long().cumsum(1) == 0) & (trajectory.order >= 0)
    return before.sum(1) / trajectory.reveals.clamp(min=1)


def validate_free_running(
    denoiser: Denoiser,
    scheduler: Scheduler,
    canvas: Canvas,
    rows_at_once: int = ROWS_AT_ONCE,
    processes: ProcessGroup | None = None,
    verify: Verify | None = None,
    decoding: Decoding = Decoding(),  # noqa: B008
) -> dict[str, float]:
    """``accuracy``, the share of held-out problems solved by greedy free-running decoding; without ``verify``, the target alone is
    right. For denoisers with end tokens also ``before_end``, the mean of :func:`share_before_end`.

    ``verify`` gets rows as a batch of their own would be: without the columns in which longer rows of ``canvas`` reach beyond them.
    """
    right, before = 0, 0.0
    for rows, part in _batches(canvas, rows_at_once, processes):
        trajectory = unmask(denoiser, scheduler, part, decoding, record=False)
        tokens = trajectory.tokens if part.attention is None else trajectory.tokens[:, part.attention.any(0)]
        before += float(share_before_end(trajectory, denoiser).double().sum())
        right += int(
            (
                _equals_target(trajectory.tokens, part) if verify is None else verify(rows.tolist(), tokens.cpu()).exact
            ).sum()
        )
    found = {"accuracy": right} | ({"before_end": before} if denoiser.end_ids else {})
    return {name: (x if processes is None else processes.sum(x)) / len(canvas.tokens) for name, x in found.items()}


def greedy_nll(
    denoiser: Denoiser,
    scheduler: Scheduler,
    canvas: Canvas,
    rows_at_once: int = ROWS_AT_ONCE,
    processes: ProcessGroup | None = None,
) -> float:
    """−log p(x | σ) of held-out problems per revealed token, in nats, for the scheduler's greedy order σ."""
    logp, tokens = 0.0, 0
    for _, part in _batches(canvas, rows_at_once, processes):
        trajectory = unmask(denoiser, scheduler, part, forced=True, record=False)
        logp += float(trajectory.total_logp.double().sum())
        tokens += int(trajectory.reveals.sum())
    if processes is not None:
        logp, tokens = processes.sum(logp), processes.sum(tokens)
    return -logp / tokens


def _batches(
    canvas: Canvas, rows_at_once: int, processes: ProcessGroup | None
) -> Iterator[tuple[Int[Tensor, "b"], Canvas]]:
    """This process's part of the canvases in batches, with their row numbers."""
    mine = torch.arange(len(canvas.tokens)) if processes is None else processes.split(len(canvas.tokens))
    for rows in mine.split(rows_at_once) if len(mine) else ():  # fewer canvases than processes leave some without any
        part = canvas.rows(rows)
        yield rows, part if processes is None else part.to(processes.accelerator.device)


def _equals_target(tokens: Int[Tensor, "B L"], canvas: Canvas) -> Bool[Tensor, "B"]:
    """Is every candidate the target's token, and everything else unchanged?"""
    excluded = torch.zeros_like(tokens, dtype=torch.bool) if canvas.candidates is None else ~canvas.candidates
    return ((tokens == canvas.target) | (excluded & (canvas.tokens == tokens))).all(1)
