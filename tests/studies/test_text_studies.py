"""Studies on small text tasks: they measure what evaluate measures, train what is missing once, and count ends right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.commands import call
from support.studies import run
from support.studies import text as cell
from support.text_problems import Truthful, tiny
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Task
from unmask.denoisers.checkpoint import save_denoiser
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import EvaluationOptions, Report, Row, evaluate
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.arithmetic import Arithmetic
from unmask.tasks.code import Code
from unmask.tasks.kinds import Problems
from unmask.tasks.text_problems import TextProblemTask, text_problem_kinds
from unmask.tasks.vocabulary import END, PAD, encode
from unmask.training.denoiser.masked_trainer import MaskedTraining
from unmask.training.policy.config import PolicyTraining
from unmask_studies.catalogue import load_study
from unmask_studies.study import run_study
from unmask_studies.tables import Cell
from unmask_studies.text.character_models import CharacterDenoiser, shape_denoiser, train_character_denoiser
from unmask_studies.text.character_task import CharacterData
from unmask_studies.text.characters import Characters
from unmask_studies.text.ends import decode_with_ends, first_ends
from unmask_studies.text.lengths import Lengths
from unmask_studies.text.parallel import Parallel
from unmask_studies.text.passages import MASK, OTHER, Passages
from unmask_studies.text.study import Models, Texts, block_sizes
from unmask_studies.training_runs import is_finished, read_curve, read_history

pytestmark = pytest.mark.usefixtures("unchecked")

SMALL = Texts(generated=2, steps=1, prompts=1, validate=1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a denoiser for each task, and with a policy that several studies use."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, (name, kind) in enumerate(text_problem_kinds().items()):
        save_denoiser(tiny(kind, seed), folder / name / "denoiser")
    Models(SMALL, folder, folder / "made").train_policy("sas-arithmetic")
    (folder / "made" / "runs" / "sas-arithmetic").rename(folder / "sas-arithmetic")
    return folder


# Denoisers and policies.


def test_missing_models_are_trained_once(runs: Path, tmp_path: Path) -> None:
    here = Models(SMALL, runs, tmp_path)
    assert here.denoiser("code") == here.train_denoiser("code")["folder"] == str(runs / "code")
    history = here.train_policy("sas-code")
    assert history["denoiser"] == str(runs / "code") and history["steps"] == 1
    weights = tmp_path / "runs" / "sas-code" / "policy" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    assert here.train_policy("sas-code") == history and weights.stat().st_mtime_ns == written
    elsewhere = Models(SMALL, tmp_path / "runs", tmp_path / "other")
    assert elsewhere.policy("sas-code") == tmp_path / "runs" / "sas-code"
    with pytest.raises(ValueError, match=r"was trained for .*code, not for .*other"):
        elsewhere.train_policy("sas-code")


def test_a_missing_denoiser_is_trained(tmp_path: Path) -> None:
    Models(replace(SMALL, samples=64), None, tmp_path).train_denoiser("code")
    assert is_finished(tmp_path / "runs" / "code", "denoiser")
    stored = json.loads((tmp_path / "runs" / "code" / "config.json").read_text())
    assert stored["training"]["samples"] == stored["data"]["count"] == 64


def test_a_shorter_training_shows_the_same_canvases() -> None:
    usual, short = (Models(texts, None, Path()).recipe("sas-code") for texts in (Texts(), SMALL))
    assert isinstance(short.data, Code) and isinstance(usual.data, Code)
    assert short.data.count == 1 < usual.data.count
    assert replace(usual.data, count=1) == short.data
    assert torch.equal(short.data(0, 1).truth, replace(usual.data, count=40)(0, 1).truth)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Texts(limit=0), "expected some problems"),
        (lambda: Lengths(sets=Texts(generated=0)).grid(), "there are no problems"),
        (lambda: block_sizes("code", (3,)), "divide the length 40 of code"),
        (lambda: Lengths(tasks=("prose",)), "no text task 'prose'"),
        (lambda: Lengths(schedulers=("confidence",)), "schedulers must have left_to_right"),
        (lambda: Parallel(decodings=((6, 2),)), "a step for each of them"),
        (lambda: Parallel(paces=("fast",)), "fast"),
        (lambda: Models(Texts(), None, Path()).recipe("demo"), "the preset demo is for sudoku"),
        (lambda: Characters(policy_training=PolicyTraining()), "must be 'nll'"),
    ],
)
def test_impossible_configurations_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# The studies.


def test_lengths_are_what_evaluate_measures(runs: Path, tmp_path: Path) -> None:
    study = Lengths(tasks=("code",), blocks=(1, 4), schedulers=("left_to_right", "confidence"), sets=SMALL, runs=runs)
    found = run(study, tmp_path)
    measured = [path.name for path in (tmp_path / "pieces").glob("*left_to_right.json")]
    assert len(measured) == 3  # blocks do not change it
    columns = ["40–40", "40–10", "48–48", "48–12", "56–56", "56–14"]
    assert list(found.tables[0].columns) == ["scheduler", *columns]
    assert [row[0] for row in found.tables[1].rows] == columns
    assert [row[4] for row in found.tables[1].rows] == [""] * 6  # the paper has three numbers of blocks
    denoiser = load_denoiser(str(runs / "code"))
    task = TextProblemTask.generate(text_problem_kinds()["code"](count=2, split="test", length=48))
    learned = {"learned": load_scheduler(str(tmp_path / "runs" / "sas-code"), denoiser)}
    expected = evaluate(
        task, denoiser, learned, {"48–12": Decoding(block=12)}, EvaluationOptions(likelihood=False)
    ).rows[0]
    mine = found.evaluations[3].row("learned")
    assert (mine.decoding, mine.solved, mine.denoiser_calls) == ("48–12", expected.solved, expected.denoiser_calls)
    assert mine.cell == expected.cell and mine.n == 2
    again = [done.seconds for done in run_study(study, tmp_path, resume=True)]
    assert again == [None] * len(again)


def test_a_budget_bounds_the_calls(runs: Path, tmp_path: Path) -> None:
    study = Parallel(decodings=((40, 4), (20, 8)), paces=("threshold:p=0.5",), sets=SMALL, runs=runs)
    found = run(study, tmp_path)
    budgets, frontier = found.tables
    for row, steps in zip(budgets.rows, (4, 8), strict=True):
        assert all(float(calls) <= steps for calls in cell(row[-1]).split(" / "))
    calls = [float(cell(row[2])) for row in frontier.rows]
    assert calls == sorted(calls) and len(calls) == 9
    stored = json.loads((tmp_path / "runs" / "sas-arithmetic-parallel" / "config.json").read_text())
    assert stored["training"]["decoding"]["steps"] == 10
    assert (tmp_path / "parallel.svg").stat().st_size > 1000


def report_of_rows(values: dict[str, tuple[float, str]]) -> Report:
    """A report of schedulers with these calls per problem and these marks."""
    nothing = dict.fromkeys(("cell", "cell_low", "cell_high", "nll", "nll_low", "nll_high", "steps", "seconds"), 0.0)
    rows = []
    for name, (calls, solved) in values.items():
        share = solved.count("1") / len(solved)
        limits = {"exact": share, "exact_low": share, "exact_high": share}
        rows.append(
            Row(name, "", len(solved), **limits, **nothing, denoiser_calls=calls, versus=None, strata={}, solved=solved)
        )
    return Report("arithmetic", "", "", len(rows[0].solved), 0, rows)


def test_the_frontier_is_strong_only_where_the_paired_interval_excludes_0() -> None:
    few, many, more = "1" * 20 + "0" * 60, "1" * 60 + "0" * 20, "0" + "1" * 61 + "0" * 18
    cheap, dear = {"a": (4.0, few), "b": (5.0, many)}, {"c": (9.0, few), "d": (9.5, more)}
    rows = Parallel()._frontier({"cheap": report_of_rows(cheap), "dear": report_of_rows(dear)}).rows
    assert [(cell(row[1]), row[4]) for row in rows] == [("a", "yes"), ("b", "yes"), ("c", ""), ("d", "yes")]
    assert [row[3].strong for row in rows if isinstance(row[3], Cell)] == [True, True, False, False]


SHRUNK: dict[str, dict[str, Any]] = {
    "transfer": {"blocks": (1,), "schedulers": ("confidence",)},
    "rewards": {"schedulers": ("confidence",)},
    "hidden": {"blocks": (2,), "schedulers": ("confidence",)},
    "ends": {"task": "code", "schedulers": ("confidence",)},
    "countdown": {"schedulers": ("confidence",)},
}


@pytest.mark.parametrize("name", SHRUNK)
def test_small_studies_of_text(name: str, runs: Path, tmp_path: Path) -> None:
    study = replace(load_study(name, quick=True), sets=SMALL, runs=runs, **SHRUNK[name])
    found = run(study, tmp_path)
    for figure in found.figures:
        assert (tmp_path / f"{figure}.svg").read_text().lstrip().startswith("<?xml")
    table = found.tables[0]
    if name == "transfer":
        assert [cell(row[0]) for row in table.rows] == ["arithmetic → code", "code → arithmetic"]
        assert [cell(row[5]) for row in table.rows] == ["+1.5", "+8.5"]
    if name == "rewards":
        assert [cell(row[0]) for row in table.rows][-1] == "self-aware, relative, all-action"
        folders = [tmp_path / "runs" / f"reward-{kind}" for kind in ("self-aware", "terminal", "hybrid")]
        configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
        assert [config["training"].pop("reward") for config in configs] == ["self_aware", "terminal", "hybrid"]
        assert configs[0] == configs[1] == configs[2]
        assert all(read_curve(folder)[0][0] == 0 and len(read_curve(folder)) == 2 for folder in folders)
        assert all(read_curve(folder)[1][0] == read_history(folder)["calls"] for folder in folders)
    if name == "countdown":
        assert [cell(row[0]) for row in table.rows] == ["confidence", "learned"]
        with pytest.raises(ValueError, match=r"none at absent\.jsonl"):
            list(run_study(replace(study, data=(Path("absent.jsonl"),)), tmp_path / "other"))
        none = replace(study, sets=replace(study.sets, generated=0))
        with pytest.raises(ValueError, match="there are no problems"):
            list(run_study(none, tmp_path / "none"))
        file = tmp_path / "published.jsonl"
        file.write_text('{"input": "30,100,93", "output": "23"}\n')
        (only,) = run(replace(none, data=(file,)), tmp_path / "published").tables
        assert "published.jsonl" in only.title
    if name == "ends":
        assert [(cell(row[0]), cell(row[1])) for row in table.rows[:3]] == [
            ("confidence", ends) for ends in ("allow", "damp", "suppress")
        ]


def test_the_cost_of_a_policy(tmp_path: Path) -> None:
    found = run(load_study("cost", quick=True), tmp_path)
    rows = {cell(row[0]): row for row in found.tables[0].rows}
    assert cell(rows["FLOPs alone, any order: LLaDA-8B"][3]) == "1.67"
    assert any(name.startswith("measured, any order") for name in rows)


# End tokens.


@pytest.mark.parametrize("ends", ["allow", "damp", "suppress"])
def test_when_the_first_end_is_revealed(ends: str) -> None:
    task = TextProblemTask.generate(Arithmetic(count=5, split="test", length=48))
    for scheduler, first in (("right_to_left", 1.0 if ends == "suppress" else 0.0), ("left_to_right", 1.0)):
        found = decode_with_ends(task, Truthful(task), load_scheduler(scheduler), ends, seed=0)
        assert found["solved"] == "11111"
        assert found["first_end"] == [first] * 5
        assert found["short"] == found["long"] == [0] * 5


def test_share_of_the_text_before_the_first_end() -> None:
    start, a = 2, encode("a")[0]
    tokens = torch.tensor([[a, a, a, a, a, END, PAD], [a, a, a, a, a, a, a], [a, a, END, PAD, PAD, PAD, PAD]])
    order = torch.tensor([[3, 6, 2, 4, 5], [6, 5, 4, 3, 2], [2, -1, -1, -1, -1]])
    np.testing.assert_allclose(first_ends(order, tokens, start), [1 / 3, np.nan, 0.0])


# Characters.


def corpus(folder: Path) -> Path:
    file = folder / "text.txt"
    file.write_text("the cat sat on the mat and the dog ate the hat. " * 60 + "ü")
    return file


def test_passages_do_not_cross_their_part(tmp_path: Path) -> None:
    source = Passages(str(corpus(tmp_path)), given=4, length=8)
    canvas = source(3, 5)
    assert torch.equal(source(3, 5).truth, canvas.truth) and not torch.equal(source(4, 5).truth, canvas.truth)
    assert (canvas.tokens[:, :4] == canvas.truth[:, :4]).all() and (canvas.tokens[:, 4:] == 0).all()
    text, whole = source.text, "".join(map(chr, source.text.tolist()))
    assert text[-1] == OTHER and (text[:-1] > OTHER).all()
    train, test = ("".join(map(chr, source.part(split).tolist())) for split in ("train", "test"))
    assert whole.startswith(train) and whole.endswith(test)
    assert all("".join(map(chr, row)) in train for row in canvas.truth.tolist())
    held = source.held_out("test", 8).truth.tolist()
    assert all("".join(map(chr, row)) in test for row in held)
    with pytest.raises(ValueError, match="has 12 passages, not 13"):
        source.held_out("test", 13)
    with pytest.raises(ValueError, match="expected a text file"):
        _ = Passages(str(tmp_path / "absent.txt")).text


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A text, and the folder of a denoiser of its characters."""
    folder = tmp_path_factory.mktemp("characters")
    file = corpus(folder)
    source = Passages(str(file), given=4, length=8)
    config = CharacterDenoiser(shape_denoiser(source, 16, 1), source, MaskedTraining(samples=640, batch=32))
    train_character_denoiser(folder / "denoiser", config, 0)
    return file, folder / "denoiser"


