"""``unmask bench``: what decoding and learning cost, as ratios measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from tyro.conf import Positional

from unmask.cli.shell import console, quote_command, require_writable, write_json
from unmask.runs.jsonable import to_jsonable
from unmask.runs.names import did_you_mean
from unmask_studies.bench.measuring import Finding
from unmask_studies.bench.suite import SUITE, machine


@dataclass(frozen=True)
class Bench:
    """Measure what decoding and learning cost. Ratios of CPU time, measured alternately, so that a busy machine does little harm.

    $ unmask bench --quick
    $ unmask bench policy-cost
    $ unmask bench caches --json caches.json
    $ unmask bench drafts --denoiser models/rxnmapper --task reaction --data reactions.csv
    """

    name: Positional[str] = "all"
    """caches (what they save and cost), policy-cost (what a learned policy adds to decoding), decoding (against published loops),
    drafts (sequential steps, canvases and time), learning (against recomputed and free rollouts), throughput (against a matrix
    product), growth (with length, vocabulary, batch and group), processes (two against one, wall time: on idle cores), or all."""
    quick: bool = False  # Small sizes, for a look: its numbers are not results.
    denoiser: str | None = None  # For drafts: this one, on problems of --task and --data, instead of those that ship.
    task: str | None = None  # The kind of its problems.
    data: Path | None = None  # The file of its problems, where the task reads one.
    json: Path | None = None  # Also write everything to this file, with versions and settings.

    def run(self) -> None:
        if self.name not in ("all", *SUITE):
            near = did_you_mean(self.name, SUITE)
            raise ValueError(f"no benchmark {self.name!r}: expected all, {', '.join(SUITE)}{near}")
        if (self.denoiser, self.task) != (None, None) and (self.name != "drafts" or not (self.denoiser and self.task)):
            raise ValueError(
                "--denoiser and --task go together, with the benchmark drafts alone: leave them out, or name both"
            )
        if self.json is not None:
            require_writable(self.json)
        results: dict[str, Any] = {}
        for title in SUITE if self.name == "all" else (self.name,):
            measure, full, small = SUITE[title]
            settings = small if self.quick else full
            if self.denoiser and self.task:
                settings = replace(settings, denoisers=(self.denoiser,), task=self.task, data=self.data)
            findings = list(measure(settings))
            results[title] = {"settings": to_jsonable(settings), "findings": [asdict(finding) for finding in findings]}
            console.print(_table(title, findings))
        if self.json is not None:
            content = {"command": quote_command(), "quick": self.quick, "machine": machine(), "benchmarks": results}
            write_json(self.json, content)


def _table(title: str, findings: Sequence[Finding]) -> Table:
    table = Table(title=title)
    for column in ("what", "value", "limits", "n"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for f in findings:
        limits = "" if f.low is None or f.high is None else f"{f.low:.3g} to {f.high:.3g} ({f.limits})"
        table.add_row(f.what, f"{f.value:.3g} {f.unit}", limits, str(f.n) if f.limits or f.n > 1 else "")
    return table
