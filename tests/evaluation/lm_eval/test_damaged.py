"""Damaged benchmark files and scorers that fail: one line each, and a run that goes on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lm_eval", reason="lm-eval is not installed")

from unmask.evaluation.lm_eval import documents, tasks
from unmask.evaluation.lm_eval.documents import FILES, read_documents
from unmask.evaluation.lm_eval.tasks import load_task
from unmask.tasks.answers import extract_number, math_equal

GOOD: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "q", "answer": "a\n#### 42"},
    "mbpp": {"task_id": 11, "text": "t", "code": "def f(x): return x", "test_list": ["assert f(1) == 1"] * 3},
    "math500": {"problem": "p", "solution": "\\boxed{1}", "answer": "1", "subject": "s", "level": 1, "unique_id": "u"},
    "ifeval": {"key": 1, "prompt": "p", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    "humaneval": {
        "task_id": "H/0",
        "prompt": 'def f(x):\n    """doc"""\n',
        "entry_point": "f",
        "test": "def check(c): pass",
    },
}
ODD = [None, 3, "", "text", [], [1], {}, {"a": None}, "\ud800", 10**400, -1.5]


def written(folder: Path, task: str, *lines: str | dict[str, Any]) -> Path:
    content = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()
    for file in FILES[task].values():
        (folder / file).parent.mkdir(exist_ok=True, parents=True)
        (folder / file).write_bytes(gzip.compress(content) if file.endswith(".gz") else content)
    return folder / next(iter(FILES[task].values()))


def damaged(row: dict[str, Any], needed: set[str]) -> list[str | dict[str, Any]]:
    without = [{key: value for key, value in row.items() if key != lacking} for lacking in needed]
    changed = [{**row, key: odd} for key in needed for odd in ODD if type(odd) is not type(row[key])]
    return [*without, *changed, "[1]", "null", "{", "3", "[" * 100_000, "9" * 5000, '{"question": NaN}']


@pytest.mark.parametrize("task", GOOD)
def test_damaged_rows_are_one_line(task: str, tmp_path: Path) -> None:
    split = next(iter(FILES[task]))
    file = written(tmp_path, task, GOOD[task])
    assert len(read_documents(file, task, split)) == 1
    needed = {field.name for field in documents.dataclasses.fields(documents.ROWS[task])}
    for row in damaged(GOOD[task], needed):
        written(tmp_path, task, GOOD[task], row)
        with pytest.raises(ValueError) as refused:
            read_documents(file, task, split)
        text = str(refused.value)
        assert file.name in text and len(text.splitlines()) == 1 and len(text) < 1000, (row, text)


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    file = written(tmp_path, "humaneval", GOOD["humaneval"])
    whole = file.read_bytes()
    for content in (
        whole[:-9],
        whole[:5],
        b"",
        b"\xff" * 40,
        whole[:12] + b"\xff" * 20 + whole[32:],
        gzip.compress(b"\xff\n"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=file.name):
            read_documents(file, "humaneval", "test")
    for row in ({"code": "def f(:"}, {"test_list": ["assert ("]}):
        with pytest.raises(ValueError, match=r"line 1: .*expected Python"):
            read_documents(written(tmp_path, "mbpp", {**GOOD["mbpp"], **row}), "mbpp", "test")


def test_a_gzip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the size when unpacked; no more than that is unpacked."""
    monkeypatch.setattr(documents, "LARGEST", 2**20)
    file = written(tmp_path, "humaneval", "x")
    file.write_bytes(gzip.compress(bytes(2**26)))
    assert file.stat().st_size < 2**17
    import tracemalloc

    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 1 MB when unpacked"):
        load_task("humaneval", tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2**23
    tracemalloc.stop()


FRACTION = f"\\boxed{{\\frac{{{'9' * 5000}}}{{3}}}}"


@pytest.mark.parametrize(
    "answer", ["9" * 310, "9" * 310 + ".5", "9" * 5000, FRACTION, "#### " + "1" * 4500, "-." + "3" * 4500]
)
def test_answers_of_many_digits(answer: str, tmp_path: Path) -> None:
    extract_number(answer)
    assert not math_equal(answer, "3")
    written(tmp_path, "gsm8k", GOOD["gsm8k"])
    task = load_task("gsm8k", tmp_path, shots=0)
    read = tasks._final_numbers([[answer]], [])
    assert task.process_results(task.dataset["test"][0], read[0]) == {"exact_match": 0.0}


@pytest.mark.parametrize("name", ["gsm8k", "mbpp", "humaneval"])
def test_a_scorer_that_fails_scores_0_with_its_reason(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, name, GOOD[name], GOOD[name] | ({"task_id": 2} if name == "mbpp" else {}))
    task = load_task(name, tmp_path, shots=0, confined=False)

    def fail(*_: Any, **__: Any) -> None:
        raise OverflowError("integer division result too large for a float")

    monkeypatch.setattr(tasks.ConfigurableTask, "process_results", fail)
    doc = task.dataset["test"][0]
    scores = task.process_results(doc, ["9"])
    assert scores and set(scores.values()) == {0.0}
    assert task.find_failure({"doc": doc, "filtered_resps": ["9"]}) == (
        "OverflowError: integer division result too large for a float"
    )
    assert task.find_failure({"doc": doc, "filtered_resps": ["8"]}) is None
