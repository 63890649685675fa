"""Schedulers × decodings on a task: accuracy with intervals, exact path likelihood, paired comparison, denoiser calls.

Every scheduler gets the same problems in the same sequence with the same seeds, so all comparisons are paired.

The exact negative log-likelihood needs no second decoding of a row that was right: its trajectory revealed the target's tokens, as
teacher forcing does. Only the rows that failed are decoded again with the target given. For an order drawn at random this is one
draw of −log p(x | σ), an upper bound of −log P(x) in expectation (Thm. elbo).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import RENDERERS, Denoiser, Scheduler, Task
from unmask.evaluation.statistics import Interval, compare, mean_interval, paired_bootstrap, wilson
from unmask.runs.atomic import atomic_write
from unmask.runs.config import Count, Seed, config
from unmask.runs.jsonable import to_jsonable
from unmask.runs.processes import ProcessGroup

Progress = Callable[[str, int], None]
"""Called with a scheduler's name and the number of problems that it has just finished."""


@config
class EvaluationOptions:
    """What an evaluation decodes and measures, whatever the schedulers and the decodings.

    Attributes:
        denoiser: The denoiser's name in the report.
        baseline: The scheduler that the others are compared with; None is confidence, where that is among them.
        limit: Only the first so many problems; None decodes all.
        batch: Canvases decoded at a time. It changes speed and memory only.
        seed: Seeds everything random, row by row, in 0 .. 2**31 - 1.
        likelihood: Also measure the exact likelihood of the truth.
    """

    denoiser: str = "denoiser"
    baseline: str | None = None
    limit: int | None = None
    batch: Count = 64
    seed: Seed = 0
    likelihood: bool = True


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

    @classmethod
    def of(cls, baseline: str, solved: NDArray[np.bool_], by_baseline: NDArray[np.bool_]) -> Versus:
        test, limits = compare(solved, by_baseline), paired_bootstrap(solved, by_baseline)
        return cls(baseline, test.won, test.lost, limits.mean, limits.low, limits.high, test.p)


@dataclass(frozen=True)
class Row:
    """One scheduler in one decoding. ``denoiser_calls`` are canvases forwarded per problem, ``seconds`` the decoding of all.

    ``published`` is the number of a paper for the same scheduler in the same setting.
    """

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
    published: float | None = None

    @property
    def marks(self) -> NDArray[np.bool_]:
        """``[n]`` which problems it solved."""
        return read_marks(self.solved)


@dataclass(frozen=True)
class Report:
    """``solved`` of each row is a string of 0 and 1, a character per problem: paired comparisons need no second decoding."""

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
        """Everything as JSON. A likelihood that was not measured and the limits of a single observation are null."""
        text = json.dumps(to_jsonable({**vars(self), **extra}, finite="null"), indent=1, allow_nan=False)
        atomic_write(path, (text + "\n").encode())


@dataclass(frozen=True)
class Measurement:
    """One scheduler in one decoding on all problems, ``[n]`` each."""

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
    options: EvaluationOptions = EvaluationOptions(),  # noqa: B008
    *,
    progress: Progress | None = None,
    processes: ProcessGroup | None = None,
) -> Report:
    """Decode the problems with every scheduler in every decoding, and compare each scheduler with the baseline.

    Several processes all call this with the same arguments; each decodes its part of the problems and gets the whole report.
    """
    decodings = decodings or {"sequential": Decoding()}
    n = len(task) if options.limit is None else min(options.limit, len(task))
    if n < 1:
        raise ValueError(
            f"there is nothing to evaluate: the task has {len(task)} problems, the limit is {options.limit}"
        )
    if not schedulers:
        raise ValueError("there is nothing to evaluate: name at least one scheduler")
    baseline = options.baseline or "confidence"
    if options.baseline is not None and baseline not in schedulers:
        raise ValueError(
            f"the baseline {baseline!r} is not among the schedulers: expected one of {', '.join(schedulers)}"
        )
    decoder = _Decoder(task, denoiser, n, options, progress, processes)
    strata = [task.stratum(row) for row in range(n)]
    rows = []
    for decoding_name, decoding in decodings.items():
        measured = {name: decoder.measure(name, scheduler, decoding) for name, scheduler in schedulers.items()}
        reference = measured.get(baseline)
        for name, result in measured.items():
            versus = (
                None if reference is None or name == baseline else Versus.of(baseline, result.exact, reference.exact)
            )
            rows.append(make_row(name, decoding_name, result, versus, strata))
    source = str(getattr(task, "source", task.name))
    return Report(task.name, source, options.denoiser, n, options.seed, rows)


