"""Which problems of an evaluation are worth a look, and traces of them.

An evaluation says of every problem and order whether it was solved. Two orders are compared: the learned one, or else the best that
does not know the truth, and the baseline. A problem is won, lost, or failed by both; on the rest there is little to see.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path

import torch

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Denoiser, Scheduler, Task
from unmask.evaluation.evaluate import Report, Row
from unmask.report.tables import is_oracle
from unmask.report.traces import record as trace
from unmask.schedulers.loading import SCHEDULERS

KINDS = {"won": ("1", "0"), "lost": ("0", "1"), "failed by both": ("0", "0")}
"""What the order and the baseline made of a problem, ``1`` for solved."""


def compared(report: Report, decoding: str) -> tuple[Row, Row]:
    """The order that the report is about and the one it is compared with; the same twice, if there is one order only."""
    rows = [row for row in report.rows if row.decoding == decoding]
    named = next((row.versus.baseline for row in rows if row.versus is not None), None)
    base = next((row for row in rows if row.scheduler == named), rows[0])
    others = [row for row in rows if row is not base] or [base]
    fair = [row for row in others if not is_oracle(row.scheduler)] or others
    return max(fair, key=lambda row: (is_learned(row.scheduler), row.exact)), base


def is_learned(scheduler: str) -> bool:
    """A shipped learned order, or the folder of one: whatever is not the name of a rule."""
    return scheduler == "sas" or scheduler.partition(":")[0] not in SCHEDULERS


def kinds(order: Row, base: Row) -> dict[str, list[int]]:
    """The problems of each kind, by their place in the evaluation."""
    pairs = list(zip(order.solved, base.solved, strict=True))
    return {kind: [row for row, pair in enumerate(pairs) if pair == marks] for kind, marks in KINDS.items()}


def telling(report: Report, decoding: str, count: int) -> list[int]:
    """``count`` problems, one of each kind in turn; when none are left, those that both orders solve."""
    order, base = compared(report, decoding)
    found = kinds(order, base)
    turns = [row for row in chain.from_iterable(zip_longest(*found.values())) if row is not None]
    return [*turns, *(row for row in range(order.n) if row not in set(turns))][:count]


def record(
    report: Report,
    task: Task,
    denoiser: Denoiser,
    schedulers: Mapping[str, Scheduler],
    decodings: Mapping[str, Decoding],
    about: trace.About,
    folder: Path,
    count: int,
) -> Iterator[Path]:
    """Decode the telling problems of an evaluation again, as it did, in all its orders. A file per problem and decoding.

    Yields each file when it is complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, decoding in decodings.items():
        words = "any order" if name == "sequential" else name
        slug = "" if len(decodings) == 1 else "-" + re.sub(r"[^\w.=-]+", "-", name)
        for row in telling(report, name, count):
            out = folder / f"{row + 1:04d}{slug}.json"
            seeds = torch.tensor([report.seed * 2**32 + row])
            problems, canvas = [problem_name(report.source, row)], task.canvas([row])
            one = replace(about, decoding=words)
            trace.write(
                trace.record(denoiser, schedulers, canvas, one, decoding, problems=problems, seeds=seeds)[0], out
            )
            yield out


def problem_name(source: str, row: int) -> str:
    """What a trace calls a problem; reports find it by this name."""
    return f"{source}, problem {row + 1}"
