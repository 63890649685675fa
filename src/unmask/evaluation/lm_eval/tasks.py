"""lm-eval tasks from files or from the hub: GSM8K, MBPP, MATH-500, IFEval, HumanEval.

Prompts, few-shot examples, stop strings and metrics are those of lm-eval's tasks ``gsm8k``, ``mbpp``, ``minerva_math500``,
``ifeval`` and ``humaneval``, whose own functions are used where they work offline. What differs:

* with ``data`` the documents come from ``data/<folder>/<file>`` (``FILES``) instead of the hub;
* code is run by :mod:`unmask.tasks.sandbox.sandbox`, not by ``evaluate``'s ``code_eval``, which confines nothing;
* replies in code fences are understood; ``gsm8k`` has a third reading of the answer, ``final-answer``, and ``math500`` a third
  metric, ``boxed_match``, both by :mod:`unmask.tasks.answers`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetNotFoundError
from lm_eval.api.task import ConfigurableTask

from unmask.runs.names import did_you_mean
from unmask.tasks.answers import extract_code, extract_expression, extract_number, math_equal
from unmask.tasks.sandbox.sandbox import Limits, find_missing_protection, run_python

FILES: dict[str, dict[str, str]] = {
    "gsm8k": {"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"},
    "mbpp": {"test": "mbpp/mbpp.jsonl", "prompt": "mbpp/mbpp.jsonl"},
    "math500": {"test": "math500/test.jsonl"},
    "ifeval": {"train": "ifeval/input_data.jsonl"},
    "humaneval": {"test": "humaneval/HumanEval.jsonl.gz"},
}
"""Task → split → file, under the data folder. MBPP's file has all splits."""
MBPP_SPLITS = {"prompt": range(1, 11), "test": range(11, 511)}
MBPP_SHOTS = (2, 3, 4)
"""By task_id: the examples that MBPP's authors, and lm-eval, show."""
MEAN = {"aggregation": "mean", "higher_is_better": True}
MBPP_PROMPT = (
    "You are an expert Python programmer, and here is your task: {{text}} Your code should pass these tests:\n\n"
    "{{test_list[0]}}\n{{test_list[1]}}\n{{test_list[2]}}\n[BEGIN]\n"
)


