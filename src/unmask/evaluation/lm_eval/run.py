"""A benchmark as a run directory from a preset: the settings, every finished sample, the scores.

folder/config.json    the settings; a resumed run must have the same, but for how many samples and how many at once
folder/samples.jsonl  a line per finished request: response, reveals, denoiser calls; beside it, while several processes are at
                      work, samples-1.jsonl and so on, one for each of the others
folder/scores.jsonl   a line per document: the response, what was read from it, its metrics
folder/results.json   the scores with intervals, and the cost
folder/traces/        the first samples step by step, if asked for
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance

from unmask.evaluation.lm_eval.model import Answered, OnGeneration, OnSample, UnmaskLM
from unmask.evaluation.lm_eval.samples import collected, shared
from unmask.evaluation.lm_eval.settings import LmDecoding, LmEval
from unmask.evaluation.lm_eval.tasks import MAIN_METRIC, load_task
from unmask.evaluation.statistics import wilson
from unmask.generation.generate import Generation
from unmask.report.terminal.text import Pieces
from unmask.report.traces import record as trace
from unmask.report.traces.text import trace_texts
from unmask.runs.atomic import atomic_write
from unmask.runs.jsonable import plain
from unmask.runs.processes import Together, launched
from unmask.runs.run import Run

MAY_DIFFER = ("limit", "traces", "batch", "device")
PATIENCE = timedelta(days=2)
"""How long a process waits for the others to finish their shares."""


def run_lm_eval(
    config: LmEval, folder: str | Path, resume: bool = False, on_sample: OnSample | None = None
) -> dict[str, Any] | None:
    """Evaluate in ``folder``; returns what is in results.json. A run that was killed goes on where it stopped with ``resume``.

    Under ``accelerate launch`` every process calls this and answers its share of the requests. The first one owns the folder and
    scores; the others return None.
    """
    together = launched(PATIENCE)
    first = together is None or together.first
    with _quiet():
        task = load_task(
            config.task,
            config.data or None,
            shots=config.shots,
            length=config.decoding.length,
            confined=not config.unconfined,
        )
        # Before there is a folder: a name that is wrong leaves nothing behind.
        model = UnmaskLM(
            config.denoiser,
            config.decoding,
            tokenizer=config.tokenizer or None,
            batch_size=config.batch,
            dtype=config.dtype,
            device=_own_device(config.device, together),
            on_sample=on_sample,
            together=together,
            first_scores=True,
        )
    if first:
        Run.create(folder, config, resume=resume, may_differ=MAY_DIFFER)
    run = Run(Path(folder))
    with run.lock() if first else nullcontext(), _quiet():
        model.log = collected(run.folder) if together is None else shared(run.folder, together)
        if config.traces and first:
            model.on_generation = _tracing(model, config.traces, run.folder / "traces")
        try:
            found = evaluate_task(model, task, config.limit, config.chat, config.multiturn)
        except Answered:
            return None
        results = {"task": config.task, "main": MAIN_METRIC[config.task], **found}
        results |= {"published": config.published, "source": config.source, "model": model.get_model_info()}
        lines = (json.dumps(plain(_scored(sample), finite=True)) + "\n" for sample in results.pop("samples"))
        atomic_write(run.folder / "scores.jsonl", "".join(lines).encode())
        atomic_write(run.folder / "results.json", (json.dumps(plain(results, finite=True), indent=2) + "\n").encode())
    return results


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
    documents = {sample["doc_id"] for sample in samples}
    scores = {
        key: float(value)
        for key, value in found["results"][name].items()
        if "," in key and isinstance(value, int | float) and "_stderr," not in key
    }
    intervals = {key: interval for key in scores if (interval := _interval(key, samples)) is not None}
    return {
        "scores": scores,
        "intervals": intervals,
        "documents": len(documents),
        "shots": found["n-shot"][name],
        "samples": samples,
    }


def _own_device(device: str, together: Together | None) -> str | None:
    """Of several processes each takes the GPU that has its number on its machine."""
    if together is None:
        return device or None
    if device == "auto":
        raise ValueError(
            "device auto spreads one denoiser over all devices, and these are several processes: "
            "start one process, or name cuda, of which each takes its own"
        )
    return f"cuda:{together.accelerator.local_process_index}" if device == "cuda" else device or None


def _tracing(model: UnmaskLM, count: int, folder: Path) -> OnGeneration:
    """Writes a trace of every sample until there are ``count``; from then on the model decodes in batches."""
    labels = Pieces(model.tokenizer)
    folder.mkdir(exist_ok=True)

    def write_one(request: Instance, decoding: LmDecoding, done: Generation) -> None:
        orders = {decoding.scheduler: done.trajectory}
        problem = f"{request.task_name}, problem {request.doc_id}"
        recorded = trace_texts(model.denoiser, labels, done.canvas, orders, model.name, decoding.loop(), [problem])
        trace.write(recorded[0], folder / f"{request.doc_id:05d}-{request.idx}.json")
        if sum(1 for _ in folder.glob("*.json")) >= count:
            model.on_generation = None

    return write_one


def _interval(key: str, samples: list[dict[str, Any]]) -> tuple[float, float] | None:
    metric, _, reading = key.partition(",")
    values = [sample[metric] for sample in samples if sample.get("filter", "none") == reading and metric in sample]
    if not values or any(isinstance(value, list) or value not in (0, 1) for value in values):
        return None
    return wilson(int(sum(values)), len(values))


def _scored(sample: dict[str, Any]) -> dict[str, Any]:
    metrics = {name: sample[name] for name in sample.get("metrics", []) if name in sample}
    kept = {"doc": sample["doc_id"], "filter": sample.get("filter"), "target": sample.get("target")}
    return {**kept, "responses": sample.get("resps"), "read": sample.get("filtered_resps"), **metrics}


@contextmanager
def _quiet() -> Iterator[None]:
    """lm-eval and datasets log what a run directory holds anyway, and their bars would break the caller's."""
    from functools import partial

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
