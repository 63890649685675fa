"""Lengths and blocks (tab:math_code_gen): one policy, trained at the longest length in any order, in every other decoding.

L–B: a generation of L tokens in blocks of B from the left; L–L is any order. Left to right does not depend on blocks: it is
measured once for each length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask.decoding.options import Decoding
from unmask.evaluation.evaluate import Report
from unmask.report import figures
from unmask.report.numbers import number, percent
from unmask.report.tables import is_oracle
from unmask_studies import paper_numbers
from unmask_studies.reports import find_leader, join_reports
from unmask_studies.study import Findings, Key, Result, Results
from unmask_studies.tables import BOLD, LEARNED, Cell, Table, TableRow, against, label, limits, solved
from unmask_studies.text.study import Models, TextStudy, block_sizes, kind_of, policy_of

READING = "left_to_right"
PAPER_BLOCKS = (1, 4, 8)
"""At each of its three lengths."""
Reports = Mapping[tuple[int, int], Report]
"""By L and B."""


@dataclass(frozen=True)
class Lengths(TextStudy):
    """All lengths of the ``tasks`` × numbers of ``blocks`` × ``schedulers`` and the learned policy."""

    tasks: tuple[str, ...] = ("arithmetic", "code")
    blocks: tuple[int, ...] = (1, 4, 8)
    schedulers: tuple[str, ...] = (READING, "confidence", "margin", "entropy", "gt_margin")
    baseline: str = "confidence"

    def __post_init__(self) -> None:
        for task in self.tasks:
            for length in kind_of(task).lengths:
                block_sizes(task, self.blocks, length)
        if {READING, self.baseline} - set(self.schedulers):
            given = ", ".join(self.schedulers)
            raise ValueError(f"schedulers must have {READING} and the baseline {self.baseline!r}, got {given}")

    def needs(self) -> tuple[Sequence[str], Sequence[str]]:
        return self.tasks, [policy_of(task) for task in self.tasks]

    @property
    def rows(self) -> tuple[str, ...]:
        return (*self.schedulers, LEARNED)

    def decodings(self, task: str) -> list[tuple[int, int]]:
        """L and B of each decoding, any order first at each length."""
        return [(length, length // count) for length in kind_of(task).lengths for count in self.blocks]

    def points(self) -> Iterator[Key]:
        for task in self.tasks:
            for length, block in self.decodings(task):
                for row in self.rows:
                    if row != READING or block == length:
                        yield task, length, block, row

    def measure_with(self, models: Models, *key: Any) -> Result:
        task, length, block, scheduler = key
        decoding = Decoding(block=None if block == length else block)
        return models.evaluate(task, scheduler, decoding, self.sets.problems(task, length))

    def findings(self, results: Results) -> Findings:
        tables, panels, evaluations = [], {}, []
        for task in self.tasks:
            reports = {pair: self._report(task, *pair, results) for pair in self.decodings(task)}
            evaluations += reports.values()
            tables += [self._accuracies(task, reports), self._gains(task, reports)]
            panels[task] = {
                label(name): [figures.share(_name(pair), limits(report.row(name))) for pair, report in reports.items()]
                for name in self.rows
            }
        figure = figures.lines(panels, "length–block", ["solved, %"] * len(panels))
        return Findings(tables, {"lengths": figure}, evaluations)

    def _report(self, task: str, length: int, block: int, results: Results) -> Report:
        keys = [(task, length, length if row == READING else block, row) for row in self.rows]
        report = join_reports([results[key] for key in keys], self.baseline)
        return replace(report, rows=[replace(row, decoding=_name((length, block))) for row in report.rows])

    def _accuracies(self, task: str, reports: Reports) -> Table:
        leaders = {pair: find_leader(report) for pair, report in reports.items()}
        rows: list[TableRow] = []
        for name in self.rows:
            shares = {
                _name(pair): Cell(solved(report.row(name)), name == leaders[pair]) for pair, report in reports.items()
            }
            rows.append({"scheduler": label(name), **shares})
        one = next(iter(reports.values()))
        title = f"{task}: solved %, on {one.n:,} problems of the test split, seed {one.seed}"
        return Table.of(title, rows, f"{BOLD} The learned policy is the same in all columns.")

    def _gains(self, task: str, reports: Reports) -> Table:
        paper = paper_numbers.MATH_CODE.get(task, {}) if self.blocks == PAPER_BLOCKS else {}
        rows: list[TableRow] = []
        for nth, (pair, report) in enumerate(reports.items()):
            learned, reading = report.row(LEARNED), report.row(READING)
            names = [row.scheduler for row in report.rows if not is_oracle(row.scheduler)]
            heuristics = [report.row(name) for name in names if name not in (LEARNED, READING)]
            best = max(heuristics, key=lambda row: row.exact)
            theirs = [values[nth] for scheduler, values in paper.items() if scheduler != "sas"]
            rows.append(
                {
                    "length–block": _name(pair),
                    "best heuristic, %": f"{best.scheduler} {percent(best.exact)}",
                    "learned, %": percent(learned.exact),
                    "learned against heuristic, paired": against(learned, best),
                    "paper's": number(100 * (paper["sas"][nth] - max(theirs)), 1, signed=True) if paper else "",
                    "left to right, %": percent(reading.exact),
                    "learned against left to right, paired": against(learned, reading),
                    "calls, heuristic": f"{best.denoiser_calls:.1f}",
                    "calls, learned": f"{learned.denoiser_calls:.1f}",
                }
            )
        note = (
            "The best heuristic is chosen on the same problems, which favours it. Bold: the paired 95 % interval excludes 0. "
            "The paper's differences are LLaDA-8B's on GSM8K (arithmetic) and MBPP (code), 128, 256 and 512 tokens in 1, 4 and 8 "
            "blocks. Calls: canvases through the denoiser per problem."
        )
        return Table.of(f"{task}: the learned policy against the best heuristic, and left to right", rows, note)


def _name(pair: tuple[int, int]) -> str:
    return f"{pair[0]}–{pair[1]}"
