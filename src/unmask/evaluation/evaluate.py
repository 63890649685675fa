"""Schedulers × decodings on a task: accuracy with intervals, exact path likelihood, paired comparison, denoiser calls.

Every scheduler sees the same problems in the same order with the same seeds, so all comparisons are paired.

The exact negative log-likelihood needs no second decoding where the first one was right: a row that revealed the target's tokens
took the path that teacher forcing would have taken. Only the rows that failed are decoded again with the target given.
For an order drawn at random this is one draw of −log p(x | σ), an upper bound of −log P(x) in expectation (Thm. elbo).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import RENDERERS, Denoiser, Scheduler, Task
from unmask.evaluation.statistics import Interval, compare, mean_interval, paired_bootstrap, wilson
from unmask.runs.atomic import atomic_write
from unmask.runs.processes import ProcessGroup


@dataclass(frozen=True)
class Stratum:
    n: int
    exact: float
    exact_low: float
    exact_high: float


@dataclass(frozen=True)
class Versus:
    """The row against the baseline on the same problems; p is McNemar's, the limits are a paired bootstrap's."""

    baseline: str
    won: int
    lost: int
    difference: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Row:
    """One scheduler in one decoding. ``denoiser_calls`` are canvases forwarded per problem, ``seconds`` the decoding of all."""

    scheduler: str
    decoding: str
    n: int
    exact: float
    exact_low: float
    exact_high: float
    cell: float
    cell_low: float
    cell_high: float
    nll: float
    nll_low: float
    nll_high: float
    denoiser_calls: float
    steps: float
    seconds: float
    versus: Versus | None
    strata: dict[str, Stratum]
    solved: str = field(repr=False)


@dataclass(frozen=True)
class Report:
    """``solved`` of each row is a string of 0 and 1, a character per problem: later runs can be compared in pairs."""

    task: str
    source: str
    denoiser: str
    n: int
    seed: int
    rows: list[Row]

    def row(self, scheduler: str, decoding: str | None = None) -> Row:
        for row in self.rows:
            if row.scheduler == scheduler and decoding in (None, row.decoding):
                return row
        raise ValueError(f"no row for {scheduler!r}: the report has {', '.join(r.scheduler for r in self.rows)}")

    def _repr_html_(self) -> str:
        return RENDERERS["Report"](self)

    def write(self, path: str | Path, **extra: Any) -> None:
        """Everything as JSON. What was not measured (``nll`` on request) or has no limit (the interval of one) is null."""
        text = json.dumps(_finite({**asdict(self), **extra}), indent=1, allow_nan=False)
        atomic_write(path, (text + "\n").encode())


@dataclass(frozen=True)
class _Measured:
    """What one scheduler did on all problems, ``[n]`` each."""

    exact: NDArray[np.bool_]
    share: NDArray[np.float64]
    nll: NDArray[np.float64]
    steps: NDArray[np.int64]
    calls: int
    seconds: float


def evaluate(
    task: Task,
    denoiser: Denoiser,
    schedulers: Mapping[str, Scheduler],
    decodings: Mapping[str, Decoding] | None = None,
    *,
    denoiser_name: str = "denoiser",
    baseline: str | None = None,
    limit: int | None = None,
    batch: int = 64,
    seed: int = 0,
    likelihood: bool = True,
    progress: Callable[[str, int], None] | None = None,
    processes: ProcessGroup | None = None,
) -> Report:
    """Decode the first ``limit`` problems with every scheduler in every decoding, and compare each with the baseline.

    Without a ``baseline`` it is confidence, where that is among the schedulers. ``batch`` changes speed and memory only. Of the
    processes in ``processes`` each calls this with the same arguments, decodes its part of the problems, and gets the whole report.
    """
    decodings = decodings or {"sequential": Decoding()}
    n = len(task) if limit is None else min(limit, len(task))
    if n < 1:
        raise ValueError(f"there is nothing to evaluate: the task has {len(task)} problems and the limit is {limit}")
    if not schedulers:
        raise ValueError("there is nothing to evaluate: name at least one scheduler")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    if not 0 <= seed < 2**31:
        raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {seed}")
    if baseline is not None and baseline not in schedulers:
        raise ValueError(
            f"the baseline {baseline!r} is not among the schedulers: expected one of {', '.join(schedulers)}"
        )
    baseline = baseline or "confidence"
    strata = [task.stratum(row) for row in range(n)]
    rows = []
    for decoding_name, decoding in decodings.items():
        measured = {
            name: _measure(task, denoiser, scheduler, decoding, n, batch, seed, likelihood, name, progress, processes)
            for name, scheduler in schedulers.items()
        }
        reference = measured.get(baseline)
        for name, result in measured.items():
            versus = None if reference is None or name == baseline else _versus(baseline, result, reference)
            rows.append(_row(name, decoding_name, result, versus, strata))
    source = str(getattr(task, "source", task.name))
    return Report(task=task.name, source=source, denoiser=denoiser_name, n=n, seed=seed, rows=rows)


def _measure(
    task: Task,
    denoiser: Denoiser,
    scheduler: Scheduler,
    decoding: Decoding,
    n: int,
    batch: int,
    seed: int,
    likelihood: bool,
    name: str,
    progress: Callable[[str, int], None] | None,
    processes: ProcessGroup | None,
) -> _Measured:
    exact, share = np.zeros(n, bool), np.zeros(n)
    nll, steps = np.zeros(n), np.zeros(n, np.int64)
    calls, seconds = 0, 0.0
    # A row that stops at its end token leaves the rest unpriced, which teacher forcing does not.
    stops = decoding.stop_at_end and len(denoiser.end_ids) > 0
    device = getattr(denoiser, "device", torch.device("cpu"))
    mine = range(n) if processes is None else range(n)[_part(processes.split(n))]
    for start in range(mine.start, mine.stop, batch):
        rows = range(start, min(start + batch, mine.stop))
        seeds = torch.tensor([seed * 2**32 + row for row in rows], device=device)
        canvas = task.canvas(rows).to(device)
        path = unmask(denoiser, scheduler, canvas.seeded(seeds), decoding, record=False)
        verdict = task.verify(rows, path.tokens.cpu())
        priced = (path.tokens == canvas.target).all(1) & (not stops)
        values = -path.total_logp
        if likelihood and not bool(priced.all()):
            failed = canvas.rows(~priced)
            forced = unmask(denoiser, scheduler, failed.seeded(seeds[~priced]), decoding, forced=True, record=False)
            values[~priced] = -forced.total_logp
        exact[rows.start : rows.stop] = verdict.exact.numpy()
        share[rows.start : rows.stop] = verdict.share.numpy()
        steps[rows.start : rows.stop] = path.step.amax(1).cpu().numpy() + 1 if path.step.shape[1] else 0
        if likelihood:
            nll[rows.start : rows.stop] = values.double().cpu().numpy()
        calls, seconds = calls + path.denoiser_calls, seconds + path.seconds
        if progress is not None:
            progress(name, len(rows))
    if processes is not None:  # where a process has decoded nothing it holds zeros
        whole = processes.all_reduce(torch.from_numpy(np.stack([exact, share, nll, steps]).astype(np.float64)))
        exact, share, nll, steps = (np.asarray(row) for row in whole.numpy())
        exact, steps = exact > 0, steps.astype(np.int64)
        calls, seconds = round(processes.sum(calls)), processes.sum(seconds)
    return _Measured(exact, share, nll if likelihood else np.full(n, np.nan), steps, calls, seconds)


def _part(rows: Int[Tensor, "p"]) -> slice:
    """Rows that lie next to each other, as a slice; no rows at all are an empty one."""
    return slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0, 0)


def _row(name: str, decoding: str, result: _Measured, versus: Versus | None, strata: list[str]) -> Row:
    n = len(result.exact)
    low, high = wilson(int(result.exact.sum()), n)
    cell, nll = mean_interval(result.share), Interval(float("nan"), float("nan"), float("nan"))
    if not np.isnan(result.nll).any():
        nll = mean_interval(result.nll)
    return Row(
        scheduler=name,
        decoding=decoding,
        n=n,
        exact=float(result.exact.mean()),
        exact_low=low,
        exact_high=high,
        cell=cell.mean,
        cell_low=max(0.0, cell.low),  # Student's interval does not know that a share ends at 0 and 1
        cell_high=min(1.0, cell.high),
        nll=nll.mean,
        nll_low=nll.low,
        nll_high=nll.high,
        denoiser_calls=result.calls / n,
        steps=float(result.steps.mean()),
        seconds=result.seconds,
        versus=versus,
        strata={label: _stratum(result.exact[[s == label for s in strata]]) for label in sorted(set(strata))},
        solved="".join("1" if right else "0" for right in result.exact),
    )


def _stratum(exact: NDArray[np.bool_]) -> Stratum:
    low, high = wilson(int(exact.sum()), len(exact))
    return Stratum(n=len(exact), exact=float(exact.mean()), exact_low=low, exact_high=high)


def _versus(baseline: str, result: _Measured, reference: _Measured) -> Versus:
    test = compare(result.exact, reference.exact)
    interval = paired_bootstrap(result.exact, reference.exact)
    return Versus(baseline, test.won, test.lost, interval.mean, interval.low, interval.high, test.p)


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def schedulers_named(names: Sequence[str], load: Callable[[str], Scheduler]) -> dict[str, Scheduler]:
    """Each name once, in the order given."""
    return {name: load(name) for name in dict.fromkeys(name.strip() for name in names) if name}
