"""What pieces are made of: problem sets by name, denoisers, and decodings that keep their order.

``N`` problems, ``L`` cells, ``K`` reveals of the longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Task
from unmask.denoisers.loading import load_denoiser, shipped
from unmask.evaluation.evaluate import Report, Row, Versus, evaluate
from unmask.evaluation.statistics import Interval, compare, paired_bootstrap
from unmask.report.gather import report_from_json
from unmask.report.tables import is_oracle
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask
from unmask_studies.study import Piece, null

BATCH = 64


@dataclass(frozen=True)
class ProblemSet:
    """A set that is generated or read when it is first called. ``key`` says which problems these are."""

    key: Mapping[str, Any]
    make: Callable[[], SudokuTask]

    def __call__(self) -> SudokuTask:
        return self.make()


@dataclass(frozen=True)
class Sets:
    """Problem sets: ``generated`` puzzles of the test split (0: none) with such ``clues``, and ``limit`` rows of each file."""

    generated: int = 1000
    clues: str = "rao"
    size: int = 9
    limit: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.generated < 0 or self.limit < 1:
            raise ValueError(f"expected some problems, got generated = {self.generated}, limit = {self.limit}")

    def named(self, data: Sequence[Path] = ()) -> dict[str, ProblemSet]:
        """Name → the set. Nothing is generated or read before a piece asks for it."""
        found: dict[str, ProblemSet] = {}
        if self.generated:
            key = {"generated": self.generated, "size": self.size, "clues": self.clues, "seed": self.seed}
            found[f"generated, {self.clues}"] = ProblemSet(
                key, cache(lambda: SudokuTask.generated(self.generated, self.size, self.clues, "test", self.seed))
            )
        for path in data:
            if not path.is_file():
                raise ValueError(f"expected a CSV file of puzzles, but there is none at {path}")
            if path.stem in found:
                raise ValueError(f"two files are called {path.stem}: rename one of them")
            digest = blake2b(path.read_bytes(), digest_size=16).hexdigest()
            found[path.stem] = ProblemSet(
                {"file": digest, "limit": self.limit}, cache(lambda path=path: SudokuTask.read(path, self.limit))
            )
        if not found:
            raise ValueError("there are no problems: ask for generated ones, or name files with --data")
        return found


def require_fit(model: Any, denoiser: str, problems: SudokuTask) -> None:
    if model.config.max_length != problems.puzzles.shape[1]:
        raise ValueError(
            f"{denoiser} fills boards of {model.config.max_length} cells, {problems.source} has {problems.puzzles.shape[1]}"
        )


@cache
def denoiser_named(name: str) -> Any:
    return load_denoiser(name)


def evaluations(
    denoisers: Sequence[str],
    orders: Sequence[str],
    sets: Mapping[str, ProblemSet],
    seed: int,
    likelihood: bool = False,
) -> list[Piece]:
    """A piece per denoiser, problem set and order: an evaluation of one row."""

    def measure(denoiser: str, problems: ProblemSet, order: str) -> Mapping[str, Any]:
        model = denoiser_named(denoiser)
        scheduler = load_scheduler(order, model, denoiser)
        return evaluated(problems(), denoiser, order, scheduler, seed, likelihood=likelihood)

    return [
        Piece(
            piece_name(denoiser, name, order),
            lambda a=denoiser, b=problems, c=order: measure(a, b, c),
            _key(denoiser, order, problems, seed, "likelihood" if likelihood else "evaluation"),
        )
        for denoiser in denoisers
        for name, problems in sets.items()
        for order in orders
    ]


def _key(denoiser: str, order: str, problems: ProblemSet, seed: int, kind: str) -> dict[str, Any] | None:
    """All that a measurement depends on. Weights in a folder may change under their name: what uses them has no key."""
    if denoiser not in shipped() or Path(order).exists():
        return None
    return {"kind": kind, "denoiser": denoiser, "order": order, "problems": problems.key, "seed": seed}


def piece_name(denoiser: str, problems: str, order: str) -> str:
    return f"{denoiser} on {problems}: {order}"


def evaluated(
    problems: Task,
    denoiser: str,
    order: str,
    scheduler: Any,
    seed: int,
    decoding: Decoding = Decoding(),  # noqa: B008
    likelihood: bool = False,
) -> dict[str, Any]:
    """One order on all problems, as the JSON of an evaluation."""
    model = denoiser_named(denoiser)
    if isinstance(problems, SudokuTask):
        require_fit(model, denoiser, problems)
    report = evaluate(
        problems,
        model,
        {order: scheduler},
        {"sequential": decoding},
        denoiser_name=denoiser,
        batch=BATCH,
        seed=seed,
        likelihood=likelihood,
    )
    return null(report)


def joined(results: Sequence[Any], baseline: str) -> Report:
    """Evaluations of one row each, on the same problems, as one; every row compared with the baseline's in pairs."""
    reports = [report_from_json(result) for result in results]
    first = reports[0]
    for report in reports:
        if (report.n, report.source, report.seed) != (first.n, first.source, first.seed):
            raise ValueError(f"expected the same problems, got {first.source} and {report.source}")
    rows = [report.rows[0] for report in reports]
    base = next((row for row in rows if row.scheduler == baseline), None)
    compared = [row if base is None or row is base else replace(row, versus=_versus(row, base)) for row in rows]
    return replace(first, rows=compared)


