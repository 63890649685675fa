"""Rivals, seeds and orders for several tokens per step on reactions: as many calls, the recipes, the tables."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from unmask.runs.presets import load_preset
from unmask.schedulers.loading import load_scheduler
from unmask.training.policy.run import PolicyRun
from unmask_studies.catalogue import load_study
from unmask_studies.reactions.rivals import REFERENCE, Rivals, count_steps
from unmask_studies.reactions.study import measure_reactions
from unmask_studies.reactions.task import ReactionData
from unmask_studies.reports import get_denoiser
from unmask_studies.study import conclude, run_study

pytest.importorskip("rdkit", reason="RDKit is not installed (extra chem)")


@pytest.fixture
def study(model: Path, file: str) -> Rivals:
    chains = [(end + "C" * n, atom) for n in range(2, 16) for atom in "ON" for end in ("", "Cl", "O")]
    rows = [f"{chain}{atom}.CC(=O)O,{chain}{atom}C(C)=O" for chain, atom in chains]
    Path(file).write_text("reactants,product\n" + "\n".join(rows) + "\n")
    return Rivals(
        denoiser=str(model), data=Path(file), train=Path(file), shipped="margin", seeds=(1,), rivals=("rival-jazbec",),
        parallel=(REFERENCE, "sas-rxnmapper-general-parallel"), budgets=(2,), parallel_steps=2, calls=300, limit=6, seed_limit=4,
    )  # fmt: skip


def test_one_command_trains_measures_and_counts(study: Rivals, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    study = replace(study, steps=1)
    for _ in run_study(study, folder):
        pass
    seeds, rivals, budgets = conclude(study, folder, "reaction-rivals", "").tables
    assert [row[0] for row in seeds.rows] == ["confidence", "margin, as shipped", "sas-rxnmapper@1", "mean of 2 seeds"]
    assert [row[0] for row in rivals.rows] == ["confidence", "margin", "rival-jazbec", "rival-jazbec, its own coins"]
    assert [row[:2] for row in budgets.rows] == [["2", REFERENCE], ["2", "sas-rxnmapper-general-parallel"]]
    calls = rivals.columns.index("calls")
    assert float(str(rivals.rows[3][calls])) < float(str(rivals.rows[2][calls]))  # coins reveal several at a time
    opinion = dict(zip(rivals.columns, rivals.rows[2], strict=True))
    assert opinion["training calls"] and not opinion["through the copy"]  # a rival has no copy
    assert all("probably seen these reactions" in str(table.note) for table in (seeds, rivals, budgets))
    # Pieces that were measured apart are found again, wherever the files are.
    (tmp_path / "moved").mkdir()
    moved = Path(shutil.copy(str(study.train), tmp_path / "moved"))
    again = run_study(replace(study, train=moved), tmp_path / "again", reuse=[folder])
    assert all(done.seconds is None for done in again)


def test_trainings_cost_the_same(study: Rivals) -> None:
    for method in ("sas-rxnmapper-general", "rival-terminal", "rival-jazbec", "sas-rxnmapper-parallel"):
        config = study.load_recipe(method)
        config = replace(config, training=replace(config.training, prompts=min(8, config.training.prompts)))
        few, many = (count_steps(config, calls) for calls in (500, 2000))
        assert many == pytest.approx(4 * few, rel=0.4)
    # A forced rollout of one token per step forwards as many canvases as it hides tokens.
    problems = ReactionData(file=str(study.train)).problems(get_denoiser(study.denoiser), study.denoiser)
    config = study.load_recipe("rival-adaptive-orders")
    hidden = [int(problems(step, config.training.prompts).region.sum()) for step in range(3)]  # type: ignore[union-attr]
    assert count_steps(config, sum(hidden)) == 3


def test_a_rival_changes_the_general_recipe_as_it_changes_its_base(study: Rivals) -> None:
    general, rival = study.load_recipe("sas-rxnmapper-general"), study.load_recipe("rival-upo")
    assert rival.policy == general.policy and rival.data == general.data and general.policy.kind == "general"
    assert (rival.training.reward, rival.training.beta, rival.training.correctness) == ("terminal", 0.01, 0.0)
    assert rival.training.prompts * rival.training.group == general.training.prompts  # as many orders a step
    default = study.load_recipe("default")
    assert default.training.objective == "regression" and default.training.prompts == general.training.prompts
    assert study.load_recipe("sas-rxnmapper@2").training.seed == 2
    assert study.load_recipe("sas-rxnmapper-parallel").training.decoding.steps == 2
    shipped = load_preset("sas-rxnmapper", PolicyRun, "train")
    assert study.load_recipe("sas-rxnmapper@0").training == shipped.training  # what unmask train --seed 0 runs


def test_an_order_that_kept_its_start_is_confidence(study: Rivals, model: Path, tmp_path: Path) -> None:
    """So it is not decoded again."""
    study = replace(study, steps=1)
    run = study.ensure("sas-rxnmapper-general", tmp_path)
    policy = load_scheduler(str(run), get_denoiser(str(model)), str(model))
    for parameter in policy.network.readout.parameters():  # type: ignore[attr-defined]
        parameter.data.zero_()
    data = ReactionData(file=str(study.data)).problems(get_denoiser(str(model)), str(model)).held_out(12, "all")
    found, expected = (measure_reactions(data, one, 0, range(12)) for one in (policy, load_scheduler(REFERENCE)))
    assert found == expected


def test_the_preset_names_every_rival() -> None:
    study = load_study("reaction-rivals")
    known = [preset for preset in study.rivals if preset.startswith("rival-")]
    assert len(known) == 7 and study.coins == ("rival-jazbec",)


def test_bad_configurations(study: Rivals) -> None:
    for options in ({"limit": 1}, {"calls": 0}, {"budgets": (0,)}, {"parallel": ("sas",)}):
        with pytest.raises(ValueError, match=r"limits of 2 or more|parallel must have confidence"):
            replace(study, **options)
    with pytest.raises(ValueError, match="--data and --train"):
        replace(study, train=None).grid()
    with pytest.raises(ValueError, match="run unmask models rxnmapper --out nowhere/rxnmapper first"):
        replace(study, denoiser="nowhere/rxnmapper").grid()
