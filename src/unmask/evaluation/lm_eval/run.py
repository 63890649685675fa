"""A benchmark as a run directory from a preset: the settings, every finished sample, the scores.

folder/config.json    the settings; a resumed run must have the same, but for how many samples and how many at once
folder/samples.jsonl  a line per finished request: response, reveals, denoiser calls; each further process writes into its own
                      samples-1.jsonl and so on until its share is done
folder/scores.jsonl   a line per document: the response, the answer read from it, its metrics, the scorer's error if it failed
folder/results.json   the scores with intervals, and the cost
folder/traces/        the first samples step by step, on request
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from unmask.denoisers.loading import describe_source
from unmask.denoisers.placement import SPREAD
from unmask.evaluation.lm_eval.model import UnmaskLM
from unmask.evaluation.lm_eval.samples import collect_samples, share_samples
from unmask.evaluation.lm_eval.session import OnGeneration, OnSample, ScoredElsewhere, Session
from unmask.evaluation.lm_eval.settings import LmEval
from unmask.evaluation.lm_eval.tasks import MAIN_METRIC, ScoredTask, load_task
from unmask.evaluation.statistics import wilson
from unmask.runs.atomic import atomic_write
from unmask.runs.jsonable import format_json, to_jsonable
from unmask.runs.presets import list_presets, load_preset
from unmask.runs.processes import count_processes, current_group
from unmask.runs.run import Run
from unmask.schedulers.loading import describe_policy

MAY_DIFFER = ("limit", "traces", "batch", "device")
PATIENCE = timedelta(days=2)
"""How long a process waits for the others to finish their shares."""
TraceWriter = Callable[[UnmaskLM, int, Path], OnGeneration]
"""Makes the callback that writes traces of a model's first so many samples into a folder."""


def run_lm_eval(
    config: LmEval,
    folder: str | Path,
    resume: bool = False,
    on_sample: OnSample | None = None,
    trace_writer: TraceWriter | None = None,
) -> dict[str, Any] | None:
    """Evaluate in ``folder``; returns the content of results.json. With ``resume`` a killed run continues.

    Under ``accelerate launch`` every process calls this and answers its share of the requests. The first one owns the folder and
    scores; the others return None.
    """
    if config.device == SPREAD and count_processes() > 1:
        raise ValueError(
            "device spread puts one denoiser on all devices, but there are several processes: start one process, or use "
            "auto, where each takes its own GPU"
        )
    processes = current_group(PATIENCE, config.on_cpu)
    first = processes is None or processes.is_first
    with _silence():
        length, confined = config.answers.length, not config.unconfined
        task = load_task(config.task, config.data or None, shots=config.shots, length=length, confined=confined)
        # Loaded before the folder exists: a wrong name leaves nothing behind.
        model = UnmaskLM(
            config.denoiser,
            config.answers,
            tokenizer=config.tokenizer or None,
            batch_size=config.batch,
            dtype=config.dtype,
            device=config.device,
            session=Session(on_sample=on_sample, processes=processes, first_scores=True),
        )
    if first:
        scheduler = describe_policy(config.answers.scheduler, config.denoiser)
        inputs = {"denoiser": describe_source(config.denoiser), "scheduler": scheduler}
        Run.create(folder, config, resume=resume, may_differ=MAY_DIFFER, inputs=inputs)
    run = Run(Path(folder))
    with run.work() if first else nullcontext(), _silence():
        model.session.log = collect_samples(run.folder) if processes is None else share_samples(run.folder, processes)
        if config.traces and first and trace_writer is not None:
            model.session.on_generation = trace_writer(model, config.traces, run.folder / "traces")
        try:
            found = evaluate_task(model, task, config.limit, config.chat, config.multiturn)
        except ScoredElsewhere:
            return None
        results = {"task": config.task, "main": MAIN_METRIC[config.task], **found}
        results |= {"published": find_published(config), "source": config.source, "model": model.get_model_info()}
        _write_scores(run.folder, task, results)
    return results


