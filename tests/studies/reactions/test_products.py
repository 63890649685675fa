"""Whole products before and after a second stage of a masked language model, and the answers of drawn orders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unmask.denoisers.loading import load_denoiser
from unmask.runs.presets import load_preset
from unmask.schedulers.loading import load_scheduler
from unmask.training.denoiser.second_stage import SecondStage
from unmask_studies.reactions.products import PUBLISHED, RANDOM, Products, draw_answers
from unmask_studies.reactions.study import measure_reactions
from unmask_studies.reactions.task import ReactionData
from unmask_studies.study import conclude, run_study

pytest.importorskip("rdkit", reason="RDKit is not installed (extra chem)")


def test_the_study_tunes_all_weights_of_a_masked_language_model(model: Path, file: str, tmp_path: Path) -> None:
    atoms = [
        (end + "C" * n, atom) for n in range(2, 16) for atom in "ON" for end in ("", "Cl", "O")
    ]  # enough that some are held out
    rows = [f"{chain}{atom}.CC(=O)O,{chain}{atom}C(C)=O" for chain, atom in atoms]
    Path(file).write_text("reactants,product\n" + "\n".join(rows) + "\n")
    study = Products(
        denoiser=str(model),
        data=Path(file),
        train=Path(file),
        tunings=(RANDOM, "confidence"),
        schedulers=("confidence",),
        samples=24,
        limit=2,
        draws=1,
        drawn=2,
    )
    for _ in run_study(study, tmp_path / "study"):
        pass
    first, second = conclude(study, tmp_path / "study", "reaction-products", "").tables
    assert [row[0] for row in first.rows] == ["— (as published)", RANDOM, "the states of confidence"]
    assert list(second.columns) == ["tuned on", "orders drawn by", "top-1 %", "top-2 %"]
    before = load_denoiser(model).state_dict()
    for name, orders in (("tuned-random-masks", 0), ("tuned-confidence", 1)):
        run = tmp_path / "study" / "runs" / name
        after = load_denoiser(run).state_dict()
        changed = {key for key in before if not torch.equal(before[key], after[key])}
        assert {"trunk" if ".bert." in key else "head" for key in changed} == {"trunk", "head"}
        assert len(list((run / "orders").glob("*"))) == orders  # random masks draw none


def test_the_first_answer_is_the_greedy_one_and_draws_differ(model: Path, file: str) -> None:
    task = ReactionData(file=file, part="product").problems(load_denoiser(model), str(model)).held_out(12, "all")
    scheduler = load_scheduler("margin")
    greedy = measure_reactions(task, scheduler, 0, range(12))["exact"]
    right = draw_answers(task, scheduler, range(12), 3, 0)["right"]
    assert [one[0] for one in right] == greedy
    assert {len(one) for one in right} == {4}


def test_the_study_needs_both_files(model: Path, file: str) -> None:
    with pytest.raises(ValueError, match="--data and --train"):
        Products(denoiser=str(model), data=Path(file)).grid()
    assert Products().models[0] == PUBLISHED


def test_the_preset_draws_orders_in_few_steps() -> None:
    stage = load_preset("stage2-rxnmapper", SecondStage, "finetune")
    assert (stage.decoding.steps, stage.data.kind, stage.adapter) == (6, "reaction", "")
