"""The sections of a report on evaluations and training runs, as plain data for its template."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from unmask.evaluation.evaluate import Report, Stratum
from unmask.report import cases, figures, numbers
from unmask.report.figures import Point, share
from unmask.report.gather import Evaluation, Training
from unmask.report.svg import inline_svg
from unmask.report.tables import differs, is_better, lead, name_of, pairs, sort_strata, table

QUANTITIES = {
    "return": "return, nats",
    "accuracy": "validation accuracy",
    "entropy": "entropy of the order",
    "agreement": "agreement with confidence",
    "wrong_reveals": "wrong reveals per problem",
    "loss": "loss",
    "token_accuracy": "hidden tokens guessed",
}
MOST_LISTED = 8
LEAST_STRATUM = 10  # smaller ones are in the table only


def evaluation(evaluated: Evaluation, nth: int, shown: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """One evaluation: the headline, intervals, pairs, strata, and its command. ``shown`` are the cases in the viewer."""
    report = evaluated.report
    several = _has_several_decodings(report)
    solved = [
        share(name_of(row, several), (row.exact, row.exact_low, row.exact_high), is_better(row)) for row in report.rows
    ]
    against = [
        share(name_of(row, several), (v.difference, v.low, v.high), differs(row))
        for row in report.rows
        if (v := row.versus) is not None
    ]
    title = f"{report.denoiser} on {report.source}"
    return {
        "id": f"evaluation-{nth}",
        "title": title,
        "note": f"{report.n:,} problems, seed {report.seed}, 95 % intervals",
        "lead": lead(report),
        "table": table(report),
        "solved": inline_svg(
            figures.intervals({"": solved}, "solved, %", theme="page"),
            f"solved-{nth}",
            f"Share of problems solved, {title}",
        ),
        "against": against
        and inline_svg(
            figures.intervals({"": against}, "paired difference, points", zero=True, theme="page"),
            f"against-{nth}",
            f"Paired differences, {title}",
        ),
        "pairs": pairs(report),
        "cases": _cases(report, shown),
        "strata": _strata(report, nth),
        "command": evaluated.command,
    }


def _has_several_decodings(report: Report) -> bool:
    return len({row.decoding for row in report.rows}) > 1


def _cases(report: Report, shown: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Problems on which two schedulers differ, those in the viewer first: each with its number, and its case or None."""
    traced = {
        (denoiser, case["problem"]): case["number"] for case in shown for denoiser in case["denoiser"].split(", ")
    }
    out = []
    for decoding in dict.fromkeys(row.decoding for row in report.rows):
        row, base = cases.select_pair(report, decoding)
        if row is base:
            continue
        lists = []
        for outcome, problems in cases.group_by_outcome(row, base).items():
            numbered = [
                {"number": nth + 1, "case": traced.get((report.denoiser, cases.problem_name(report.source, nth)))}
                for nth in problems
            ]
            first = sorted(numbered, key=lambda one: one["case"] is None)[:MOST_LISTED]
            by_number = sorted(first, key=lambda one: one["number"])
            lists.append({"outcome": outcome, "count": len(problems), "problems": by_number})
        name = name_of(row, _has_several_decodings(report))
        out.append({"scheduler": name, "base": base.scheduler, "lists": lists})
    return out


def _strata(report: Report, nth: int) -> dict[str, Any] | None:
    strata, several = report.rows[0].strata, _has_several_decodings(report)
    if len(strata) < 2 or any(set(row.strata) != set(strata) for row in report.rows):
        return None
    labels = sort_strata(strata)
    titles = {label: f"{label.replace('_', ' ')} (n = {strata[label].n})" for label in labels}
    groups = {
        titles[label]: [_stratum_point(name_of(row, several), row.strata[label]) for row in report.rows]
        for label in labels
        if strata[label].n >= LEAST_STRATUM
    }
    figure = figures.grouped(groups, "solved, %", theme="page") if groups else None
    return {
        "figure": figure and inline_svg(figure, f"strata-{nth}", "Share of problems solved by stratum"),
        "left_out": [title for title in titles.values() if title not in groups],
        "labels": list(titles.values()),
        "rows": [
            (name_of(row, several), [numbers.percent(row.strata[label].exact) for label in labels])
            for row in report.rows
        ],
    }