def _write_scores(folder: Path, task: ScoredTask, results: dict[str, Any]) -> None:
    """The samples of ``results`` as ``scores.jsonl``, a line each, and the rest as ``results.json``."""
    scored = [_score_line(sample, task.find_failure(sample)) for sample in results.pop("samples")]
    results["scorer_failures"] = sum("error" in line for line in scored)
    lines = (json.dumps(to_jsonable(line, finite=True)) + "\n" for line in scored)
    atomic_write(folder / "scores.jsonl", "".join(lines).encode())
    atomic_write(folder / "results.json", format_json(to_jsonable(results, finite=True)))


def find_published(config: LmEval) -> dict[str, float]:
    """The published numbers of a preset, by scheduler; none where a setting of the run is not the preset's."""
    if not config.published or config.limit is not None:
        return {}
    own = _comparable(config)
    presets = (load_preset(entry.name, LmEval, "lm_eval") for entry in list_presets("lm_eval"))
    return config.published if any(_comparable(preset) == own for preset in presets) else {}


def _comparable(config: LmEval) -> dict[str, Any]:
    """What a published number depends on: everything but the scheduler, where the run takes place and what it leaves behind."""
    ignored = dict.fromkeys(("tokenizer", "data", "device", "source"), "")
    answers = replace(config.answers, scheduler="", seed=0)
    return to_jsonable(replace(config, **ignored, answers=answers, batch=1, traces=0, unconfined=False))


def evaluate_task(
    model: UnmaskLM, task: Any, limit: int | None = None, chat: bool = False, multiturn: bool = False
) -> dict[str, Any]:
    """``simple_evaluate`` of one task, with Wilson intervals of the metrics that are right or wrong; sets no global seed."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    evaluate: Any = simple_evaluate  # its decorator hides its parameters
    found = evaluate(
        model=model,
        tasks=[task],
        limit=limit,
        apply_chat_template=chat,
        fewshot_as_multiturn=multiturn,
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
        random_seed=None,
        numpy_random_seed=None,
        torch_random_seed=None,
    )
    name = task.config.task
    samples = found["samples"][name]
    scores = {
        key: float(value)
        for key, value in found["results"][name].items()
        if "," in key and isinstance(value, int | float) and "_stderr," not in key
    }
    intervals = {key: interval for key in scores if (interval := _interval(key, samples)) is not None}
    documents = len({sample["doc_id"] for sample in samples})
    counted = {"documents": documents, "shots": found["n-shot"][name]}
    return {"scores": scores, "intervals": intervals, **counted, "samples": samples}


def _interval(key: str, samples: list[dict[str, Any]]) -> tuple[float, float] | None:
    metric, _, reading = key.partition(",")
    values = [sample[metric] for sample in samples if sample.get("filter", "none") == reading and metric in sample]
    if not values or any(isinstance(value, list) or value not in (0, 1) for value in values):
        return None
    return wilson(int(sum(values)), len(values))


def _score_line(sample: dict[str, Any], failure: str | None) -> dict[str, Any]:
    metrics = {name: sample[name] for name in sample.get("metrics", []) if name in sample}
    kept = {"doc": sample["doc_id"], "filter": sample.get("filter"), "target": sample.get("target")}
    return {**kept, "responses": sample.get("resps"), "read": sample.get("filtered_resps"), **metrics} | (
        {"error": failure} if failure else {}
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Without the logs of lm-eval and datasets, and without their progress bars, which would break the caller's."""
    import datasets
    import lm_eval.api.task as building

    logger, bar, bars = logging.getLogger("lm_eval"), building.tqdm, datasets.are_progress_bars_disabled()
    level = logger.level
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    building.tqdm = partial(bar, disable=True)  # pyright: ignore
    try:
        yield
    finally:
        logger.setLevel(level)
        building.tqdm = bar
        if not bars:
            datasets.enable_progress_bars()
