"""What lossless drafts save and cost: sequential steps, canvases, wall time, and what a batch may cost for them to pay.

Problems are decoded one at a time: rows of a batch go in step, so drafts save most for one row. The tokens with drafts are compared
with those without. Schedulers whose scores are rounded are other schedulers: what they solve is measured on more problems.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Denoiser, Scheduler, Task
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.statistics import compare, wilson
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.kinds import EvaluationRequest, evaluation_set
from unmask.tasks.sudoku.task import SudokuTask
from unmask.tasks.text_problems import TextProblemTask, text_problem_kinds
from unmask.training.cost.flops import shape_of
from unmask_studies.bench.measuring import Finding, ratios, time_rounds

SOLVED_AT_ONCE = 64


@dataclass(frozen=True)
class DraftBench:
    """``problems`` of the test split one at a time with drafts of ``sizes``; ``solved`` of them for what rounding changes.

    The problems of a denoiser that ships are its own; for another one, ``task`` and its file ``data`` name them.
    """

    denoisers: tuple[str, ...] = ("sudoku-9x9-imperfect", "arithmetic")
    schedulers: tuple[str, ...] = ("confidence", "sas", "confidence:round=2", "sas:round=1")
    sizes: tuple[int, ...] = (2, 4, 8)
    problems: int = 12
    solved: int = 200
    repeats: int = 5
    task: str = ""
    data: Path | None = None


QUICK = DraftBench(denoisers=("sudoku-9x9-imperfect",), schedulers=("confidence",), sizes=(4,), problems=1, solved=0)


@dataclass(frozen=True)
class Decoded:
    """All problems one after another: their tokens, and what they cost."""

    tokens: list[list[int]]
    steps: int
    canvases: int
    seconds: float


def measure_drafts(config: DraftBench) -> Iterator[Finding]:
    for name in config.denoisers:
        denoiser, task = _load(name, config)
        cost = {size: batch_cost(denoiser, task, size, config.repeats) for size in config.sizes}
        for size, found in cost.items():
            yield Finding.median(f"{name}: a forward of {size} canvases against one", found, "×")
        for scheduler in config.schedulers:
            yield from _savings(name, denoiser, task, scheduler, config)
        if config.solved:
            yield from _accuracy(name, denoiser, task, config)


def batch_cost(denoiser: Denoiser, task: Task, size: int, repeats: int) -> list[float]:
    """The time of a forward of ``size`` canvases in forwards of one, round by round."""
    tokens = task.canvas([0]).tokens
    calls = {n: partial(denoiser.hidden, tokens.repeat(n, 1), None) for n in (1, size)}
    with torch.no_grad():
        times = time_rounds({str(n): partial(_repeat, call) for n, call in calls.items()}, repeats)
    return ratios(times[str(size)], times["1"])


def _repeat(call: Callable[[], object], times: int = 20) -> None:
    for _ in range(times):
        call()


def decode_singly(denoiser: Denoiser, scheduler: Scheduler, task: Task, count: int, draft: int) -> Decoded:
    tokens, steps, canvases, began = [], 0, 0, time.process_time()
    for row in range(count):
        canvas = task.canvas([row]).seeded(row_seeds(0, [row]))
        trajectory = unmask(denoiser, scheduler, canvas, Decoding(draft=draft), record=False)
        tokens.append(trajectory.tokens[0].tolist())
        steps, canvases = steps + trajectory.steps, canvases + trajectory.denoiser_calls
    return Decoded(tokens, steps, canvases, time.process_time() - began)


def _savings(name: str, denoiser: Denoiser, task: Task, scheduler: str, config: DraftBench) -> Iterator[Finding]:
    loaded, n = load_scheduler(scheduler, denoiser, name), config.problems
    plain = decode_singly(denoiser, loaded, task, n, 1)
    where = f"{name}, {scheduler}"
    yield Finding(f"{where}, no draft: sequential steps a problem", plain.steps / n, "", n=n)
    for size in config.sizes:
        found = decode_singly(denoiser, loaded, task, n, size)
        if found.tokens != plain.tokens:
            raise ValueError(f"{where}: drafts of {size} changed the tokens, which they must not")
        what = f"{where}, drafts of {size}"
        yield Finding(f"{what}: sequential steps a problem", found.steps / n, "", n=n)
        yield Finding(f"{what}: fewer sequential steps", plain.steps / found.steps, "×", n=n)
        yield Finding(f"{what}: canvases", found.canvases / plain.canvases, "×", n=n)
        yield Finding(f"{what}: time here", found.seconds / plain.seconds, "×", n=n)
        mean = found.canvases / found.steps
        yield Finding(f"{what}: break-even cost of a forward of {mean:.1f}", plain.steps / found.steps, "forwards")


def _accuracy(name: str, denoiser: Denoiser, task: Task, config: DraftBench) -> Iterator[Finding]:
    """What schedulers with rounded scores solve, beside the same without."""
    solved: dict[str, list[bool]] = {}
    rounded = [scheduler for scheduler in config.schedulers if ":round=" in scheduler]
    for scheduler in dict.fromkeys(word for name in rounded for word in (name.partition(":round=")[0], name)):
        loaded, marks = load_scheduler(scheduler, denoiser, name), solved.setdefault(scheduler, [])
        for start in range(0, config.solved, SOLVED_AT_ONCE):
            rows = range(start, min(start + SOLVED_AT_ONCE, config.solved))
            canvas = task.canvas(rows).seeded(row_seeds(0, rows))
            marks += task.verify(rows, unmask(denoiser, loaded, canvas, record=False).tokens).exact.tolist()
    for scheduler, marks in solved.items():
        low, high = (100 * limit for limit in wilson(sum(marks), len(marks)))
        share = 100 * sum(marks) / len(marks)
        yield Finding(f"{name}, {scheduler}: solved", share, "%", low, high, len(marks), "95 %")
    for scheduler in rounded:
        pair = compare(solved[scheduler], solved[scheduler.partition(":round=")[0]])
        value, low, high = (100 * share for share in (pair.difference, pair.low, pair.high))
        what = f"{name}, {scheduler}: against the scores as they are"
        yield Finding(what, value, "points", low, high, config.solved, "95 %, paired")


def _load(name: str, config: DraftBench) -> tuple[Denoiser, Task]:
    count = max(config.problems, config.solved)
    if config.task:
        found = evaluation_set(config.task, name, EvaluationRequest(config.data, count), {})
        return found.denoiser, found.task
    kinds = text_problem_kinds()
    if name in kinds:
        return load_denoiser(name), TextProblemTask.generate(kinds[name](count=count, split="test"))
    size = shape_of(name).grid or 9
    return load_denoiser(name), SudokuTask.generate(count, size, "rao" if size == 9 else None, "test", 0)
