"""The table of task kinds: every built-in kind fits it."""

from __future__ import annotations

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