def solved(row: Row) -> Bool[np.ndarray, "N"]:
    return np.array([mark == "1" for mark in row.solved])


def difference(row: Row, other: Row) -> Interval:
    """Of the shares solved, in pairs."""
    return paired_bootstrap(solved(row), solved(other))


def _versus(row: Row, base: Row) -> Versus:
    test, limits = compare(solved(row), solved(base)), difference(row, base)
    return Versus(base.scheduler, test.won, test.lost, limits.mean, limits.low, limits.high, test.p)


def ahead(report: Report) -> set[str]:
    """The order, if there is one, that beats every other order that does not know the truth: all paired intervals leave out 0."""
    fair = [row for row in report.rows if not is_oracle(row.scheduler)]
    best = max(fair, key=lambda row: row.exact, default=None)
    if best is None or len(fair) < 2:
        return set()
    return {best.scheduler} if all(difference(best, row).low > 0 for row in fair if row is not best) else set()


@dataclass(frozen=True)
class Decoded:
    """Free-running decodings: ``order`` the cells as they were revealed (−1 pads), ``tokens`` what was written in the end."""

    order: Int[np.ndarray, "N K"]
    tokens: Int[np.ndarray, "N L"]

    def ranks(self) -> Int[np.ndarray, "N L"]:
        """The place of each cell in the order, −1 where it was given."""
        rank = np.full(self.tokens.shape, -1)
        row, k = np.nonzero(self.order >= 0)
        rank[row, self.order[row, k]] = k
        return rank


def decodings(denoiser: str, orders: Sequence[str], sets: Mapping[str, ProblemSet], seed: int) -> list[Piece]:
    """A piece per problem set and order: which cell was revealed when, and the digits. Several studies look at the same ones."""

    def measure(problems: SudokuTask, order: str) -> Mapping[str, Any]:
        found = decoded(problems, denoiser, order, seed)
        digits = ["".join(map(str, row)) for row in found.tokens.tolist()]
        return {"orders": [row[row >= 0].tolist() for row in found.order], "digits": digits}

    return [
        Piece(
            piece_name(denoiser, name, order),
            lambda p=problems, o=order: measure(p(), o),
            _key(denoiser, order, problems, seed, "decoding"),
        )
        for name, problems in sets.items()
        for order in orders
    ]


def decoded_of(result: Mapping[str, Any]) -> Decoded:
    """What a piece of ``decodings`` holds."""
    orders = result["orders"]
    order = np.full((len(orders), max((len(row) for row in orders), default=0)), -1)
    for nth, row in enumerate(orders):
        order[nth, : len(row)] = row
    return Decoded(order, np.array([[int(digit) for digit in row] for row in result["digits"]]))


def decoded(problems: SudokuTask, denoiser: str, order: str, seed: int) -> Decoded:
    """Every problem, one reveal at a time, with the seeds that ``evaluate`` uses."""
    model = denoiser_named(denoiser)
    require_fit(model, denoiser, problems)
    scheduler = load_scheduler(order, model, denoiser)
    blanks = int((problems.puzzles == 0).sum(1).max(initial=0))
    orders: NDArray[np.int64] = np.full((len(problems), blanks), -1)
    tokens = np.empty(problems.puzzles.shape, np.int64)
    for start in range(0, len(problems), BATCH):
        rows = range(start, min(start + BATCH, len(problems)))
        seeds = torch.tensor([seed * 2**32 + row for row in rows])
        path = unmask(model, scheduler, problems.canvas(rows).seeded(seeds), Decoding(), record=False)
        orders[start : rows.stop, : path.order.shape[1]] = path.order.numpy()
        tokens[start : rows.stop] = path.tokens.numpy()
    return Decoded(orders, tokens)
