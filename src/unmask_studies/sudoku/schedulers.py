"""The table of schedulers (tab:sudoku): what each solves, on imperfect and good denoisers, generated and given puzzles."""

from __future__ import annotations

from dataclasses import dataclass

from unmask_studies import paper_numbers
from unmask_studies.plots import plot_schedulers
from unmask_studies.study import Findings, Results
from unmask_studies.sudoku.grids import EvaluationStudy
from unmask_studies.tables import scheduler_table


@dataclass(frozen=True)
class SudokuSchedulers(EvaluationStudy):
    """Denoisers × problem sets × schedulers."""

    schedulers: tuple[str, ...] = (*EvaluationStudy.schedulers, "gt_logp")

    def findings(self, results: Results) -> Findings:
        reports = [self.report(results, denoiser, name) for denoiser in self.denoisers for name in self.problems]
        paper = paper_numbers.SUDOKU.get(self.sets.size, {})
        tables = [scheduler_table(report, paper) for report in reports]
        return Findings(tables, {"schedulers": plot_schedulers(reports, paper)}, reports)
