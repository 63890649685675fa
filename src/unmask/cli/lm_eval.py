"""``unmask lm-eval``: a benchmark of lm-eval with any scheduler and decoding, from a preset, as a run that can be resumed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from tyro.conf import OmitArgPrefixes

from unmask.cli.shell import FIRST, console, find_option, progress_bar, require_new_folder, with_config
from unmask.evaluation.lm_eval.settings import AnswerOptions
from unmask.evaluation.lm_eval.settings import LmEval as Config
from unmask.generation.generate import Generation
from unmask.report.benchmarks import published_key
from unmask.report.terminal.text import Pieces
from unmask.report.traces import record as trace
from unmask.report.traces.text import trace_texts
from unmask.runs.presets import load_preset
from unmask.runs.processes import count_processes

PRESET = "gsm8k-256-any"


@dataclass(frozen=True)
class LmEval:
    """Run a benchmark through lm-eval. GSM8K, MBPP, MATH-500, IFEval or HumanEval; generated code runs in a sandbox.

    $ unmask lm-eval --preset gsm8k-256-64 --scheduler runs/order --device cuda --batch 16 --out runs/gsm8k
    $ unmask lm-eval --preset mbpp-128-32 --denoiser models/llada --data ../data --limit 20 --out runs/mbpp --resume
    $ accelerate launch --num_processes 8 -m unmask lm-eval --preset gsm8k-256-64 --device cuda --out runs/gsm8k-shared
    """

    out: Path  # The run's folder: config.json, samples.jsonl, scores.jsonl, results.json, traces.
    config: OmitArgPrefixes[Config]  # The preset, each of whose fields is an option.
    preset: str = PRESET  # The name of a preset, or your own TOML file. See `unmask presets`.
    resume: bool = False  # Continue a run that was interrupted. Without it an existing folder is refused.

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Any:
        config = load_preset(find_option(words, "--preset") or PRESET, Config, "lm_eval")
        return with_config(cls, config, OmitArgPrefixes)

    def run(self) -> None:
        if not self.resume and FIRST:
            require_new_folder(self.out)  # before a denoiser is loaded
        try:
            from unmask.evaluation.lm_eval.run import run_lm_eval
        except ImportError as error:
            raise ValueError(f"benchmarks need lm-eval ({error}): pip install unmask[lm]") from error
        with progress_bar("{task.description}", "samples") as progress:
            bar = progress.add_task(self.config.task, total=None)
            results = run_lm_eval(
                self.config,
                self.out,
                self.resume,
                lambda done, total: progress.update(bar, completed=done, total=total),
                _write_traces,
            )
        if results is None:
            return  # the first process has them
        console.print(_table(results, self.config.answers.scheduler))
        console.print(f"{_cost(results)}, on {self.config.describe()}", soft_wrap=True)
        if self.config.traces:
            console.print(f"to see samples step by step: unmask view {self.out / 'traces'}", soft_wrap=True)
        console.print(f"results in {self.out / 'results.json'}; to reproduce them in another folder:", soft_wrap=True)
        console.print(_repeat(self.out), soft_wrap=True)


def _write_traces(model: Any, count: int, folder: Path) -> Any:
    """The callback that writes a trace of each of the first ``count`` samples of an ``UnmaskLM``."""
    labels = Pieces(model.tokenizer)
    folder.mkdir(exist_ok=True)

    def write_one(request: Any, options: AnswerOptions, done: Generation) -> bool:
        trajectories = {options.scheduler: done.trajectory}
        problem = f"{request.task_name}, problem {request.doc_id}"
        (made,) = trace_texts(
            model.denoiser, labels, done.canvas, trajectories, model.name, options.decoding, [problem]
        )
        trace.write(made, folder / f"{request.doc_id:05d}-{request.idx}.json")
        return sum(1 for _ in folder.glob("*.json")) < count

    return write_one


def _table(results: dict[str, Any], scheduler: str) -> Table:
    published = results["published"].get(published_key(scheduler))
    table = Table(f"{results['task']}, {scheduler}", "score", "95 % interval", "published")
    for name, value in results["scores"].items():
        low_high = results["intervals"].get(name)
        shown = "" if low_high is None else f"[{low_high[0]:.1%}, {low_high[1]:.1%}]"
        beside = f"{published:.1%}" if published is not None and name == results["main"] else ""
        table.add_row(name.removesuffix(",none").replace(",", ", "), f"{value:.1%}", shown, beside)
    return table


def _cost(results: dict[str, Any]) -> str:
    cost, count = results["model"]["cost"], count_processes()
    seconds = f"{cost['seconds']:.0f} s" + (f" of {count} processes" if count > 1 else "")
    per_forward = f", {cost['tokens_per_forward']:.2f} tokens per forward" if cost["tokens_per_forward"] else ""
    calls = f"{cost['denoiser_calls']:.0f} denoiser calls, {cost['reveals']} reveals{per_forward}"
    return f"{results['documents']} problems, {results['shots']}-shot; {calls}, {seconds}"


def _repeat(out: Path) -> str:
    """This command with another folder."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    again = {str(out): f"{out}-again", f"--out={out}": f"--out={out}-again"}
    return shlex.join(["unmask", *(again.get(word, word) for word in words)])
