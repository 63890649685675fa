"""lm-eval tasks from files or from the hub: GSM8K, MBPP, MATH-500, IFEval, HumanEval.

Prompts, few-shot examples, stop strings and metrics are those of lm-eval's tasks ``gsm8k``, ``mbpp``, ``minerva_math500``,
``ifeval`` and ``humaneval``: their YAML files are read, and their functions used where they work offline. Differences:

* with ``data`` the documents come from ``data/<folder>/<file>`` (``FILES``) instead of the hub;
* code is run by :mod:`unmask.tasks.sandbox.sandbox`, not by ``evaluate``'s ``code_eval``, which confines nothing;
* replies in code fences are understood; ``gsm8k`` has a third reading of the answer, ``final-answer``, and ``math500`` a third
  metric, ``boxed_match``, both by :mod:`unmask.tasks.answers`.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import lm_eval.tasks
import yaml
from datasets.exceptions import DatasetNotFoundError
from lm_eval.api.task import ConfigurableTask

from unmask.evaluation.lm_eval.documents import FILES, read_documents
from unmask.runs.names import did_you_mean
from unmask.tasks.answers import extract_code, extract_expression, extract_number, math_equal
from unmask.tasks.expressions import parse_untrusted
from unmask.tasks.sandbox.sandbox import Limits, find_missing_protection, run_python

MBPP_SHOTS = (2, 3, 4)
"""By task_id: the examples that MBPP's authors, and lm-eval, show."""
EXAMPLES = {"mbpp": 3, "math500": 4, "ifeval": 0, "humaneval": 0}
"""Worked examples that there are; GSM8K draws them from its training split."""
DROPPED = ("task", "tag", "include", "repeats", "unsafe_code")
"""Settings of lm-eval's YAML files that are not used."""
MOST_REASON = 500
MEAN = {"aggregation": "mean", "higher_is_better": True}


class ScoredTask(ConfigurableTask):
    """A task of lm-eval whose scorer cannot end a run: where it fails, the sample scores 0 and its reason is kept."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.failures: dict[str, str] = {}
        super().__init__(config=config)

    def process_results(self, doc: Any, results: Any) -> dict[str, Any]:
        try:
            return super().process_results(doc, results)
        except Exception as error:
            self.failures[_name_sample(doc, results)] = f"{type(error).__name__}: {error}"[:MOST_REASON]
            none = [False] * len(doc.get("instruction_id_list") or ())  # a metric by instruction has a value for each
            names = [metric["metric"] for metric in self.config.metric_list or ()]
            return {name: none if name.startswith("inst_level") else 0.0 for name in names}

    def find_failure(self, sample: dict[str, Any]) -> str | None:
        """Why the scorer failed on a sample that lm-eval has logged, if it did."""
        return self.failures.get(_name_sample(sample["doc"], sample["filtered_resps"]))


def _name_sample(doc: Any, results: Any) -> str:
    return repr((doc, list(results)))


def load_task(
    name: str,
    data: str | Path | None = None,
    *,
    shots: int | None = None,
    length: int | None = None,
    confined: bool = True,
) -> ScoredTask:
    """The task ``name`` for ``simple_evaluate(tasks=[…])``, from the folder ``data`` or, without it, from the hub.

    ``shots`` replaces the task's own number of examples, ``length`` its ``max_gen_toks``. ``confined=False`` runs generated code
    without a sandbox (:func:`unmask.tasks.sandbox.sandbox.run_python`).
    """
    _check(name, shots, confined)
    if name == "ifeval" and data is not None:
        _find_punkt(Path(data))  # before lm-eval's scorer is loaded, which would try to download it
    config: dict[str, Any] = {"task": name, "output_type": "generate_until", **TASKS[name](confined)}
    if data is not None:
        documents = {split: read_documents(Path(data) / file, name, split) for split, file in FILES[name].items()}
        config = {key: value for key, value in config.items() if key not in ("dataset_path", "dataset_name")}
        config["custom_dataset"] = lambda **_: documents
    if shots is not None:
        config["num_fewshot"] = shots
    if length is not None:
        config["generation_kwargs"] = {**config["generation_kwargs"], "max_gen_toks": length}
    try:
        return ScoredTask(config=config)
    except (ConnectionError, OSError, DatasetNotFoundError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"cannot load {name} from the hub: {reason}; name a folder of files instead") from error


def _check(name: str, shots: int | None, confined: bool) -> None:
    if name not in TASKS:
        raise ValueError(f"no task {name!r}: expected one of {', '.join(TASKS)}{did_you_mean(name, TASKS)}")
    if name in ("mbpp", "humaneval") and confined and find_missing_protection():
        raise ValueError(
            f"{name} runs generated code, and this machine cannot confine it: it needs {find_missing_protection()}"
        )
    if shots is not None and shots < 0:
        raise ValueError(f"shots must be at least 0, got {shots}")
    most = EXAMPLES.get(name)
    if shots is not None and most is not None and shots > most:
        raise ValueError(f"{name} has {most} worked examples: expected at most {most} shots, got {shots}")


def _load_yaml(file: str) -> dict[str, Any]:
    """The settings of one of lm-eval's own tasks, without its functions, some of which need a network to be imported."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: None)
    config = yaml.load((Path(lm_eval.tasks.__file__).parent / file).read_text("utf-8"), Loader)
    return {key: value for key, value in config.items() if key not in DROPPED}


