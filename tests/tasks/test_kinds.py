"""The table of task kinds: every built-in kind fits it, and a plug-in adds one with a file and an entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unmask.tasks.kinds import (
    DEFAULT_PRESET,
    KINDS,
    EvaluationRequest,
    GeneratedKind,
    TaskKind,
    evaluation_set,
    find_kind,
    find_preset,
)
from unmask.tasks.sudoku.source import SudokuData

PLUGIN = '''
from dataclasses import dataclass, replace
from typing import Literal

from unmask.tasks.kinds import TaskKind
from unmask.tasks.sudoku.source import SudokuProblems, SudokuData


@dataclass(frozen=True)
class Easy(TaskKind):
    """4x4 boards with a few blanks."""

    kind: Literal["easy"] = "easy"
    seed: int = 0
    blanks: int = 2

    options = {"blanks": "How many cells are blank."}

    def problems(self, denoiser, name):
        return Problems(SudokuData(size=4, puzzles=8, clues=str(16 - self.blanks), seed=self.seed))


class Problems(SudokuProblems):
    def held_out(self, count, which=None):
        clues = self.data.clues
        return super().held_out(count, clues)
'''

PRESET = """
denoiser = "sudoku-4x4"
[data]
kind = "easy"
blanks = 3
[policy]
kind = "mlp"
width = 8
[training]
steps = 1
prompts = 2
group = 2
validate = 2
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A distribution with one task kind, as an installer would lay it out."""
    folder = tmp_path / "site"
    described = folder / "easy_task-1.0.dist-info"
    described.mkdir(parents=True)
    (folder / "easy_task.py").write_text(PLUGIN)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: easy-task\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[unmask.tasks]\neasy = easy_task:Easy\n")
    return folder


def unmask(plugin: Path, *words: str) -> str:
    path = os.pathsep.join([str(plugin), *sys.path])
    command = [sys.executable, "-c", "from unmask.cli.main import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_evaluate_a_task_of_a_plugin(plugin: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    words = ("--task", "easy", "--denoiser", "sudoku-4x4", "--limit", "3", "--schedulers", "confidence,random")
    unmask(plugin, "evaluate", *words, "--blanks", "3", "--json", str(file))
    report = json.loads(file.read_text())
    assert report["task"] == "sudoku" and len(report["rows"]) == 2
    assert report["rows"][0]["denoiser_calls"] == 3
    assert "How many cells are blank." in unmask(plugin, "evaluate", "--task", "easy", "--help")


def test_train_on_a_task_of_a_plugin(plugin: Path, tmp_path: Path) -> None:
    (tmp_path / "easy.toml").write_text(PRESET)
    unmask(plugin, "train", "--task", "easy", "--preset", str(tmp_path / "easy.toml"), "--out", str(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data"] == {
        "kind": "easy",
        "seed": 0,
        "blanks": 3,
    }
    assert (tmp_path / "run" / "policy").is_dir()


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_registered_under_its_own_name(name: str) -> None:
    kind = find_kind(name)
    assert issubclass(kind, TaskKind) and kind.kind == name
    if issubclass(kind, GeneratedKind):
        assert kind().first(3).problem_count == 3
        assert kind().shape()["mask_id"] == 0


def test_errors_name_the_nearest_task_and_the_missing_option() -> None:
    with pytest.raises(ValueError, match=r"no task 'sudko': expected one of .*; did you mean 'sudoku'"):
        find_kind("sudko")
    assert find_preset("code") == DEFAULT_PRESET
    with pytest.raises(ValueError, match="text is read from a file: name it with --data"):
        evaluation_set("text", "sudoku-4x4", EvaluationRequest())


def test_problems_to_learn_from_fit_the_denoiser() -> None:
    data = find_kind("sudoku").for_training("sudoku-4x4")
    assert isinstance(data, SudokuData)
    assert data.size == 4
    with pytest.raises(ValueError, match="name another --task"):
        find_kind("sudoku").for_training("arithmetic")