def test_an_order_of_open_text_is_learned_by_the_default_recipe(
    characters: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file, denoiser = characters
    words = f"train --task characters --data {file} --data.given 4 --data.length 8 --denoiser {denoiser} --steps 1"
    words += f" --training.prompts 2 --training.validate 4 --training.validate-every 1 --out {tmp_path / 'order'}"
    code, _, err = call(monkeypatch, capsys, *words.split())
    assert code == 0, err
    assert "nats per held-out token after the trials: general" in err  # nothing is right or wrong
    words = f"evaluate --task characters --data {file} --given 4 --length 8 --denoiser {denoiser} --limit 6"
    words += f" --schedulers left_to_right,{tmp_path / 'order'} --json {tmp_path / 'found.json'}"
    code, _, err = call(monkeypatch, capsys, *words.split())
    assert code == 0, err
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert len(rows) == 2 and all(0 < row["nll"] < 8 * np.log(96) for row in rows)


def test_passages_are_problems_and_tasks(characters: tuple[Path, Path]) -> None:
    file, folder = characters
    data = CharacterData(file=str(file), given=4, length=8)
    problems = data.problems(load_denoiser(str(folder)), str(folder))
    task = problems.held_out(3)
    assert isinstance(problems, Problems) and isinstance(task, Task)
    canvas = task.canvas([2, 0])
    assert task.draw(0, canvas.tokens[1]).endswith("_" * 8) and "_" not in task.draw(0, canvas.truth[1])
    assert task.draw(0, canvas.truth[1]) in file.read_text()
    wrong = canvas.truth.clone()
    wrong[0, -2:] = MASK
    verdict = task.verify([2, 0], wrong)
    assert verdict.exact.tolist() == [False, True] and verdict.share.tolist() == [0.75, 1.0]
    whole = "".join(task.draw(0, row) for row in problems.fixed().truth)
    assert file.read_text().startswith(whole) and len(whole) > 2000
    with pytest.raises(ValueError, match="must be one of validation, test, got 'train'"):
        problems.held_out(3, "train")


def test_what_is_no_denoiser_of_characters_is_refused(characters: tuple[Path, Path]) -> None:
    file, folder = characters
    with pytest.raises(
        ValueError, match=r"sudoku-4x4 is no denoiser of characters for passages of 64: expected 96 tokens"
    ):
        CharacterData(file=str(file)).problems(load_denoiser("sudoku-4x4"), "sudoku-4x4")
    with pytest.raises(
        ValueError, match="expected 96 tokens, the mask 0 and as many positions, got 96 tokens, the mask 0 and 12"
    ):
        CharacterData(file=str(file)).problems(load_denoiser(str(folder)), str(folder))
    with pytest.raises(ValueError, match="open text has no file: name the text"):
        CharacterData().problems(load_denoiser("sudoku-4x4"), "sudoku-4x4")


def test_small_study_of_characters(tmp_path: Path) -> None:
    study = Characters(
        data=(corpus(tmp_path),),
        given=4,
        length=8,
        passages=6,
        width=16,
        layers=1,
        denoiser_training=MaskedTraining(samples=640, batch=32),
        policy_training=PolicyTraining(
            steps=2,
            prompts=2,
            group=2,
            advantage="reward_to_go",
            teacher="left_to_right",
            warm_start=1,
            validate=2,
            validate_every=1,
            save_every=1,
            select="nll",
        ),
        recipe_steps=1,
        schedulers=("random", "left_to_right"),
    )
    found = run(study, tmp_path / "study")
    assert [cell(row[0]) for row in found.tables[0].rows] == [
        "random",
        "left to right",
        "learned from confidence",
        "learned from left to right",
        "learned by the default recipe",
    ]
    recipe = json.loads((tmp_path / "study" / "runs" / "learned-by-the-default-recipe" / "config.json").read_text())
    assert recipe["data"]["kind"] == "characters" and recipe["training"]["objective"] == "regression"
    assert all(0 < float(cell(row[1]).split()[0]) < np.log2(96) for row in found.tables[0].rows)
    assert {cell(row[3]) for row in found.tables[0].rows} == {"8.0"}
    with pytest.raises(ValueError, match="name it with --data"):
        list(run_study(replace(study, data=()), tmp_path / "other"))
    assert not (tmp_path / "other").exists()
