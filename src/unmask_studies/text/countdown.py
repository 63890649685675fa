"""Countdown: orders on generated problems and on published test files, none of which was trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from unmask.report.tables import is_oracle
from unmask.tasks.countdown import Countdown, read_problems
from unmask.tasks.text_problems import TextProblemTask
from unmask_studies.sets import evaluated, joined
from unmask_studies.study import Findings, Piece
from unmask_studies.sudoku.orders import orders_figure, orders_table
from unmask_studies.text.ground import LEARNED, Ground, Texts, order_of

TASK = Countdown.kind
GENERATED = "generated"


@dataclass(frozen=True)
class CountdownOrders:
    """Generated problems of the test split and those of ``data``, JSON lines, × ``orders`` and the learned one."""

    minutes: float = 0.0
    orders: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "gt_logp")
    baseline: str = "confidence"
    sets: Texts = field(default_factory=Texts)
    data: tuple[Path, ...] = ()
    runs: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.baseline not in self.orders:
            raise ValueError(f"the baseline {self.baseline!r} is not among the orders: {', '.join(self.orders)}")

    def pieces(self, folder: Path) -> list[Piece]:
        ground = Ground(self.sets, self.runs, folder, self.seed, published=bool(self.data))

        def measure(order: str, problems: Callable[[], TextProblemTask]) -> Mapping[str, Any]:
            scheduler = ground.scheduler(TASK, order)
            return evaluated(problems(), ground.denoiser(TASK), order, scheduler, self.seed)

        return ground.pieces([TASK], [order_of(TASK)]) + [
            Piece(f"{name}: {order}", lambda o=order, p=problems: measure(o, p))
            for name, problems in self._problems().items()
            for order in self._rows()
        ]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        reports = []
        for name in self._problems():
            report = joined([results[f"{name}: {order}"] for order in self._rows()], self.baseline)
            reports.append(replace(report, denoiser=TASK))
        tables = [orders_table(report, {}, "equations") for report in reports]
        return Findings(tables, {"countdown": orders_figure(reports, {})}, reports)

    def _rows(self) -> list[str]:
        """The orders of the table: what knows the truth comes last."""
        return sorted((*self.orders, LEARNED), key=is_oracle)

    def _problems(self) -> dict[str, Callable[[], TextProblemTask]]:
        """Name → problems, read when a piece asks for them."""
        found: dict[str, Callable[[], TextProblemTask]] = {}
        if self.sets.count:
            found[GENERATED] = lambda: self.sets.problems(TASK)
        for path in self.data:
            if not path.is_file():
                raise ValueError(f"expected a file of JSON lines, but there is none at {path}")
            if path.stem in found:
                raise ValueError(f"two sets of problems are called {path.stem}: rename the file")
            found[path.stem] = cache(lambda path=path: read_problems(path, self.sets.limit))
        return found
