"""The paper's tables on LLaDA: both orders trained, and every benchmark in every setting decoded with every scheduler.

The settings are the presets of ``unmask lm-eval`` that name a table of the paper as their source. Each run is a run directory of
its own that resumes, and several processes (``accelerate launch``) share each of them. tab:math_code_gen, tab:gsm8k-hidden-policy,
tab:parallel_decoding_generalization, tab:cross_domain_transfer (the other task's order, at 256 tokens),
tab:order_learning_llm_comparison (MATH-500) and tab:ifeval_results.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from unmask.denoisers.placement import Placement
from unmask.evaluation.evaluate import Report
from unmask.evaluation.lm_eval.settings import LmEval
from unmask.report.benchmarks import BASELINE, Benchmark, compare_benchmarks, read_benchmark
from unmask.report.numbers import percent
from unmask.runs.atomic import atomic_write
from unmask.runs.names import did_you_mean
from unmask.runs.presets import list_presets, load_preset
from unmask.runs.processes import is_first
from unmask.training.cost.flops import TEXT_POLICY, shape_of
from unmask.training.cost.plan import DEVICES, peak_rate, plan
from unmask.training.cost.preflight import Work
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun
from unmask_studies.plots import plot_reports
from unmask_studies.study import Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Cell, Table, TableRow, against, solved
from unmask_studies.training_runs import ensure_run, load_recipe

ORDERS = {"gsm8k": "sas-gsm8k-llada", "mbpp": "sas-mbpp-llada"}
"""Task → the preset of its policy; other tasks are decoded with the order of GSM8K."""
HIDDEN = "sas-gsm8k-llada-hidden"
PROBLEMS = {"gsm8k": 1319, "mbpp": 500, "math500": 500, "ifeval": 541}
PROMPT = 1024
"""Tokens of a prompt that the plan assumes."""


@dataclass(frozen=True)
class LladaStudy(GridStudy, Placement):
    """``settings`` are names of presets, all that name one of the paper's tables if empty; ``data`` a folder with the benchmarks'
    files instead of the hub. ``steps`` shortens the trainings and ``limit`` the benchmarks. The plan is for ``gpus`` of the kind
    ``gpu``. ``unconfined`` runs generated code without a sandbox."""

    shared: ClassVar[bool] = True

    denoiser: str = "GSAI-ML/LLaDA-8B-Instruct"
    settings: tuple[str, ...] = ()
    schedulers: tuple[str, ...] = ("confidence", "margin", "entropy")
    data: str = ""
    limit: int | None = None
    steps: int | None = None
    batch: int = 16
    gpu: str = "h200"
    gpus: int = 4
    unconfined: bool = False

    @cached_property
    def benchmarks(self) -> dict[str, LmEval]:
        """The presets by name, for this denoiser."""
        known = {entry.name: load_preset(entry.name, LmEval, "lm_eval") for entry in list_presets("lm_eval")}
        found = {name: one for name, one in known.items() if one.source.startswith("Table")}
        if unknown := [name for name in self.settings if name not in found]:
            near = did_you_mean(unknown[0], found)
            raise ValueError(f"no setting {unknown[0]!r} of the paper: expected some of {', '.join(found)}{near}")
        chosen = {name: found[name] for name in self.settings} or found
        changes: dict[str, Any] = {
            name: getattr(self, name) for name in ("denoiser", "data", "limit", "batch", "device")
        }
        return {
            name: replace(one, **changes, dtype=self.dtype, unconfined=self.unconfined) for name, one in chosen.items()
        }

    def points(self) -> Any:
        for name, one in self.benchmarks.items():
            own = ORDERS.get(one.task, ORDERS["gsm8k"])
            other = [order for order in ORDERS.values() if order != own]
            transfer = other if one.task in ORDERS and one.answers.length == 256 and "math_code" in one.source else []
            hidden = [HIDDEN] if "hidden" in one.published else []
            yield from ((name, scheduler) for scheduler in (*self.schedulers, own, *transfer, *hidden))

    def plan(self) -> list[Table]:
        """Hours and memory for each table and for the trainings, before anything starts."""
        shape = shape_of(self.denoiser if Path(self.denoiser).exists() else "llada-8b")
        rate, device = peak_rate(DEVICES[self.gpu], 0.4), DEVICES[self.gpu]
        hours: dict[str, float] = {}
        memory: dict[str, float] = {}
        grid = self.grid()
        for name, one in self.benchmarks.items():
            length, runs = one.answers.length, sum(key[0] == name for key in grid)
            training = PolicyTraining(prompts=self.batch, decoding=one.answers.decoding_of(length))
            found = plan(shape, TEXT_POLICY, Work(PROMPT + length, (length,), training), rate, 1, device)
            problems = min(PROBLEMS[one.task], self.limit or PROBLEMS[one.task])
            hours[one.source] = hours.get(one.source, 0) + runs * problems * found.decode_seconds / 3600 / self.gpus
            memory[one.source] = max(memory.get(one.source, 0), sum(found.memory.values()))
        for order in dict.fromkeys(key[1] for key in grid if key[1] not in self.schedulers):
            recipe = self._recipe(str(order), Path())
            work = Work(PROMPT + 512, (128,), recipe.training)
            found = plan(shape, recipe.policy, work, rate, self.gpus, device)
            hours[f"training {order}"], memory[f"training {order}"] = found.hours, sum(found.memory.values())
        rows: list[TableRow] = [
            {"what": what, "hours": f"{hours[what]:.1f}", "GB on a device": f"{memory[what] / 1e9:.0f}"}
            for what in hours
        ]
        total = {
            "what": "all",
            "hours": f"{sum(hours.values()):.1f}",
            "GB on a device": f"{max(memory.values()) / 1e9:.0f}",
        }
        note = (
            f"{self.gpus} × {self.gpu} at 40 % of their peak; prompts of {PROMPT} tokens, answers of 128 in training."
        )
        return [Table.of(f"{self.denoiser}: {len(grid)} benchmark runs", [*rows, total], note)]

    def measure(self, key: Key, folder: Path) -> Result:
        from unmask.evaluation.lm_eval.run import run_lm_eval

        preset, scheduler = map(str, key)
        config, chosen = self.benchmarks[preset], scheduler
        if scheduler not in self.schedulers:
            chosen = str(ensure_run(scheduler, self._recipe(scheduler, folder), folder))
        out = folder / "runs" / f"{preset}-{scheduler}"
        answers = replace(config.answers, scheduler=chosen)
        if run_lm_eval(replace(config, answers=answers), out, resume=True) is None:
            return {}
        found = read_benchmark(out)
        return {"config": found.config, "results": found.results, "solved": list(found.solved.items())}

    def _recipe(self, preset: str, folder: Path) -> PolicyRun:
        """A policy's training on the benchmark's own training split, which is written into the study's folder."""
        config = load_recipe(preset, steps=self.steps, denoiser=self.denoiser)
        task = "mbpp" if "mbpp" in preset else "gsm8k"
        file = folder / "runs" / f"{task}-train.jsonl"
        data = config.data.with_file(str(file))
        if self.limit is not None:
            training = replace(config.training, validate=min(config.training.validate, self.limit))
            config = replace(config, training=training)
        if folder != Path() and is_first() and not file.exists():
            from unmask.evaluation.lm_eval.examples import benchmark_examples

            file.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(one) for one in benchmark_examples(task, self.data or None)]
            atomic_write(file, ("\n".join(lines) + "\n").encode())
        return replace(config, data=data, dtype=self.dtype, device=self.device)

    def findings(self, results: Results) -> Findings:
        tables: list[Table] = []
        reports: list[Report] = []
        for source in dict.fromkeys(one.source for one in self.benchmarks.values()):
            runs = [
                Benchmark(found["config"], found["results"], {int(doc): bool(right) for doc, right in found["solved"]})
                for (name, _), found in results.items()
                if self.benchmarks[str(name)].source == source
            ]
            for report in compare_benchmarks(runs):
                tables.append(_table(source.removeprefix("Table "), report))
                reports.append(report)
        panels = {
            f"{report.task}, {decoding}": replace(report, rows=[row for row in report.rows if row.decoding == decoding])
            for report in reports
            for decoding in dict.fromkeys(row.decoding for row in report.rows)
        }
        return Findings(tables, {"llada": plot_reports(panels)}, reports)


def _table(label: str, report: Report) -> Table:
    rows: list[TableRow] = []
    for row in report.rows:
        base = next((one for one in report.rows if (one.scheduler, one.decoding) == (BASELINE, row.decoding)), None)
        rows.append(
            {
                "decoding": row.decoding,
                "scheduler": row.scheduler,
                "solved, %": Cell(solved(row)),
                "paper, %": "" if row.published is None else percent(row.published),
                f"against {BASELINE}": "" if base is None or base is row else against(row, base),
                "calls": f"{row.denoiser_calls:.1f}",
                "seconds": f"{row.seconds / row.n:.2f}",
            }
        )
    note = (
        "Differences are paired, bold where the 95 % interval excludes 0. The paper's numbers are of its own settings."
    )
    return Table.of(f"{label}: {report.source}, {report.denoiser}, n = {report.n:,}", rows, note)