@dataclass(frozen=True)
class _Decoder:
    """Decodes the first ``n`` problems, a batch at a time, in one process or several."""

    task: Task
    denoiser: Denoiser
    n: int
    options: EvaluationOptions
    progress: Progress | None
    processes: ProcessGroup | None

    def measure(self, name: str, scheduler: Scheduler, decoding: Decoding) -> Measurement:
        per_row = np.zeros((4, self.n))  # exact, share, nll, steps
        calls, seconds = 0, 0.0
        for rows in self._batches():
            numbers, batch_calls, batch_seconds = self._measure_batch(rows, scheduler, decoding)
            per_row[:, rows.start : rows.stop] = numbers
            calls, seconds = calls + batch_calls, seconds + batch_seconds
            if self.progress is not None:
                self.progress(name, len(rows))
        if self.processes is not None:  # rows of other processes are zeros here
            per_row = self.processes.all_reduce(torch.from_numpy(per_row)).numpy()
            calls, seconds = round(self.processes.sum(calls)), self.processes.sum(seconds)
        exact, share, nll, steps = per_row
        return Measurement(exact > 0, share, nll, steps.astype(np.int64), calls, seconds)

    def _batches(self) -> list[range]:
        """This process's problems, which are next to each other."""
        mine = range(self.n) if self.processes is None else self.processes.split(self.n).tolist()
        size = self.options.batch
        return [range(start, min(start + size, mine[-1] + 1)) for start in mine[::size]]

    def _measure_batch(
        self, rows: range, scheduler: Scheduler, decoding: Decoding
    ) -> tuple[NDArray[np.float64], int, float]:
        """``[4, rows]`` numbers, denoiser calls and seconds. Teacher forcing is not charged."""
        device = getattr(self.denoiser, "device", torch.device("cpu"))
        canvas = self.task.canvas(rows).seeded(row_seeds(self.options.seed, rows)).to(device)
        trajectory = unmask(self.denoiser, scheduler, canvas, decoding, record=False)
        verdict = self.task.verify(rows, trajectory.tokens.cpu())
        steps = trajectory.step.amax(1) + 1 if trajectory.step.shape[1] else torch.zeros(len(rows))
        nll = torch.full((len(rows),), torch.nan)
        if self.options.likelihood and decoding.revision is None:  # what is taken back has no likelihood
            nll = -trajectory.total_logp
            # A row that stops at its end token leaves the rest unpriced, which teacher forcing does not.
            stops = decoding.stop_at_end and len(self.denoiser.end_ids) > 0
            failed = (trajectory.tokens != canvas.target).any(1) | stops
            if bool(failed.any()):
                forced = unmask(self.denoiser, scheduler, canvas.rows(failed), decoding, forced=True, record=False)
                nll[failed] = -forced.total_logp
        numbers = [x.double().cpu().numpy() for x in (verdict.exact, verdict.share, nll, steps)]
        return np.stack(numbers), trajectory.denoiser_calls, trajectory.seconds


def make_row(name: str, decoding: str, result: Measurement, versus: Versus | None, strata: list[str]) -> Row:
    """The row of a report, with its intervals."""
    cell, nll = mean_interval(result.share), Interval(math.nan, math.nan, math.nan)
    if not np.isnan(result.nll).any():
        nll = mean_interval(result.nll)
    return Row(
        scheduler=name,
        decoding=decoding,
        **_accuracy(result.exact),
        cell=cell.mean,
        cell_low=max(0.0, cell.low),  # Student's interval ignores that a share ends at 0 and 1
        cell_high=min(1.0, cell.high),
        nll=nll.mean,
        nll_low=nll.low,
        nll_high=nll.high,
        denoiser_calls=result.calls / len(result.exact),
        steps=float(result.steps.mean()),
        seconds=result.seconds,
        versus=versus,
        strata={
            label: Stratum(**_accuracy(result.exact[[s == label for s in strata]])) for label in sorted(set(strata))
        },
        solved="".join("1" if right else "0" for right in result.exact),
    )


def _accuracy(exact: NDArray[np.bool_]) -> dict[str, Any]:
    low, high = wilson(int(exact.sum()), len(exact))
    return {"n": len(exact), "exact": float(exact.mean()), "exact_low": low, "exact_high": high}


def read_marks(solved: str) -> NDArray[np.bool_]:
    """``[n]`` from a string of 0 and 1."""
    return np.array([mark == "1" for mark in solved])


def load_schedulers(names: Sequence[str], load: Callable[[str], Scheduler]) -> dict[str, Scheduler]:
    """Each name once, in the sequence given."""
    return {name: load(name) for name in dict.fromkeys(name.strip() for name in names) if name}
