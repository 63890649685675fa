"""A report as one self-contained HTML page: tables, figures as SVG, and the viewer with a few informative cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unmask.evaluation.evaluate import Report
from unmask.report import templates
from unmask.report.gather import Inputs, gather
from unmask.report.tables import table
from unmask.runs.atomic import atomic_write


def write(inputs: Sequence[Path], out: Path, title: str | None = None, command: str | None = None) -> None:
    """Read evaluations, runs and traces, and write the page."""
    atomic_write(out, render(gather(inputs), title, command).encode())


def render(inputs: Inputs, title: str | None = None, command: str | None = None) -> str:
    """The page. ``command`` is the command line that wrote it, if there is one."""
    # Imported here, since matplotlib is slow to import and a table in a notebook needs none.
    from unmask.report import sections, trace_sections

    training, traces = sections.training(inputs.trainings), trace_sections.traces(inputs.traces)
    shown = [case for group in traces["cases"] for case in group["cases"]] if traces else []
    evaluations = [sections.evaluation(one, nth, shown) for nth, one in enumerate(inputs.evaluations, 1)]
    return templates.render(
        "page.html",
        title=title or _title(inputs),
        evaluations=evaluations,
        training=training,
        traces=traces,
        studies=inputs.studies,
        command=command,
    )


def table_html(report: Report) -> str:
    """The headline table by itself: what a notebook shows of a report."""
    what = f"{report.denoiser} on {report.source}, n = {report.n:,}, 95 % intervals"
    return templates.render("page_table.html", table=table(report), caption=what)


def _title(inputs: Inputs) -> str:
    if inputs.evaluations:
        names = dict.fromkeys(one.report.denoiser for one in inputs.evaluations)
        return f"Orders of thought: {', '.join(names)}"
    return "Learning an order" if inputs.trainings else "The order of thought"
