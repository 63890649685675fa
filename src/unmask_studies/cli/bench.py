"""``unmask bench``: what decoding and learning cost, as ratios measured side by side."""

from __future__ import annotations

import json as json_text
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from unmask.cli.shell import console, require_writable
from unmask.runs.atomic import atomic_write
from unmask.runs.jsonable import to_jsonable
from unmask.runs.names import did_you_mean
from unmask_studies.bench.measuring import Finding
from unmask_studies.bench.suite import SUITE, machine


def bench(name: str = "all", /, quick: bool = False, json: Path | None = None) -> None:
    """Measure what decoding and learning cost. Ratios of CPU time, taken in turns, so that a busy machine does little harm.

    $ unmask bench --quick
    $ unmask bench policy-cost
    $ unmask bench caches --json caches.json

    Args:
        name: caches (what they save and cost), policy-cost (what a learned order adds to decoding), decoding (against the published
            loops), learning (against recomputed and free rollouts), throughput (against a matrix product), growth (with length,
            vocabulary, batch and group), processes (two against one, wall time: on idle cores), or all.
        quick: Small sizes, for a look: its numbers are not results.
        json: Also write everything to this file, with versions and settings.
    """
    if name not in ("all", *SUITE):
        raise ValueError(f"no benchmark {name!r}: expected all, {', '.join(SUITE)}{did_you_mean(name, SUITE)}")
    if json is not None:
        require_writable(json)
    results: dict[str, Any] = {}
    for title in SUITE if name == "all" else (name,):
        run, full, small = SUITE[title]
        settings = small if quick else full
        findings = list(run(settings))
        results[title] = {"settings": to_jsonable(settings), "findings": [asdict(finding) for finding in findings]}
        console.print(_table(title, findings))
    if json is not None:
        content = {
            "command": shlex.join(["unmask", *sys.argv[1:]]),
            "quick": quick,
            "machine": machine(),
            "benchmarks": results,
        }
        atomic_write(json, (json_text.dumps(content, indent=1) + "\n").encode())


def _table(title: str, findings: Sequence[Finding]) -> Table:
    table = Table(title=title)
    for column in ("what", "value", "limits", "n"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for f in findings:
        limits = "" if f.low is None or f.high is None else f"{f.low:.3g} to {f.high:.3g} ({f.limits})"
        table.add_row(f.what, f"{f.value:.3g} {f.unit}", limits, str(f.n) if f.limits or f.n > 1 else "")
    return table
