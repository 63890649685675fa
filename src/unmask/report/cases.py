"""The most informative problems of an evaluation, and traces of them.

Two schedulers are compared: the learned one, or else the best without access to the truth, and the baseline. A problem is won,
lost, or failed by both; problems that both solve show little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

from unmask.decoding.draws import row_seeds
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Denoiser, Scheduler, Task
from unmask.evaluation.evaluate import Report, Row
from unmask.report.tables import is_oracle
from unmask.report.traces import record as trace
from unmask.schedulers.loading import SCHEDULERS

OUTCOMES = {"won": ("1", "0"), "lost": ("0", "1"), "failed by both": ("0", "0")}
"""Whether the scheduler and the baseline solve a problem, ``1`` for solved."""


def select_pair(report: Report, decoding: str) -> tuple[Row, Row]:
    """The row that the report is about and the baseline; the same row twice where there is only one scheduler."""
    rows = [row for row in report.rows if row.decoding == decoding]
    named = next((row.versus.baseline for row in rows if row.versus is not None), None)
    base = next((row for row in rows if row.scheduler == named), rows[0])
    others = [row for row in rows if row is not base] or [base]
    fair = [row for row in others if not is_oracle(row.scheduler)] or others
    return max(fair, key=lambda row: (is_learned(row.scheduler), row.exact)), base


def is_learned(scheduler: str) -> bool:
    """A shipped policy, or the folder of one: any name that is not a heuristic's."""
    return scheduler.partition(":")[0] not in SCHEDULERS


def group_by_outcome(row: Row, base: Row) -> dict[str, list[int]]:
    """The problems of each outcome, by their index in the evaluation."""
    pairs = list(zip(row.solved, base.solved, strict=True))
    return {outcome: [nth for nth, pair in enumerate(pairs) if pair == marks] for outcome, marks in OUTCOMES.items()}


def most_informative_problems(report: Report, decoding: str, count: int) -> list[int]:
    """``count`` problems, one of each outcome in turn; then those that both schedulers solve."""
    row, base = select_pair(report, decoding)
    groups = group_by_outcome(row, base)
    turns = [nth for nth in chain.from_iterable(zip_longest(*groups.values())) if nth is not None]
    return [*turns, *(nth for nth in range(row.n) if nth not in set(turns))][:count]


def record_cases(
    report: Report,
    task: Task,
    denoiser: Denoiser,
    schedulers: Mapping[str, Scheduler],
    decodings: Mapping[str, Decoding],
    about: trace.About,
    folder: Path,
    count: int,
) -> Iterator[Path]:
    """Decode the most informative problems of an evaluation again, with its seeds and all its schedulers.

    Writes a file per problem and decoding, and yields each when it is complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, decoding in decodings.items():
        words = "any order" if name == "sequential" else name
        slug = "" if len(decodings) == 1 else "-" + re.sub(r"[^\w.=-]+", "-", name)
        for row in most_informative_problems(report, name, count):
            out = folder / f"{row + 1:04d}{slug}.json"
            canvas = task.canvas([row]).seeded(row_seeds(report.seed, [row]))
            canvas = canvas.to(getattr(denoiser, "device", "cpu"))
            problems = [problem_name(report.source, row)]
            (one,) = trace.record(
                denoiser, schedulers, canvas, replace(about, decoding=words), decoding, problems=problems
            )
            trace.write(one, out)
            yield out


def problem_name(source: str, row: int) -> str:
    """The name of a problem in traces, by which reports find it."""
    return f"{source}, problem {row + 1}"
