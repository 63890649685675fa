"""The documents of a benchmark from its own files, JSON lines. A row that lacks something is one error with its line."""

from __future__ import annotations

import dataclasses
import gzip
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from unmask.runs.config import read
from unmask.runs.jsonable import parse_json_lines
from unmask.tasks.expressions import parse_untrusted

FILES: dict[str, dict[str, str]] = {
    "gsm8k": {"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"},
    "mbpp": {"test": "mbpp/mbpp.jsonl", "prompt": "mbpp/mbpp.jsonl"},
    "math500": {"test": "math500/test.jsonl"},
    "ifeval": {"train": "ifeval/input_data.jsonl"},
    "humaneval": {"test": "humaneval/HumanEval.jsonl.gz"},
}
"""Task → split → file, under the data folder. MBPP's file has all splits."""
MBPP_SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "train": range(601, 975)}
LARGEST = 2**28
"""Bytes of a file, unpacked: the largest of the benchmarks has 4 MB."""


@dataclass(frozen=True)
class WordProblem:
    question: str
    answer: str

    def __post_init__(self) -> None:
        if "####" not in self.answer:
            raise ValueError(f"answer: expected a solution that ends with '#### number', got {self.answer[-40:]!r}")


@dataclass(frozen=True)
class Exercise:
    task_id: int
    text: str
    code: str
    test_list: list[str]

    def __post_init__(self) -> None:
        _require_python(self.code, "code")
        if not self.test_list:
            raise ValueError("test_list: expected at least one test, got none")
        _require_python("\n".join(self.test_list), "test_list")


@dataclass(frozen=True)
class MathProblem:
    problem: str
    solution: str
    answer: str


@dataclass(frozen=True)
class Instructions:
    key: int
    prompt: str
    instruction_id_list: list[str]
    kwargs: list[dict[str, Any]]

    def __post_init__(self) -> None:
        if not self.instruction_id_list or len(self.instruction_id_list) != len(self.kwargs):
            count = len(self.instruction_id_list)
            raise ValueError(
                f"kwargs: expected one for each of {count} instructions, at least 1, got {len(self.kwargs)}"
            )


@dataclass(frozen=True)
class Function:
    task_id: str
    prompt: str
    entry_point: str
    test: str

    def __post_init__(self) -> None:
        _require_python(self.prompt, "prompt")
        _require_python(self.test, "test")
        if not self.entry_point.isidentifier():
            raise ValueError(f"entry_point: expected a function's name, got {self.entry_point[:40]!r}")


ROWS: dict[str, type] = {
    "gsm8k": WordProblem,
    "mbpp": Exercise,
    "math500": MathProblem,
    "ifeval": Instructions,
    "humaneval": Function,
}
"""What a row of each task must have; what else it has is kept and not checked."""


def read_documents(path: Path, task: str, split: str) -> datasets.Dataset:
    """The rows of ``path`` that belong to a split."""
    if not path.is_file():
        expected = ", ".join(sorted(set(FILES[task].values())))
        raise ValueError(f"no file {path}: for {task} the data folder must hold {expected}")
    lines = read_bounded(path).split(b"\n")
    rows = [check_row(value, task, place) for place, value in parse_json_lines(lines, str(path))]
    if task == "mbpp":
        rows = [row for row in rows if row["task_id"] in MBPP_SPLITS[split]]
    if not rows:
        raise ValueError(f"{path} holds no documents for {task}")
    try:
        return datasets.Dataset.from_list(rows)
    except Exception as error:  # columns that are not of one type, numbers beyond 64 bits, half of a surrogate pair
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path}: its rows do not fit into one table: {reason[:200]}") from error


def read_bounded(path: Path) -> bytes:
    """A file, unpacked if it is ``.gz``, that is no larger than any benchmark."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            content = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if len(content) > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST // 2**20} MB when unpacked; is it the benchmark's file?")
    return content


def check_row(row: Any, task: str, place: str) -> dict[str, Any]:
    """``row``, if it has what the task needs; ``place`` names it in errors."""
    if not isinstance(row, dict):
        raise ValueError(f"{place}: expected a JSON object, got {type(row).__name__}")
    needed = {field.name for field in dataclasses.fields(ROWS[task])}
    read(ROWS[task], {key: value for key, value in row.items() if key in needed}, place)
    return row


def _require_python(code: str, field: str) -> None:
    try:
        parse_untrusted(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{field}: expected Python, got a text with {type(error).__name__}") from None
