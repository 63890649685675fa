"""The study of the default recipe's ingredients: what each changes, equal calls, and what its tables say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.studies import run, text
from unmask.runs.run import Run
from unmask_studies.catalogue import load_study
from unmask_studies.ingredients import INGREDIENTS, NOISY, OTHER_PRICES, RECIPE, Ingredients

BOARDS, SUMS = "sudoku-4x4-imperfect", "arithmetic"


def test_ingredients_are_trained_for_equal_calls_and_compared_with_the_recipe(tmp_path: Path) -> None:
    study = load_study("ingredients", quick=True)
    tables = run(study, tmp_path / "study").tables
    assert len(tables) == 2 and tables[0].title.startswith(BOARDS)
    for task, table in zip((BOARDS, SUMS), tables, strict=True):
        rows = [[text(cell) for cell in row] for row in table.rows]
        assert [row[0] for row in rows] == ["confidence", RECIPE, OTHER_PRICES]
        assert rows[1][4] == "" and rows[2][4].startswith(("+", "−"))
        calls = [
            Run(tmp_path / "study" / "runs" / f"{task}-{name}@0").metrics()[-1]["denoiser_calls"]
            for name in (RECIPE, OTHER_PRICES)
        ]
        assert [row[5] for row in rows[1:]] == [f"{count:,}" for count in calls]
        assert 0.5 < calls[0] / calls[1] < 2  # answers differ in length, and the two see other problems


@pytest.mark.parametrize("task", [BOARDS, SUMS])
@pytest.mark.parametrize("name", INGREDIENTS)
def test_an_ingredient_differs_from_the_recipe_as_it_says(task: str, name: str) -> None:
    study = Ingredients(tasks=(task,))
    base, changed = (study.recipe(task, one, 1) for one in (RECIPE, name))
    assert base.training.relative == (task in NOISY)
    for training in (base.training, changed.training):
        assert training.prompts * (1 + training.relative) == 2 * study.prompts
        assert (training.seed, training.steps, training.race) == (1, study.steps, ())
    expected = {"relative": base.training.relative != (name == OTHER_PRICES)} | dict(INGREDIENTS[name].training)
    assert {option: getattr(changed.training, option) for option in expected} == expected
    assert (changed.training, changed.policy) != (base.training, base.policy) or name == RECIPE


def test_what_the_study_cannot_measure_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tasks: expected some of sudoku-9x9-imperfect, .* got 'code'"):
        Ingredients(tasks=("code",))
    with pytest.raises(ValueError, match=r"ingredients: expected some of recipe, .* got 'luck'"):
        Ingredients(ingredients=(RECIPE, "luck"))
    with pytest.raises(ValueError, match="the ingredient 'recipe', with which the others are compared"):
        replace(Ingredients(), ingredients=("hot",))
