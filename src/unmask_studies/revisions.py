"""Taking tokens back: every revision with confidence and with the learned order, accuracy against denoiser calls.

Does a learned order leave anything to revise? Does revision leave anything to order? Each denoiser decodes its own problems: boards
with Rao's clues, boards with 17 clues (or generated ones with few), sums, those of another task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Task
from unmask.decoding.revisions import load_revision
from unmask.evaluation.evaluate import Report
from unmask.report import figures
from unmask.schedulers.loading import list_heads, load_scheduler, published_name
from unmask_studies.reports import compare_rows, evaluate_scheduler, get_denoiser, join_reports
from unmask_studies.sets import OtherSet, ProblemSet, Sets
from unmask_studies.study import Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Table, TableRow, against_baseline, describe, label, limits, solved
from unmask_studies.text.study import Texts

NONE = "none"
"""The rule that takes nothing back."""


@dataclass(frozen=True)
class Revisions(GridStudy):
    """``rules`` × ``schedulers`` for some denoisers, each on problems of its own.

    ``easy`` decodes the generated boards of ``sets``; ``hard`` the boards of the files ``data``, without any generated ones with
    ``few`` clues; ``text`` the task of its name; ``other`` names a further denoiser and its problems. A rule that needs a head is
    measured where one ships. ``budget`` is how many tokens may be taken back for each hidden position.
    """

    schedulers: tuple[str, ...] = ("confidence", "sas")
    rules: tuple[str, ...] = (NONE, "t2t", "t2m", "remdm_cap", "remdm_rescale", "remdm_conf", "p2", "doubt")
    easy: str = "sudoku-9x9-imperfect"
    hard: str = "sudoku-9x9"
    text: str = "arithmetic"
    few: str = "22-25"
    sums: int = 200
    budget: float = 3.0
    sets: Sets = field(default_factory=Sets)
    data: tuple[Path, ...] = ()
    other: OtherSet = field(default_factory=OtherSet)
    seed: int = 0

    def __post_init__(self) -> None:
        if NONE not in self.rules or not self.schedulers:
            raise ValueError(f"rules are compared with {NONE!r}, which must be among them, got {', '.join(self.rules)}")
        for rule in self.rules:
            self.decoding(rule)

    @property
    def problems(self) -> dict[tuple[str, str], ProblemSet | Texts | OtherSet]:
        """(denoiser, name of the problems) → the problems, loaded when they are measured."""
        found: dict[tuple[str, str], ProblemSet | Texts | OtherSet] = {}
        if self.easy and self.sets.generated:
            found |= {(self.easy, name): one for name, one in self.sets.by_name().items()}
        if self.hard and (self.sets.generated or self.data):
            few = replace(self.sets, generated=0).by_name(self.data) if self.data else self._few.by_name()
            found |= {(self.hard, name): one for name, one in few.items()}
        texts, other = Texts(self.sums, seed=self.seed), self.other
        found |= {(self.text, f"generated, {self.text}"): texts} if self.text and self.sums else {}
        return found | ({(other.denoiser, other.task): other} if other.denoiser else {})

    @property
    def _few(self) -> Sets:
        return replace(self.sets, clues=self.few, generated=self.sets.limit)

    def grid(self) -> list[Key]:
        keys: list[Key] = [
            (denoiser, name, scheduler, rule)
            for denoiser, name in self.problems
            for scheduler in self.schedulers
            for rule in self.rules_for(denoiser)
        ]
        if not keys:
            raise ValueError("there are no problems: leave out --no-generated, or name files with --data")
        return keys

    def rules_for(self, denoiser: str) -> tuple[str, ...]:
        """Without those whose head does not exist: none ships, and the rule names no folder."""
        heads = published_name(denoiser) in list_heads("doubt")
        return tuple(rule for rule in self.rules if heads or "head=" in rule or not rule.startswith("doubt"))

    def decoding(self, rule: str) -> Decoding:
        return Decoding() if rule == NONE else Decoding(revision=load_revision(rule), revision_budget=self.budget)

    def measure(self, key: Key, folder: Path) -> Result:
        denoiser, name, scheduler, rule = map(str, key)
        loaded = load_scheduler(scheduler, get_denoiser(denoiser), denoiser)
        problems = self._load(denoiser, name)
        return evaluate_scheduler(problems, denoiser, (scheduler, loaded), self.seed, self.decoding(rule))

    def _load(self, denoiser: str, name: str) -> Task:
        found = self.problems[denoiser, name]
        return found.problems(denoiser) if isinstance(found, Texts) else found.load()

    def findings(self, results: Results) -> Findings:
        tables, plots, reports = [], {}, []
        for denoiser, name in self.problems:
            report = self._report(results, denoiser, name)
            reports.append(report)
            tables.append(_table(report))
            plots[f"revisions-{Path(denoiser).name}"] = _figure(report)
        return Findings(tables, plots, reports)

    def _report(self, results: Results, denoiser: str, name: str) -> Report:
        """A row per scheduler and rule, each compared with the same scheduler without a rule."""
        rows, rules = [], self.rules_for(denoiser)
        report: Report | None = None
        for scheduler in self.schedulers:
            report = join_reports([results[denoiser, name, scheduler, rule] for rule in rules], "")
            named = [replace(row, decoding=rule) for row, rule in zip(report.rows, rules, strict=True)]
            base = named[rules.index(NONE)]
            rows += [row if row is base else compare_rows(row, base) for row in named]
        assert report is not None
        return replace(report, rows=rows)


def _table(report: Report) -> Table:
    plain = {row.scheduler: row for row in report.rows if row.decoding == NONE}
    rows: list[TableRow] = [
        {
            "scheduler": label(row.scheduler),
            "revision": row.decoding,
            "solved %": solved(row),
            "against none, paired": against_baseline(row),
            "calls": f"{row.denoiser_calls:.1f}",
            "times the calls": f"{row.denoiser_calls / plain[row.scheduler].denoiser_calls:.2f}",
        }
        for row in report.rows
    ]
    note = (
        "Calls: canvases through the denoiser per problem. Against none: the same scheduler without a revision; bold: the paired "
        "95 % interval excludes 0."
    )
    return Table.of(describe(report), rows, note)


def _figure(report: Report) -> Any:
    """A line per rule, from one scheduler to the other."""
    series: dict[str, list[tuple[float, figures.Point]]] = {}
    for row in report.rows:
        point = figures.share(row.scheduler, limits(row))
        series.setdefault(row.decoding, []).append((row.denoiser_calls, point))
    return figures.frontier(_by_cost(series), "denoiser calls per problem", "solved, %")


def _by_cost(series: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return dict(sorted(series.items(), key=lambda item: min(x for x, _ in item[1])))
