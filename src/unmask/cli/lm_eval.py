"""``unmask lm-eval``: a benchmark of lm-eval with any order and decoding, from a preset, as a run that can be resumed."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from unmask.cli.shell import FIRST, console, progress_bar, require_new_folder
from unmask.decoding.options import Decoding
from unmask.evaluation.lm_eval.settings import AnswerOptions, LmEval
from unmask.generation.generate import Generation
from unmask.report.terminal.text import Pieces
from unmask.report.traces import record as trace
from unmask.report.traces.text import of_texts
from unmask.runs.presets import load_preset


def lm_eval_command(
    out: Path,
    preset: str = "gsm8k-256-any",
    denoiser: str | None = None,
    tokenizer: str | None = None,
    data: str | None = None,
    limit: int | None = None,
    traces: int | None = None,
    resume: bool = False,
    scheduler: str | None = None,
    pace: str | None = None,
    length: int | None = None,
    block: int | None = None,
    steps: int | None = None,
    order_temperature: float | None = None,
    token_temperature: float | None = None,
    ends: str | None = None,
    guidance: float | None = None,
    cache: str | None = None,
    refresh: int | None = None,
    shots: int | None = None,
    chat: bool = False,
    multiturn: bool = False,
    seed: int | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    device: str | None = None,
    unconfined: bool = False,
) -> None:
    """Run a benchmark through lm-eval. GSM8K, MBPP, MATH-500, IFEval or HumanEval; generated code runs in a sandbox.

    $ unmask lm-eval --preset gsm8k-256-64 --scheduler runs/order --device cuda --batch 16 --out runs/gsm8k
    $ unmask lm-eval --preset mbpp-128-32 --denoiser models/llada --data ../data --limit 20 --out runs/mbpp --resume
    $ accelerate launch --num_processes 8 -m unmask lm-eval --preset gsm8k-256-64 --device cuda --out runs/gsm8k-shared

    Args:
        out: The run's folder: config.json, samples.jsonl, scores.jsonl, results.json, traces.
        preset: The name of a preset, or your own TOML file. See `unmask presets`.
        denoiser: Another denoiser than the preset's: a folder, a safetensors file or a hub id.
        tokenizer: A folder or hub id, if not the denoiser's own.
        data: A folder with the benchmark's files (gsm8k/test.jsonl, …) instead of the hub.
        limit: Only the first so many problems.
        traces: So many samples also leave traces for `unmask view`, in the run's folder; those are decoded one by one.
        resume: Go on with a run that was interrupted. Without it an existing folder is refused.
        scheduler: The order: any name that `unmask presets` lists, or a learned one's folder.
        pace: How many per step: top, threshold:p=0.9, and others.
        length: How many tokens at most (L).
        block: Block size (B).
        steps: Step budget (T).
        order_temperature: 0 takes the position with the best score.
        token_temperature: 0 takes the likeliest token.
        ends: allow end tokens, damp them, or suppress them.
        guidance: The scale of classifier-free guidance.
        cache: none, prefix or dual.
        refresh: With a cache, compute everything again after so many steps.
        shots: Worked examples in the prompt.
        chat: Put prompts into the tokenizer's chat template.
        multiturn: With --chat, each worked example is a turn of its own.
        seed: For whatever is drawn.
        batch: How many prompts at once. Changes speed and memory only.
        dtype: float32, bfloat16 or float16.
        device: Such as cuda; auto spreads the denoiser over all devices. Of several processes each takes a cuda device of its own.
        unconfined: Run generated code without the sandbox, where this machine cannot provide it. Code you trust only.
    """
    said = {name: value for name, value in locals().items() if name not in ("out", "preset", "resume")}
    given = {name: value for name, value in said.items() if value is not None and value is not False}
    config = _changed(load_preset(preset, LmEval, "lm_eval"), given)
    if not resume and FIRST:
        require_new_folder(out)  # before a denoiser is loaded
    try:
        from unmask.evaluation.lm_eval.run import run_lm_eval
        from unmask.runs.processes import launched_processes
    except ImportError as error:
        raise ValueError(f"benchmarks need lm-eval ({error}): pip install unmask[lm]") from error
    with progress_bar("{task.description}", "samples") as progress:
        bar = progress.add_task(config.task, total=None)

        def advance(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        results = run_lm_eval(config, out, resume, advance, _write_traces)
    if results is None:
        return  # the first process has them
    console.print(_table(results, config))
    cost = results["model"]["cost"]
    per_forward = cost["tokens_per_forward"]
    spent = f"{cost['seconds']:.0f} s" + (f" of {launched_processes()} processes" if launched_processes() > 1 else "")
    console.print(
        f"{results['documents']} problems, {results['shots']}-shot; {cost['denoiser_calls']:.0f} denoiser calls, "
        f"{cost['reveals']} reveals{f', {per_forward:.2f} tokens per forward' if per_forward else ''}, {spent}",
        soft_wrap=True,
    )
    if config.traces:
        console.print(f"to see samples step by step: unmask view {out / 'traces'}", soft_wrap=True)
    console.print(f"results in {out / 'results.json'}; to reproduce them in another folder:", soft_wrap=True)
    console.print(_again(preset, given, out), soft_wrap=True)


def _changed(config: LmEval, given: dict[str, Any]) -> LmEval:
    """The preset with the values of the command line."""

    def among(cls: type) -> dict[str, Any]:
        return {field.name: given[field.name] for field in fields(cls) if field.name in given}

    decoding = replace(config.answers.decoding, **among(Decoding))
    answers = replace(config.answers, decoding=decoding, **among(AnswerOptions))
    return replace(config, answers=answers, **among(LmEval))


def _write_traces(model: Any, count: int, folder: Path) -> Any:
    """The callback that writes a trace of each of the first ``count`` samples of an ``UnmaskLM``."""
    labels = Pieces(model.tokenizer)
    folder.mkdir(exist_ok=True)

    def write_one(request: Any, options: AnswerOptions, done: Generation) -> bool:
        trajectories = {options.scheduler: done.trajectory}
        problem = f"{request.task_name}, problem {request.doc_id}"
        (made,) = of_texts(model.denoiser, labels, done.canvas, trajectories, model.name, options.decoding, [problem])
        trace.write(made, folder / f"{request.doc_id:05d}-{request.idx}.json")
        return sum(1 for _ in folder.glob("*.json")) < count

    return write_one


def _table(results: dict[str, Any], config: LmEval) -> Table:
    published = results["published"].get(config.answers.scheduler)
    table = Table(f"{results['task']}, {config.answers.scheduler}", "score", "95 % interval", "published")
    for name, value in results["scores"].items():
        low_high = results["intervals"].get(name)
        shown = "" if low_high is None else f"[{low_high[0]:.1%}, {low_high[1]:.1%}]"
        beside = f"{published:.1%}" if published is not None and name == results["main"] else ""
        table.add_row(name.removesuffix(",none").replace(",", ", "), f"{value:.1%}", shown, beside)
    return table


def _again(preset: str, given: dict[str, Any], out: Path) -> str:
    words = ["unmask", "lm-eval", "--preset", preset]
    for name, value in given.items():
        option = name.replace("_", "-")
        words += (
            [f"--{option}" if value else f"--no-{option}"] if isinstance(value, bool) else [f"--{option}", str(value)]
        )
    return shlex.join([*words, "--out", f"{out}-again"])
