"""The study of the default recipe: what it trains, what it leaves out, and what its table says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.studies import run, text
from unmask.schedulers.loading import describe_policy
from unmask.training.policy.run import PolicyRun
from unmask_studies.catalogue import load_study
from unmask_studies.recipes import PRESET, RECIPE, REFERENCE, SETTINGS, Recipes
from unmask_studies.tables import Cell

BOARDS, SUMS = "sudoku-4x4-imperfect", "arithmetic"


def test_both_recipes_are_trained_and_measured_on_the_same_problems(tmp_path: Path) -> None:
    study = load_study("recipes", quick=True)
    assert study.tasks == (BOARDS, SUMS)
    table = run(study, tmp_path / "study").tables[0]
    runs = tmp_path / "study" / "runs"
    names = ["recipe-arithmetic", "recipe-sudoku-4x4-imperfect", "sas-arithmetic", "sas-sudoku-4x4-imperfect"]
    assert sorted(path.name for path in runs.iterdir()) == names
    assert (runs / "recipe-arithmetic" / "trials" / "opinion").is_dir()  # which boards have no use for
    assert not (runs / "recipe-sudoku-4x4-imperfect" / "trials").exists()
    assert [text(row[0]) for row in table.rows] == [BOARDS, SUMS] and {text(row[1]) for row in table.rows} == {"8"}
    preset, recipe = (json.loads((runs / name / "config.json").read_text()) for name in (names[2], names[0]))
    assert (preset["policy"]["kind"], recipe["policy"]["kind"]) == ("transformer", "general")
    assert preset["denoiser"] == recipe["denoiser"] == "arithmetic"


def test_what_ships_is_not_trained_again(tmp_path: Path) -> None:
    study = replace(load_study("recipes", quick=True), tasks=(BOARDS,), steps=None, limit=60)
    measured = study.measure((BOARDS, PRESET), tmp_path)
    assert not (tmp_path / "runs").exists() and "history" not in measured
    shipped, trained = (study.identity((BOARDS, row)) for row in (PRESET, RECIPE))
    assert shipped is not None and shipped["how"] == describe_policy("sas-sudoku-4x4-imperfect")
    assert trained is not None and isinstance(trained["how"], PolicyRun)
    assert sum(measured["exact"]) > sum(study.measure((BOARDS, REFERENCE), tmp_path)["exact"])
    by_preset, by_recipe = (replace(study, tasks=(SUMS,)).identity((SUMS, row)) for row in (PRESET, RECIPE))
    assert by_recipe is not None and by_recipe["how"] == describe_policy("sas-arithmetic")
    assert by_preset is not None and isinstance(by_preset["how"], PolicyRun)  # the order that ships is not the preset's
    shorter = replace(study, steps=1)
    assert isinstance((shorter.identity((BOARDS, PRESET)) or {})["how"], PolicyRun)


def test_results_are_reused_where_nothing_differs(tmp_path: Path) -> None:
    study = replace(load_study("recipes", quick=True), tasks=(BOARDS,))
    run(study, tmp_path / "first")
    run(study, tmp_path / "second", reuse=[tmp_path / "first"])
    assert not (tmp_path / "second" / "runs").exists()
    other = replace(study, limit=9)
    assert all(study.identity(key) != other.identity(key) for key in study.grid())


def test_tasks_without_their_files_are_left_out(tmp_path: Path) -> None:
    tasks = {key[0] for key in Recipes(models=tmp_path).grid()}
    assert tasks == {name for name, setting in SETTINGS.items() if not setting.train}
    study = Recipes(models=tmp_path, heavy=tmp_path / "h.csv")
    with pytest.raises(
        ValueError, match=r"there is no .*/sapiens-vh: run unmask models sapiens-vh --out .*/sapiens-vh first"
    ):
        study.grid()
    (tmp_path / "sapiens-vh").mkdir()
    assert {key[0] for key in study.grid()} - tasks == {"antibodies-heavy"}
    assert study.identity(("code", REFERENCE)) is None  # its denoiser is not there yet
    with pytest.raises(ValueError, match="nothing to learn: name files with --reactions, --reactions-train"):
        Recipes(("reactions",)).grid()
    with pytest.raises(ValueError, match="no task 'chess': expected some of sudoku-9x9-imperfect, "):
        Recipes(tasks=("chess",))
    with pytest.raises(ValueError, match="limit must be at least 2, got 1"):
        Recipes(limit=1)


def test_the_table_says_what_is_better() -> None:
    history = {"calls": 1000, "kind": "general", "base": "confidence", "kept": 5}
    kept = {**history, "base": "margin", "kept": 0}
    right = {REFERENCE: [1] * 50 + [0] * 50, PRESET: [1] * 60 + [0] * 40, RECIPE: [1] * 90 + [0] * 10}
    nll = {REFERENCE: [5.0, 6.0, 7.0], PRESET: [4.0, 5.0, 6.0], RECIPE: [4.5, 5.6, 6.4]}
    results: Any = {
        ("code", row): {"exact": values, "calls": 40.0, "history": history} for row, values in right.items()
    }
    results |= {("antibodies-heavy", row): {"nll": values, "history": kept} for row, values in nll.items()}
    code, antibodies = Recipes().findings(results).tables[0].rows
    assert text(code[5]).startswith("90.0 [") and text(antibodies[5]).startswith("5.50 [")
    assert isinstance(code[6], Cell) and code[6].strong and code[6].text.startswith("+30.0 [")
    assert isinstance(antibodies[6], Cell) and antibodies[6].strong and antibodies[6].text.startswith("+0.50 [")
    assert (text(code[8]), text(antibodies[8])) == ("general, 5", "margin, 0")
    assert text(code[9]) == "1,000 and 1,000"
    del results["code", PRESET]["history"], results["antibodies-heavy", RECIPE]["history"]
    code, antibodies = Recipes().findings(results).tables[0].rows
    assert (text(code[9]), text(antibodies[8]), text(antibodies[9])) == (
        "shipped and 1,000",
        "shipped",
        "1,000 and shipped",
    )
    assert not any("," in name for name in SETTINGS)  # an option takes names with commas between them
