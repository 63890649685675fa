"""Benchmark runs (``unmask lm-eval``) put together: those on the same problems become one evaluation, a row for each run.

Of the task's main metric. A row is a scheduler in a decoding L–B–T; the published number stands in it only where the run had the
settings that the number is of (``results.json`` says which numbers those are).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.decoding.options import Decoding
from unmask.evaluation.evaluate import Measurement, Report, Versus, make_row
from unmask.report.cases import is_learned
from unmask.report.stored import parse

BASELINE = "confidence"
DEFAULTS = {option.name: option.default for option in fields(Decoding)}
NAMED_APART = ("block", "steps", "pace", "end_floor", "stop_at_end")
"""Decoding options that a name like 256-64 shows, and those that presets set for every task."""


@dataclass(frozen=True)
class Benchmark:
    """One run: its results, and for each problem whether it was solved."""

    config: dict[str, Any]
    results: dict[str, Any]
    solved: dict[int, bool]

    @property
    def answers(self) -> dict[str, Any]:
        return self.results["model"]["answers"]

    @property
    def scheduler(self) -> str:
        """Its name, or for a learned policy the name of its run."""
        name = self.answers["scheduler"]
        return Path(name).name if is_learned(name) else name

    @property
    def decoding(self) -> str:
        """L–B–T, as presets are named, and what else is not the default."""
        options = self.answers["decoding"]
        parts = [self.answers["length"], options["block"] or "any", *([options["steps"]] if options["steps"] else [])]
        others = {name: value for name, value in options.items() if name not in NAMED_APART}
        more = [f"{name} {value}" for name, value in others.items() if value != DEFAULTS.get(name)]
        pace = [options["pace"]] if options["pace"] != "top" else []
        return ", ".join(["-".join(map(str, parts)), *pace, *more])

    @property
    def group(self) -> tuple[Any, ...]:
        """What runs must have in common to be compared problem by problem."""
        results, prompts = self.results, [self.config.get(key) for key in ("chat", "multiturn")]
        return (results["task"], results["model"]["denoiser"], results["shots"], *prompts, tuple(sorted(self.solved)))


def published_key(scheduler: str) -> str:
    """The name that a paper's table has for a scheduler: a learned policy is ``sas``, one that reads hidden states ``hidden``."""
    if not is_learned(scheduler):
        return scheduler
    for place in (Path(scheduler) / "policy" / "config.json", Path(scheduler) / "config.json"):
        if place.is_file() and parse(place.read_bytes()).get("kind") == "hidden":
            return "hidden"
    return "sas"


def is_benchmark(folder: Path) -> bool:
    return (folder / "results.json").is_file() and (folder / "scores.jsonl").is_file()


def read_benchmark(folder: Path) -> Benchmark:
    """The run in a folder, as ``unmask lm-eval`` wrote it."""
    try:
        config, results = (parse((folder / f"{name}.json").read_bytes()) for name in ("config", "results"))
        metric, _, reading = results["main"].partition(",")
        scores = [parse(line) for line in (folder / "scores.jsonl").read_bytes().splitlines()]
        solved = {int(one["doc"]): bool(one[metric]) for one in scores if (one["filter"] or "none") == reading}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder}: expected the results of unmask lm-eval, but {error} is missing") from None
    if not solved:
        raise ValueError(f"{folder}: scores.jsonl has no problem with the metric {results['main']}")
    return Benchmark(config, results, solved)


def compare_benchmarks(runs: Sequence[Benchmark]) -> list[Report]:
    """An evaluation for each group of runs on the same problems; each row is compared with confidence in the same decoding."""
    groups: dict[tuple[Any, ...], list[Benchmark]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    return [_report(group) for group in groups.values()]


def _report(runs: Sequence[Benchmark]) -> Report:
    measured = [(run, _measurement(run)) for run in runs]
    baselines = {run.decoding: found for run, found in measured if run.scheduler == BASELINE}
    rows = []
    for run, found in measured:
        reference = baselines.get(run.decoding)
        other = None if reference is None or found is reference else reference
        versus = None if other is None else Versus.of(BASELINE, found.exact, other.exact)
        row = make_row(run.scheduler, run.decoding, found, versus, [run.results["task"]] * len(found.exact))
        number = run.results["published"].get(published_key(run.answers["scheduler"]))
        rows.append(replace(row, published=number))
    task, model = runs[0].results["task"], runs[0].results["model"]
    source = f"{task}, {runs[0].results['shots']}-shot"
    return Report(task, source, model["denoiser"], len(runs[0].solved), runs[0].answers["seed"], rows)


def _measurement(run: Benchmark) -> Measurement:
    exact = np.array([run.solved[doc] for doc in sorted(run.solved)])
    cost, n = run.results["model"]["cost"], len(exact)
    steps = np.full(n, round(cost["steps"] / n), dtype=np.int64)
    unknown = np.full(n, np.nan)
    return Measurement(exact, exact.astype(np.float64), unknown, steps, round(cost["denoiser_calls"]), cost["seconds"])