def load_task(
    name: str,
    data: str | Path | None = None,
    *,
    shots: int | None = None,
    length: int | None = None,
    confined: bool = True,
) -> ConfigurableTask:
    """The task ``name`` for ``simple_evaluate(tasks=[…])``, from the folder ``data`` or, without it, from the hub.

    ``shots`` replaces the task's own number of examples, ``length`` its ``max_gen_toks``. ``confined=False`` runs generated code
    without a sandbox (:func:`unmask.tasks.sandbox.sandbox.run_python`).
    """
    if name not in TASKS:
        raise ValueError(f"no task {name!r}: expected one of {', '.join(TASKS)}{did_you_mean(name, TASKS)}")
    if name in ("mbpp", "humaneval") and confined and find_missing_protection():
        raise ValueError(f"{name} runs generated code, and this machine cannot confine it: it needs {find_missing_protection()}")
    if shots is not None and shots < 0:
        raise ValueError(f"shots must be at least 0, got {shots}")
    if name == "ifeval" and data is not None:
        _find_punkt(Path(data))  # before lm-eval's scorer is loaded, which would try to download it
    config: dict[str, Any] = {"task": name, "output_type": "generate_until", **TASKS[name](confined)}
    if data is not None:
        documents = {split: _read(Path(data) / file, name, split) for split, file in FILES[name].items()}
        for key in ("dataset_path", "dataset_name"):
            config.pop(key, None)
        config["custom_dataset"] = lambda **_: documents
    if shots is not None:
        config["num_fewshot"] = shots
        if name in ("mbpp", "math500") and shots > (most := 3 if name == "mbpp" else 4):
            raise ValueError(f"{name} has {most} worked examples, got {shots} shots")
        if name in ("ifeval", "humaneval") and shots:
            raise ValueError(f"{name} has no worked examples: expected 0 shots, got {shots}")
    if length is not None:
        config["generation_kwargs"] = {**config["generation_kwargs"], "max_gen_toks": length}
    try:
        return ConfigurableTask(config=config)
    except (ConnectionError, OSError, DatasetNotFoundError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the hub has not given {name}: {reason}; name a folder of files instead") from error


def _gsm8k(confined: bool) -> dict[str, Any]:
    def regex(name: str, pattern: str, **more: Any) -> dict[str, Any]:
        return {
            "name": name,
            "filter": [{"function": "regex", "regex_pattern": pattern, **more}, {"function": "take_first"}],
        }

    return {
        "dataset_path": "openai/gsm8k",
        "dataset_name": "main",
        "training_split": "train",
        "fewshot_split": "train",
        "test_split": "test",
        "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{answer}}",
        "num_fewshot": 5,
        "generation_kwargs": {"until": ["Question:", "</s>", "<|im_end|>"], "do_sample": False, "temperature": 0.0},
        "metric_list": [
            {
                "metric": "exact_match",
                **MEAN,
                "ignore_case": True,
                "ignore_punctuation": False,
                "regexes_to_ignore": [",", "\\$", "(?s).*#### ", "\\.$"],
            }
        ],
        "filter_list": [
            regex("strict-match", "#### (\\-?[0-9\\.\\,]+)"),
            regex("flexible-extract", "(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1),
            {
                "name": "final-answer",
                "filter": [{"function": "custom", "filter_fn": _final_numbers}, {"function": "take_first"}],
            },
        ],
        "metadata": {"version": 3.0},
    }


def _final_numbers(responses: list[list[str]], docs: list[dict[str, Any]]) -> list[list[str]]:
    return [[_written(extract_number(text)) for text in each] for each in responses]


def _written(value: Any) -> str:
    return "[none]" if value is None else str(value.numerator if value.denominator == 1 else float(value))


def _mbpp(confined: bool) -> dict[str, Any]:
    return {
        "dataset_path": "google-research-datasets/mbpp",
        "dataset_name": "full",
        "test_split": "test",
        "doc_to_text": MBPP_PROMPT,
        "doc_to_target": "{% if is_fewshot is defined %}{{code}}\n[DONE]{% else %}{{test_list | join('\n')}}{% endif %}",
        "target_delimiter": "",
        "num_fewshot": 3,
        "fewshot_config": {"sampler": "first_n", "split": "prompt", "process_docs": _mbpp_examples},
        "generation_kwargs": {"until": ["[DONE]"], "do_sample": False},
        "process_results": partial(_mbpp_results, confined=confined),
        "metric_list": [{"metric": "pass_at_1", **MEAN}],
        "metadata": {"version": 1.0},
    }


def _mbpp_examples(documents: Any) -> list[dict[str, Any]]:
    return [{**row, "is_fewshot": True} for row in documents if row["task_id"] in MBPP_SHOTS]


def _mbpp_results(doc: dict[str, Any], results: list[str], confined: bool = True) -> dict[str, float]:
    return _ran(extract_code(results[0]), "\n".join(doc["test_list"][:3]), confined)


def _humaneval(confined: bool) -> dict[str, Any]:
    return {
        "dataset_path": "openai/openai_humaneval",
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{test}}\ncheck({{entry_point}})",
        "num_fewshot": 0,
        "generation_kwargs": {
            "until": ["\nclass", "\ndef", "\n#", "\nif", "\nprint"],
            "max_gen_toks": 1024,
            "do_sample": False,
        },
        "process_results": partial(_humaneval_results, confined=confined),
        "metric_list": [{"metric": "pass_at_1", **MEAN}],
        "metadata": {"version": 1.0},
    }


def _humaneval_results(doc: dict[str, Any], results: list[str], confined: bool = True) -> dict[str, float]:
    code = extract_code(results[0])
    # A whole function behind the prompt, whose docstring is body enough, replaces the prompt's.
    program = f"{doc['prompt']}\n{code}" if f"def {doc['entry_point']}" in code else doc["prompt"] + code
    return _ran(program, f"{doc['test']}\ncheck({doc['entry_point']})", confined)


def _ran(program: str, tests: str, confined: bool) -> dict[str, float]:
    return {"pass_at_1": float(run_python(program, tests, Limits(), confined).passed)}


def _math500(confined: bool) -> dict[str, Any]:
    minerva = _scorer("lm_eval.tasks.minerva_math.utils")

    def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
        boxed = math_equal(extract_expression(results[0]), extract_expression(doc["solution"]))
        scores = {**minerva.process_results(doc, results), "boxed_match": boxed}
        return {name: float(value) for name, value in scores.items()}

    return {
        "dataset_path": "HuggingFaceH4/MATH-500",
        "dataset_name": "default",
        "test_split": "test",
        "process_docs": minerva.process_docs,
        "doc_to_text": minerva.doc_to_text,
        "doc_to_target": "{{answer if few_shot is undefined else solution}}",
        "process_results": process_results,
        "num_fewshot": 4,
        "fewshot_config": {"sampler": "first_n", "samples": minerva.list_fewshot_samples()},
        "generation_kwargs": {"until": ["Problem:"], "do_sample": False, "temperature": 0},
        "metric_list": [{"metric": name, **MEAN} for name in ("exact_match", "math_verify", "boxed_match")],
        "metadata": {"version": 3.1},
    }


def _ifeval(confined: bool) -> dict[str, Any]:
    scorer = _scorer("lm_eval.tasks.ifeval.utils")
    by_instruction = {"aggregation": scorer.agg_inst_level_acc, "higher_is_better": True}
    return {
        "dataset_path": "google/IFEval",
        "test_split": "train",
        "doc_to_text": "prompt",
        "doc_to_target": 0,
        "num_fewshot": 0,
        "process_results": scorer.process_results,
        "generation_kwargs": {"until": [], "do_sample": False, "temperature": 0.0, "max_gen_toks": 1280},
        "metric_list": [
            {"metric": "prompt_level_strict_acc", **MEAN},
            {"metric": "inst_level_strict_acc", **by_instruction},
            {"metric": "prompt_level_loose_acc", **MEAN},
            {"metric": "inst_level_loose_acc", **by_instruction},
        ],
        "metadata": {"version": 4.0},
    }


TASKS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "gsm8k": _gsm8k,
    "mbpp": _mbpp,
    "math500": _math500,
    "ifeval": _ifeval,
    "humaneval": _humaneval,
}
MAIN_METRIC = {
    "gsm8k": "exact_match,flexible-extract",
    "mbpp": "pass_at_1,none",
    "math500": "math_verify,none",
    "ifeval": "prompt_level_strict_acc,none",
    "humaneval": "pass_at_1,none",
}
"""The number that is compared with published ones."""


def _scorer(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except (ImportError, AssertionError, LookupError, OSError) as error:
        raise ValueError(f"{module} cannot be loaded: {error}; pip install unmask[lm]") from error


def _find_punkt(data: Path) -> None:
    """Point NLTK at the tables beside the data, and say so where there are none: lm-eval would try to download them."""
    import nltk

    beside = data / "nltk_punkt_tab"
    if beside.is_dir() and str(beside) not in nltk.data.path:
        nltk.data.path.append(str(beside))
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:
        raise ValueError(
            f"IFEval's scorer needs NLTK's punkt_tab: set NLTK_DATA to a folder that holds it, or put it into {beside}"
        ) from None


def _read(path: Path, task: str, split: str) -> datasets.Dataset:
    if not path.is_file():
        expected = ", ".join(sorted(set(FILES[task].values())))
        raise ValueError(f"no file {path}: for {task} the data folder must hold {expected}")
    try:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text("utf-8")
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is not JSON lines: {error}") from error
    if task == "mbpp":
        rows = [row for row in rows if row.get("task_id") in MBPP_SPLITS[split]]
    if not rows:
        raise ValueError(f"{path} holds no documents for {task}")
    return datasets.Dataset.from_list(rows)