def _gsm8k(confined: bool) -> dict[str, Any]:
    config = _load_yaml("gsm8k/gsm8k.yaml")
    steps = [{"function": "custom", "filter_fn": _final_numbers}, {"function": "take_first"}]
    return {**config, "filter_list": [*config["filter_list"], {"name": "final-answer", "filter": steps}]}


def _final_numbers(responses: list[list[str]], docs: list[dict[str, Any]]) -> list[list[str]]:
    return [[_format_number(extract_number(text)) for text in each] for each in responses]


def _format_number(value: Fraction | None) -> str:
    if value is None:
        return "[none]"
    try:
        return str(value.numerator if value.denominator == 1 else float(value))
    except OverflowError:  # beyond 10^308, with a part behind the point
        return f"[{value.numerator}/{value.denominator}]"


def _mbpp(confined: bool) -> dict[str, Any]:
    return {
        **_load_yaml("mbpp/mbpp.yaml"),
        "doc_to_target": "{% if is_fewshot is defined %}{{code}}\n[DONE]{% else %}{{test_list | join('\n')}}{% endif %}",
        "fewshot_config": {"sampler": "first_n", "split": "prompt", "process_docs": _mbpp_examples},
        "process_results": partial(_mbpp_results, confined=confined),
        "metric_list": [{"metric": "pass_at_1", **MEAN}],
    }


def _mbpp_examples(documents: Any) -> list[dict[str, Any]]:
    return [{**row, "is_fewshot": True} for row in documents if row["task_id"] in MBPP_SHOTS]


def _mbpp_results(doc: dict[str, Any], results: list[str], confined: bool = True) -> dict[str, float]:
    return _run_tests(extract_code(results[0]), "\n".join(doc["test_list"][:3]), confined, _definitions(doc["code"]))


def _definitions(code: str) -> dict[str, ast.stmt]:
    """The functions and classes that a piece of code defines, by name."""
    return {node.name: node for node in parse_untrusted(code).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def _humaneval(confined: bool) -> dict[str, Any]:
    return {
        **_load_yaml("humaneval/humaneval.yaml"),
        "filter_list": None,
        "process_results": partial(_humaneval_results, confined=confined),
        "metric_list": [{"metric": "pass_at_1", **MEAN}],
    }


def _humaneval_results(doc: dict[str, Any], results: list[str], confined: bool = True) -> dict[str, float]:
    code = extract_code(results[0])
    # A whole function behind the prompt, whose docstring is body enough, replaces the prompt's.
    program = f"{doc['prompt']}\n{code}" if f"def {doc['entry_point']}" in code else doc["prompt"] + code
    # Helpers that the prompt defines are the tests' own: a program that defines them anew changes only itself.
    helpers = [ast.unparse(node) for name, node in _definitions(doc["prompt"]).items() if name != doc["entry_point"]]
    tests = "\n".join([*helpers, doc["test"], f"check({doc['entry_point']})"])
    return _run_tests(program, tests, confined, [doc["entry_point"]])


def _run_tests(program: str, tests: str, confined: bool, names: Iterable[str]) -> dict[str, float]:
    return {"pass_at_1": float(run_python(program, tests, Limits(), confined, list(names)).passed)}


def _math500(confined: bool) -> dict[str, Any]:
    minerva = _import_scorer("lm_eval.tasks.minerva_math.utils")

    def process_results(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
        boxed = math_equal(extract_expression(results[0]), extract_expression(doc["solution"]))
        scores = {**minerva.process_results(doc, results), "boxed_match": boxed}
        return {name: float(value) for name, value in scores.items()}

    config = _load_yaml("minerva_math/minerva_math_algebra.yaml") | _load_yaml("minerva_math/minerva_math500.yaml")
    return {
        **config,
        "process_docs": minerva.process_docs,
        "doc_to_text": minerva.doc_to_text,
        "process_results": process_results,
        "fewshot_config": {"sampler": "first_n", "samples": minerva.list_fewshot_samples()},
        "metric_list": [*config["metric_list"], {"metric": "boxed_match", **MEAN}],
    }


def _ifeval(confined: bool) -> dict[str, Any]:
    scorer = _import_scorer("lm_eval.tasks.ifeval.utils")
    config = _load_yaml("ifeval/ifeval.yaml")
    metrics = [
        {**metric, "aggregation": metric["aggregation"] or scorer.agg_inst_level_acc}
        for metric in config["metric_list"]
    ]
    return {**config, "process_results": scorer.process_results, "metric_list": metrics}


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


def _import_scorer(module: str) -> Any:
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
