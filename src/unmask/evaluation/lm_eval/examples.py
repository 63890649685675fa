"""Examples to train on, in the very prompts that the benchmarks' evaluations use: ``{"prompt", "completion"}``.

GSM8K's are its training split. MBPP's are its tasks 601 to 974, which neither the test (11 to 510) nor the shots (2 to 4) contain.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.evaluation.lm_eval.documents import read_documents
from unmask.evaluation.lm_eval.tasks import load_task

MBPP_FILE = "mbpp/mbpp.jsonl"


def benchmark_examples(
    name: str, data: str | Path | None = None, shots: int | None = None, seed: int = 0
) -> Iterator[dict[str, str]]:
    """The training examples of a benchmark, from the folder ``data`` or the hub, with the shots of its evaluation before each."""
    task = load_task(name, data, shots=shots, confined=False)
    task.set_fewshot_seed(seed)
    shots = int(task.config.num_fewshot or 0) if shots is None else shots
    for doc in _training_documents(task, name, data):
        example = {**doc, "is_fewshot": True} if name == "mbpp" else doc
        prompt = _without_itself(task, doc, shots)
        yield {"prompt": prompt, "completion": f"{task.config.target_delimiter}{task.doc_to_target(example)}"}


def _without_itself(task: Any, doc: dict[str, Any], shots: int) -> str:
    """The prompt of a document, drawn again while the document is one of its own shots."""
    while True:
        prompt = str(task.fewshot_context(doc, shots))
        if prompt.count(str(task.doc_to_text(doc))) == 1:
            return prompt


def _training_documents(task: Any, name: str, data: str | Path | None) -> Any:
    if name == "gsm8k":
        return task.training_docs()
    if data is not None:
        return read_documents(Path(data) / MBPP_FILE, "mbpp", "train")
    return task.dataset["train"]