def _stratum_point(name: str, stratum: Stratum) -> Point:
    return share(name, (stratum.exact, stratum.exact_low, stratum.exact_high))


def training(runs: Sequence[Training]) -> dict[str, Any] | None:
    """Curves of all runs, and where each one ended. Policies and denoisers have different losses, so they get figures apart."""
    if not runs:
        return None
    named = dict(zip(_distinct([run.name for run in runs]), runs, strict=True))
    policies = {name: run for name, run in named.items() if _points(run, "return")}
    denoisers = {name: run for name, run in named.items() if name not in policies}
    curves = [
        _curves("orders", "Learning an order", policies),
        _curves("denoisers", "Training a denoiser", denoisers),
    ]
    return {
        "figures": [figure for figure in curves if figure is not None],
        "ends": [_end(name, run) for name, run in named.items()],
        "configs": [_config(name, run) for name, run in named.items()],
    }


def _curves(kind: str, title: str, runs: dict[str, Training]) -> dict[str, str] | None:
    panels = {}
    for key, quantity in QUANTITIES.items():
        series = {name: points for name, run in runs.items() if (points := _points(run, key))}
        if series:
            panels[quantity] = series
    if not panels:
        return None
    svg = inline_svg(figures.progress(panels, "training step", theme="page"), f"curves-{kind}", title)
    return {"title": title, "names": ", ".join(runs), "svg": svg}


def _end(name: str, run: Training) -> dict[str, str]:
    accuracy, seconds = ([point.value for _, point in _points(run, key)] for key in ("accuracy", "seconds"))
    returns = _points(run, "return")
    return {
        "name": name,
        "steps": f"{run.metrics[-1].get('step', len(run.metrics)):,}" if run.metrics else "0",
        "accuracy": numbers.percent(max(accuracy)) if accuracy else "",
        "return": numbers.number(returns[-1][1].value) if returns else "",
        "minutes": f"{sum(seconds) / 60:.1f}" if seconds else "",
    }


def _points(run: Training, key: str) -> list[tuple[float, Point]]:
    values = [(record.get("step", nth), record.get(key)) for nth, record in enumerate(run.metrics)]
    numeric = [(float(x), float(y)) for x, y in values if isinstance(x, int | float) and isinstance(y, int | float)]
    return [(x, Point("", y, y, y)) for x, y in numeric if math.isfinite(x) and math.isfinite(y)]


def _distinct(names: Sequence[str]) -> list[str]:
    seen: Counter[str] = Counter()
    out = []
    for name in names:
        seen[name] += 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def _config(name: str, run: Training) -> dict[str, Any]:
    command = "train" if "policy" in run.config else "pretrain" if "model" in run.config else None
    versions = [
        f"{key} {value}" for key, value in run.versions.items() if isinstance(value, str | int) and key != "edited"
    ]
    return {
        "name": name,
        "toml": as_toml(run.config),
        "command": command and f"unmask {command} --preset config.toml --out again",
        "versions": ", ".join(versions),
    }


def as_toml(config: dict[str, Any], place: str = "") -> str:
    """A configuration as a preset that reproduces it: JSON's texts and numbers are TOML's; null keeps its default."""
    lines = [f"{key} = {json.dumps(v)}" for key, v in config.items() if v is not None and not isinstance(v, dict)]
    tables = [
        f"\n[{place}{key}]\n{as_toml(value, f'{place}{key}.')}"
        for key, value in config.items()
        if isinstance(value, dict)
    ]
    return "\n".join([*lines, *tables])
