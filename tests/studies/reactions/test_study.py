"""The study of reactions: its gaps, what it measures of a scheduler, and its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.loading import load_scheduler
from unmask_studies.reactions.study import Reactions, measure_reactions, parse_gap, token_class
from unmask_studies.reactions.task import ReactionData
from unmask_studies.study import conclude, run_study

pytest.importorskip("rdkit", reason="RDKit is not installed (extra chem)")


def test_gaps_are_named_by_part_and_share() -> None:
    data = parse_gap("span:0.25", ReactionData(file="x.csv"))
    assert (data.part, data.hide, data.file) == ("span", 0.25, "x.csv")
    assert parse_gap("drawn:0.5", data).part == "random"
    for gap in ("random:x", "random:1.5"):
        with pytest.raises(ValueError, match=rf"gap '{gap}': .*such as random:0.7"):
            parse_gap(gap, data)


def test_a_measurement_agrees_with_decoding_each_reaction_alone(model: Path, file: str) -> None:
    denoiser = load_denoiser(model)
    task = ReactionData(file=file, hide=0.3).problems(denoiser, str(model)).held_out(12, "all")
    scheduler = load_scheduler("confidence")
    result = measure_reactions(task, scheduler, 0, range(len(task)))
    for row in range(len(task)):
        canvas = task.canvas([row])
        trajectory = unmask(denoiser, scheduler, canvas, record=False)
        assert result["exact"][row] == bool(task.verify([row], trajectory.tokens).exact[0])
        wrong = result["wrong"][row]
        assert (wrong is None) == bool((trajectory.tokens == canvas.truth).all())
        if wrong is not None:
            places = [
                k for k, i in enumerate(trajectory.order[0].tolist()) if trajectory.tokens[0, i] != canvas.truth[0, i]
            ]
            position = int(trajectory.order[0, places[0]])
            assert wrong["truth"] == task.text([int(canvas.truth[0, position])])
            assert wrong["p"] == pytest.approx(float(trajectory.logp[0, places[0]].exp()), abs=1e-5)
            alone = canvas.truth.clone()
            alone[0, position] = denoiser.mask_id
            last = unmask(denoiser, scheduler, Canvas(alone, attention=canvas.attention), record=False)
            assert wrong["last"] == bool((last.tokens == canvas.truth).all())


def test_the_oracle_finds_answers_of_the_denoiser_itself(model: Path, file: str) -> None:
    task = ReactionData(file=file).problems(load_denoiser(model), str(model)).held_out(8, "all")
    drawn = {
        name: measure_reactions(task, load_scheduler(name), 0, range(8), drawn=True) for name in ("random", "gt_logp")
    }
    assert np.sum(drawn["gt_logp"]["identical"]) >= np.sum(drawn["random"]["identical"])
    assert drawn["random"]["exact"] == drawn["random"]["identical"]


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("c", "aromatic atom"),
        ("C", "carbon"),
        ("Cl", "other atom"),
        ("[nH]", "atom in brackets"),
        ("(", "branch"),
        ("1", "ring bond"),
        ("%12", "ring bond"),
        ("=", "bond or dot"),
    ],
)
def test_classes_of_tokens(token: str, expected: str) -> None:
    assert token_class(token) == expected


def test_the_study_writes_its_tables(model: Path, file: str, tmp_path: Path) -> None:
    study = Reactions(
        denoiser=str(model.parent),
        models=(model.name,),
        data=Path(file),
        gaps=("random:0.3", "fragment"),
        schedulers=("confidence", "random", "gt_logp"),
        limit=6,
        every_order=3,
        few=3,
    )
    assert len(list(run_study(study, tmp_path / "out"))) == 7
    findings = conclude(study, tmp_path / "out", "reactions", "unmask study reactions")
    assert [len(table.rows) for table in findings.tables[::2]] == [3, 3, 4]
    last = findings.tables[-1]
    assert [row[0] for row in last.rows] == [
        "confidence",
        "all orders, the likeliest answer",
        "all orders, the likeliest valid answer",
        "oracle: any order",
    ]
    assert "the last 3 tokens by every order, n = 3" in last.title
    text = (tmp_path / "out" / "tables.md").read_text()
    assert "30% random tokens of the product hidden, n = 6" in text and "probably seen these reactions" in text
    assert (tmp_path / "out" / "reactions.svg").exists()


def test_pieces_of_a_shorter_study_are_reused(
    model: Path, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask_studies.reactions.study.PART", 4)
    whole = Reactions(
        denoiser=str(model.parent), models=(model.name,), data=Path(file), gaps=("random:0.3",),
        schedulers=("confidence",), limit=10, every_order=0,
    )  # fmt: skip
    short = replace(whole, limit=8)
    assert len(list(run_study(short, tmp_path / "short"))) == 2
    done = list(run_study(whole, tmp_path / "whole", reuse=[tmp_path / "short"]))
    assert [one.seconds is None for one in done] == [True, True, False]
    table = conclude(whole, tmp_path / "whole", "reactions", "unmask study reactions").tables[0]
    assert "n = 10" in table.title
    monkeypatch.setattr("unmask_studies.reactions.study.PART", 100)
    list(run_study(whole, tmp_path / "at once"))
    assert conclude(whole, tmp_path / "at once", "reactions", "unmask study reactions").tables[0].rows == table.rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name a CSV file"),
        ({"data": Path("x.csv"), "denoiser": "nowhere"}, "run unmask models rxnmapper --out nowhere/rxnmapper first"),
    ],
)
def test_what_the_study_needs(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Reactions(**options).grid()


@pytest.mark.parametrize("options", [{"limit": 1}, {"baseline": "margins"}, {"gaps": ("random:2",)}, {"few": 11}])
def test_bad_configurations(options: dict) -> None:
    with pytest.raises(ValueError, match=r"limit must be|not among the schedulers|hide must be|few in 1 \.\. 10"):
        Reactions(**options)
