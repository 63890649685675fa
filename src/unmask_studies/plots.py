"""Figures that several studies share, as panels of reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unmask.evaluation.evaluate import Report
from unmask.report import figures
from unmask_studies.reports import find_leader
from unmask_studies.tables import PaperNumbers, label, limits


def plot_schedulers(reports: Sequence[Report], paper: PaperNumbers) -> Any:
    """A panel per report: what each scheduler solves."""
    return plot_reports({f"{report.denoiser}\n{report.source}": report for report in reports}, paper)


def plot_reports(
    panels: Mapping[str, Report], paper: PaperNumbers | None = None, name: Callable[[str], str] = label
) -> Any:
    """A panel per report, a point per scheduler, called by ``name``; strong where it leads."""
    shown = {}
    for title, report in panels.items():
        leader = find_leader(report)
        shown[title] = [
            figures.share(
                name(row.scheduler),
                limits(row),
                row.scheduler == leader,
                (paper or {}).get(row.scheduler, (None,))[0],
            )
            for row in report.rows
        ]
    return figures.intervals(shown, "solved, %")
