"""A report as one HTML page that needs nothing else: tables, figures as SVG, and the viewer with the cases worth a look.

Everything goes through jinja's escaping; figures and the page's own style are the only markup that is passed through.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from unmask.evaluation.evaluate import Report
from unmask.report.gather import Inputs, gather
from unmask.report.tables import table
from unmask.runs.atomic import atomic_write

HERE = Path(__file__).parent


def write(inputs: Sequence[Path], out: Path, title: str | None = None, command: str | None = None) -> None:
    """Read evaluations, runs and traces, and write the page."""
    atomic_write(out, render(gather(inputs), title, command).encode())


def render(inputs: Inputs, title: str | None = None, command: str | None = None) -> str:
    """The page. ``command`` is the line that made it, if there is one."""
    # Here, because matplotlib takes a while to import, and a table in a notebook needs none.
    from unmask.report import sections
    from unmask.report import trace_sections as traced

    training, traces = sections.training(inputs.trainings), traced.traces(inputs.traces)
    shown = [case for group in traces["cases"] for case in group["cases"]] if traces else []
    evaluations = [sections.evaluation(one, nth, shown) for nth, one in enumerate(inputs.evaluations, 1)]
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=title or _title(inputs),
            evaluations=evaluations,
            training=training,
            traces=traces,
            studies=inputs.studies,
            command=command,
        )
    )


def table_html(report: Report) -> str:
    """The headline table by itself: what a notebook shows of a report."""
    what = f"{report.denoiser} on {report.source}, n = {report.n:,}, 95 % intervals"
    return _templates().get_template("page_table.html").render(table=table(report), caption=what)


def _title(inputs: Inputs) -> str:
    if inputs.evaluations:
        names = dict.fromkeys(one.report.denoiser for one in inputs.evaluations)
        return f"Orders of thought: {', '.join(names)}"
    return "Learning an order" if inputs.trainings else "The order of thought"


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters["drawn"] = Markup  # for the figures that this package draws
    return templates
