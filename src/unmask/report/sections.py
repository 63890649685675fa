"""The sections of a report on evaluations and training runs, as plain data for its template: figures drawn, numbers formatted."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from unmask.evaluation.evaluate import Report
from unmask.report import cases, figures, numbers
from unmask.report.figures import Bar
from unmask.report.gather import Evaluation, Training
from unmask.report.tables import better, differs, lead, name_of, pairs, table
from unmask.tasks.sudoku.techniques import TECHNIQUES

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
LEAST_STRATUM = 10  # below, an interval says little: in the table only


def evaluation(evaluated: Evaluation, nth: int, shown: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """One evaluation: the headline, intervals, pairs, strata, and how to do it again. ``shown`` are the cases in the viewer."""
    report, several = evaluated.report, len({row.decoding for row in evaluated.report.rows}) > 1
    solved = [
        Bar(name_of(row, several), 100 * row.exact, 100 * row.exact_low, 100 * row.exact_high, better(row))
        for row in report.rows
    ]
    against = [
        Bar(name_of(row, several), 100 * v.difference, 100 * v.low, 100 * v.high, differs(row))
        for row in report.rows
        if (v := row.versus) is not None
    ]
    what = f"{report.denoiser} on {report.source}"
    return {
        "id": f"evaluation-{nth}",
        "title": what,
        "note": f"{report.n:,} problems, seed {report.seed}, 95 % intervals",
        "lead": lead(report),
        "table": table(report),
        "solved": figures.intervals(f"solved-{nth}", solved, "solved, %", f"Share of problems solved, {what}"),
        "against": against
        and figures.intervals(
            f"against-{nth}", against, "difference in pairs, points", f"Paired differences, {what}", zero=True
        ),
        "pairs": pairs(report),
        "cases": _cases(report, shown),
        "strata": _strata(report, nth),
        "command": evaluated.command,
    }


def _cases(report: Report, shown: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Problems that two orders decide otherwise, those in the viewer first: each with its number, and its case or None."""
    traced = {
        (denoiser, case["problem"]): case["number"] for case in shown for denoiser in case["denoiser"].split(", ")
    }
    out = []
    for decoding in dict.fromkeys(row.decoding for row in report.rows):
        order, base = cases.compared(report, decoding)
        if order is base:
            continue
        lists = []
        for kind, rows in cases.kinds(order, base).items():
            numbered = [
                {"number": row + 1, "case": traced.get((report.denoiser, cases.problem_name(report.source, row)))}
                for row in rows
            ]
            first = sorted(numbered, key=lambda one: one["case"] is None)[:MOST_LISTED]
            lists.append({"kind": kind, "count": len(rows), "problems": sorted(first, key=lambda one: one["number"])})
        several = len({row.decoding for row in report.rows}) > 1
        out.append({"order": name_of(order, several), "base": base.scheduler, "lists": lists})
    return out


def _strata(report: Report, nth: int) -> dict[str, Any] | None:
    first, several = report.rows[0], len({row.decoding for row in report.rows}) > 1
    known = ("full", *TECHNIQUES)
    labels = sorted(first.strata, key=lambda label: known.index(label) if label in known else len(known))
    if len(labels) < 2 or any(set(row.strata) != set(first.strata) for row in report.rows):
        return None
    titles = {label: f"{label.replace('_', ' ')} (n = {first.strata[label].n})" for label in labels}
    groups = {
        titles[label]: [
            Bar(name_of(row, several), 100 * s.exact, 100 * s.exact_low, 100 * s.exact_high)
            for row in report.rows
            for s in [row.strata[label]]
        ]
        for label in labels
        if first.strata[label].n >= LEAST_STRATUM
    }
    label = "Share of problems solved by stratum"
    return {
        "figure": figures.grouped(f"strata-{nth}", groups, "solved, %", label) if groups else None,
        "left_out": [titles[label] for label in labels if titles[label] not in groups],
        "labels": list(titles.values()),
        "rows": [
            (name_of(row, several), [numbers.percent(row.strata[label].exact) for label in labels])
            for row in report.rows
        ],
    }


def training(runs: Sequence[Training]) -> dict[str, Any] | None:
    """Curves of all runs over each other, and where each one ended. Orders and denoisers are learned from different losses."""
    if not runs:
        return None
    named = dict(zip(_distinct([run.name for run in runs]), runs, strict=True))
    kinds = {
        "orders": {name: run for name, run in named.items() if _points(run, "return")},
        "denoisers": {name: run for name, run in named.items() if not _points(run, "return")},
    }
    return {
        "figures": [drawn for kind, some in kinds.items() if (drawn := _curves(kind, some))],
        "ends": [_end(name, run) for name, run in named.items()],
        "configs": [_config(name, run) for name, run in named.items()],
    }


def _curves(kind: str, runs: dict[str, Training]) -> dict[str, str] | None:
    panels = {}
    for key, title in QUANTITIES.items():
        if lines := {name: points for name, run in runs.items() if (points := _points(run, key))}:
            panels[title] = lines
    what = {"orders": "Learning an order", "denoisers": "Training a denoiser"}[kind]
    names = ", ".join(runs)
    return (
        {"title": what, "names": names, "svg": figures.curves(f"curves-{kind}", panels, "training step", what)}
        if panels
        else None
    )


def _end(name: str, run: Training) -> dict[str, str]:
    accuracy, seconds = ([y for _, y in _points(run, key)] for key in ("accuracy", "seconds"))
    returns = _points(run, "return")
    return {
        "name": name,
        "steps": f"{run.metrics[-1].get('step', len(run.metrics)):,}" if run.metrics else "0",
        "accuracy": numbers.percent(max(accuracy)) if accuracy else "",
        "return": numbers.number(returns[-1][1]) if returns else "",
        "minutes": f"{sum(seconds) / 60:.1f}" if seconds else "",
    }


def _points(run: Training, key: str) -> list[tuple[float, float]]:
    values = [(record.get("step", nth), record.get(key)) for nth, record in enumerate(run.metrics)]
    numbers = [(x, y) for x, y in values if isinstance(x, int | float) and isinstance(y, int | float)]
    return [(float(x), float(y)) for x, y in numbers if math.isfinite(x) and math.isfinite(y)]


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
    """A configuration as the preset that gives it again: JSON's texts and numbers are TOML's; what is null keeps its default."""
    lines = [f"{key} = {json.dumps(v)}" for key, v in config.items() if v is not None and not isinstance(v, dict)]
    tables = [
        f"\n[{place}{key}]\n{as_toml(value, f'{place}{key}.')}"
        for key, value in config.items()
        if isinstance(value, dict)
    ]
    return "\n".join([*lines, *tables])
