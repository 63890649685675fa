"""The small text tasks by name."""

from __future__ import annotations

from pathlib import Path

from unmask.tasks.arithmetic import Arithmetic, Ordered
from unmask.tasks.code import Code
from unmask.tasks.countdown import Countdown, read_problems
from unmask.tasks.text_problems import TextProblemKind, TextProblemTask

WRITTEN: dict[str, type[TextProblemKind]] = {kind.name: kind for kind in (Arithmetic, Ordered, Code, Countdown)}


def written_task(name: str, count: int, data: Path | None = None, seed: int = 0) -> TextProblemTask:
    """Problems of the test split, or the first of a file where there are files of such problems."""
    if data is None:
        return TextProblemTask.generate(WRITTEN[name](count=count, split="test", seed=seed))
    if name != Countdown.name:
        raise ValueError(f"there are no files of {name} problems, they are generated: leave --data out, got {data}")
    return read_problems(data, count)
