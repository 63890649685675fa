"""How many positions per step: every pace at several settings, with confidence and with the learned order, accuracy against calls.

Each denoiser decodes its own problems: boards of a file or generated ones with Rao's clues, sums, those of another task. A learned
pace is measured where its head ships.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.evaluation.evaluate import Report, Row
from unmask.report import figures
from unmask.schedulers.loading import list_heads, load_scheduler, published_name
from unmask_studies.reports import difference, evaluate_scheduler, get_denoiser, join_reports
from unmask_studies.sets import OtherSet, ProblemSet, Sets
from unmask_studies.study import Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Cell, Table, TableRow, against, describe, label, limits, points_gap, solved
from unmask_studies.text.study import Texts

SEQUENTIAL = "top"
"""One position per step."""
LEARNED = "learned"


@dataclass(frozen=True)
class Paces(GridStudy):
    """``schedulers`` × ``paces`` for some denoisers; ``budgets`` are step budgets, the fixed numbers per step among them.

    ``boards`` decodes the puzzles of the file ``data``, without one the generated ones of ``sets``; ``text`` the task of its name;
    ``other`` names a further denoiser and its problems.
    """

    schedulers: tuple[str, ...] = ("confidence", "sas")
    paces: tuple[str, ...] = (
        *(f"learned:p={p}" for p in (0.99, 0.98, 0.97)),
        *(f"threshold:p={p}" for p in (0.94, 0.9)),
        "factor:f=0.5",
        *(f"entropy_bound:gamma={gamma}" for gamma in (0.5, 2.0, 3.0)),
        "kl_stable:p=0.7",
        "less:p=0.7",
    )
    budgets: tuple[int, ...] = (12, 8, 4)
    boards: str = "sudoku-9x9-imperfect"
    text: str = "arithmetic"
    sums: int = 400
    sets: Sets = field(default_factory=Sets)
    data: Path | None = None
    other: OtherSet = field(default_factory=OtherSet)
    seed: int = 0

    def __post_init__(self) -> None:
        for pace in self.paces:
            load_pace(pace)
        if not self.schedulers:
            raise ValueError("expected at least one scheduler, got none")

    @property
    def problems(self) -> dict[str, ProblemSet | Texts | OtherSet]:
        """Denoiser → its problems, loaded when they are measured."""
        found: dict[str, ProblemSet | Texts | OtherSet] = {}
        sets = self.sets if self.data is None else replace(self.sets, generated=0)
        if self.boards and (sets.generated or self.data is not None):
            (found[self.boards],) = sets.by_name(() if self.data is None else (self.data,)).values()
        found |= {self.text: Texts(self.sums, seed=self.seed)} if self.text and self.sums else {}
        return found | ({self.other.denoiser: self.other} if self.other.denoiser else {})

    def rules_for(self, denoiser: str) -> dict[str, Decoding]:
        """Name → decoding, without the learned pace where no head ships and none is named."""
        learned = published_name(denoiser) in list_heads("pace")
        paces = [pace for pace in self.paces if learned or "head=" in pace or not pace.startswith(LEARNED)]
        budgets = {f"{steps} steps": Decoding(steps=steps) for steps in self.budgets}
        return {SEQUENTIAL: Decoding()} | budgets | {pace: Decoding(pace=load_pace(pace)) for pace in paces}

    def grid(self) -> list[Key]:
        keys: list[Key] = [
            (denoiser, scheduler, rule)
            for denoiser in self.problems
            for scheduler in self.schedulers
            for rule in self.rules_for(denoiser)
        ]
        if not keys:
            raise ValueError("there are no problems: leave out --no-generated, or name a file with --data")
        return keys

    def measure(self, key: Key, folder: Path) -> Result:
        denoiser, scheduler, rule = map(str, key)
        found = self.problems[denoiser]
        problems = found.problems(denoiser) if isinstance(found, Texts) else found.load()
        loaded = (scheduler, load_scheduler(scheduler, get_denoiser(denoiser), denoiser))
        return evaluate_scheduler(problems, denoiser, loaded, self.seed, self.rules_for(denoiser)[rule])

    def findings(self, results: Results) -> Findings:
        tables, plots, reports = [], {}, []
        for denoiser in self.problems:
            keys = [(scheduler, rule) for scheduler in self.schedulers for rule in self.rules_for(denoiser)]
            report = join_reports([results[denoiser, *key] for key in keys], "")
            named = [replace(row, decoding=rule) for row, (_, rule) in zip(report.rows, keys, strict=True)]
            reports.append(replace(report, rows=named))
            tables.append(_table(reports[-1]))
            plots |= {f"paces-{Path(denoiser).name}-{name}": draw_paces(reports[-1], name) for name in self.schedulers}
        return Findings(tables, plots, reports)


def find_rival(row: Row, others: list[Row]) -> Row | None:
    """The best of what is as cheap or cheaper."""
    cheaper = [other for other in others if other is not row and other.denoiser_calls <= row.denoiser_calls]
    return max(cheaper, key=lambda other: other.exact, default=None)


def _table(report: Report) -> Table:
    plain = {row.scheduler: row for row in report.rows if row.decoding == SEQUENTIAL}
    rows: list[TableRow] = []
    for row in sorted(report.rows, key=lambda row: row.denoiser_calls):
        rival, base = find_rival(row, report.rows), plain[row.scheduler]
        leads = rival is None or row.exact > rival.exact
        rows.append(
            {
                "how many per step": row.decoding,
                "scheduler": label(row.scheduler),
                "calls": f"{row.denoiser_calls:.1f}",
                "share of the calls": f"{row.denoiser_calls / base.denoiser_calls:.2f}",
                "solved %": Cell(solved(row), leads and rival is not None and difference(row, rival).low > 0),
                "against one per step": "" if row is base else against(row, base),
                "against what is cheaper": "" if rival is None else points_gap(difference(row, rival)),
                "on the frontier": "yes" if leads else "",
            }
        )
    note = (
        "Sorted by denoiser calls per problem. On the frontier: nothing as cheap or cheaper solves as many. Against what is "
        "cheaper: the best of those, paired; bold: the 95 % interval excludes 0."
    )
    return Table.of(describe(report), rows, note)


def draw_paces(report: Report, scheduler: str) -> Any:
    """A line per kind of pace, with one scheduler; the learned one first."""
    series: dict[str, list[tuple[float, figures.Point]]] = {LEARNED: []}
    for row in report.rows:
        if row.scheduler == scheduler:
            kind = "fixed budgets" if row.decoding.endswith(("steps", SEQUENTIAL)) else row.decoding.partition(":")[0]
            point = (row.denoiser_calls, figures.share(row.decoding, limits(row)))
            series.setdefault(kind.replace("_", " "), []).append(point)
    found = {name: points for name, points in series.items() if points}
    return figures.frontier(found, "denoiser calls per problem", "solved, %")
