"""Training files of the benchmarks: the prompts of the evaluation, the training split only, and presets that read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install unmask[lm]")

from support.commands import Call
from unmask.evaluation.lm_eval.tasks import load_task
from unmask.runs.presets import load_preset
from unmask.tasks.jsonl import TextData, read_examples
from unmask.training.policy.run import PolicyRun

GSM8K = [{"question": f"How much is {n} and {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in range(8)]
MBPP = [
    {"task_id": n, "text": f"Write f{n}.", "code": f"def f{n}():\n    return {n}", "test_list": [f"assert f{n}() == {n}"] * 3,
     "test_setup_code": "", "challenge_test_list": []}
    for n in (2, 3, 4, 11, 12, 601, 602, 974)
]  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, rows in {"gsm8k/train": GSM8K, "gsm8k/test": GSM8K[:2], "mbpp/mbpp": MBPP}.items():
        place = tmp_path / f"{name}.jsonl"
        place.parent.mkdir(exist_ok=True)
        place.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return tmp_path


def test_gsm8k(files: Path, command: Call) -> None:
    out = files / "train.jsonl"
    code, shown, error = command("data", "gsm8k", "--files", str(files), "--shots", "2", "--out", str(out))
    assert code == 0, error
    assert "wrote 8 training examples of gsm8k" in shown
    examples = read_examples(out)
    task = load_task("gsm8k", files, shots=2)
    for example, doc in zip(examples, GSM8K, strict=True):
        assert isinstance(example.prompt, str)
        assert example.prompt.endswith(str(task.doc_to_text(doc)))  # as the evaluation ends a prompt
        assert example.prompt.count("Question:") == 3  # two shots, neither of which is the problem itself
        assert example.prompt.count(doc["question"]) == 1
        assert example.completion == f" {doc['answer']}"
    code, _, error = command("data", "gsm8k", "--files", str(files), "--out", str(out))
    assert (code, error.count("\n")) == (2, 1) and "exists" in error
    assert command("data", "gsm8k")[0] == 2


def test_mbpp(files: Path, command: Call) -> None:
    out = files / "train.jsonl"
    assert command("data", "mbpp", "--files", str(files), "--out", str(out))[0] == 0
    examples = read_examples(out)
    assert [example.completion for example in examples] == [
        f"def f{n}():\n    return {n}\n[DONE]" for n in (601, 602, 974)
    ]
    for example in examples:
        assert isinstance(example.prompt, str)
        assert example.prompt.endswith("[BEGIN]\n")
        assert [f"f{n}" in example.prompt for n in (2, 3, 4, 11)] == [True, True, True, False]


@pytest.mark.parametrize("task", ["gsm8k", "mbpp"])
def test_the_papers_settings(task: str) -> None:
    paper = load_preset(f"sas-{task}-llada", PolicyRun, "train")
    assert isinstance(paper.data, TextData)
    assert (paper.denoiser, paper.dtype, paper.data.length) == ("GSAI-ML/LLaDA-8B-Instruct", "bfloat16", 512)
    assert (paper.policy.kind, paper.policy.n_layers) == ("transformer", 1)
    training = paper.training
    assert (training.group, training.steps, training.advantage) == (6, 200, "trajectory")
    assert not paper.data.chat and paper.data.file == f"{task}-train.jsonl"
    assert load_preset(f"sas-{task}-llada-all-action", PolicyRun, "train").training.advantage == "all_action"
