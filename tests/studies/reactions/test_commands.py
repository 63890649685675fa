"""Reactions from the command line: the task's own options, a reaction with gaps, one-line refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.commands import Call
from unmask.schedulers import loading

pytest.importorskip("rdkit", reason="RDKit is not installed (extra chem)")
HEAD = "reactants,product\n"


def evaluate(command: Call, model: Path, file: str, *words: str) -> dict:
    out = Path(file).with_suffix(".json")
    given = ("--task", "reaction", "--denoiser", str(model), "--data", file, "--json", str(out), "--no-nll")
    code, _, err = command(
        "evaluate", *given, *(() if "--schedulers" in words else ("--schedulers", "confidence")), *words
    )
    assert code == 0, err
    return json.loads(out.read_text())


def test_options_of_the_task_are_options_of_the_command(command: Call, model: Path, file: str) -> None:
    few = evaluate(command, model, file, "--hide", "0.2")
    many = evaluate(command, model, file, "--hide", "0.9")
    span = evaluate(command, model, file, "--part", "span", "--longest", "20")
    assert few["rows"][0]["denoiser_calls"] < many["rows"][0]["denoiser_calls"]
    assert few["source"] == "reactions.csv, 20% of the product, random"
    assert span["source"].endswith("70% of the product, span") and span["n"] < few["n"] == 12
    code, _, err = command("evaluate", "--hide", "0.5")
    assert code == 2 and "evaluate has no option --hide" in err


def test_traces_of_an_evaluation_draw_the_molecule(command: Call, model: Path, file: str, tmp_path: Path) -> None:
    evaluate(command, model, file, "--part", "reactant", "--limit", "3", "--traces", str(tmp_path / "t"))
    traces = [json.loads(path.read_text()) for path in sorted((tmp_path / "t").iterdir())]
    assert len(traces) == 3
    drawn = [one for trace in traces for one in trace["trajectories"] if "drawing" in one]
    for trajectory in drawn:
        assert trajectory["drawing"]["svg"].startswith("<svg") and "atom-0" in trajectory["drawing"]["svg"]


def test_a_reaction_is_completed(command: Call, model: Path, tmp_path: Path) -> None:
    page = tmp_path / "reaction.html"
    words = ("CO.CC(=O)O>>COC?3=O", "--denoiser", str(model), "--draws", "6")
    code, out, err = command("react", *words, "--json", "--out", str(page))
    assert code == 0, err
    record = json.loads(out)
    (answer,) = record["answers"]
    assert answer["answer"].startswith("CO.CC(=O)O>>COC") and answer["answer"].endswith("=O")
    assert [reveal["step"] for reveal in answer["reveals"]] == [1, 2, 3]
    assert sorted(reveal["place"] for reveal in answer["reveals"]) == [15, 16, 17]
    for reveal in answer["reveals"]:
        assert len(reveal["alternatives"]) == 3 and max(reveal["alternatives"].values()) <= 1
        assert reveal["token"] == next(iter(reveal["alternatives"]))
    assert sum(one["count"] for one in record["draws"]) == 6
    assert "unmask-trace" in page.read_text()
    code, out, _ = command("react", *words)
    assert code == 0 and "the order of confidence" in out and "whole answers" in out


def test_an_unknown_length_is_tried_out(command: Call, model: Path, tmp_path: Path) -> None:
    words = ("CO.CC(=O)O>>COC?2..4=O", "--denoiser", str(model), "--out", str(tmp_path / "r.html"))
    code, out, err = command("react", *words, "--json")
    assert code == 0, err
    record = json.loads(out)
    assert [len(one["reveals"]) for one in record["lengths"]] == [2, 3, 4]
    keys = [(one["valid"], one["conserved"], one["logp"] / len(one["reveals"])) for one in record["lengths"]]
    assert record["answers"][0]["answer"] == record["lengths"][keys.index(max(keys))]["answer"]
    assert (tmp_path / "r.html").read_text().count('"unmask-trace"') >= 3
    code, out, _ = command("react", *words)
    assert code == 0 and "log p per token" in out


@pytest.mark.parametrize(
    ("reaction", "message"),
    [
        ("CO>>C?4..2", "one range of at most 30 lengths"),
        ("CO.CxC>>C?", "unknown character 'x' at position 5"),
        ("C1CO>>C?", "not a valid molecule: 'C1CO'"),
        ("CCO.C1CO>>C?", "not a valid molecule: 'C1CO'"),
        ("CF>>C?", "does not know the token 'F' of 'CF>>C?'"),
        ("CO>CC>C?", "write reagents among the reactants, reactants.reagents>>product, got 'CO>CC>C?'"),
        ("CO>>C?80", "too long for the model: 86 tokens with its ends, expected at most 64"),
        ("CO>>CO", "with ? for what is open"),
    ],
)
def test_reactions_that_are_refused(command: Call, model: Path, reaction: str, message: str) -> None:
    code, out, err = command("react", reaction, "--denoiser", str(model))
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("CC,Cx", "line 2: not a SMILES string: unknown character 'x'"),
        ("CC,C1C", "not a valid molecule: 'C1C'"),
        ("CF,CF", "does not know the token 'F'"),
        (f"{'C' * 120},CC", "every reaction is longer than 62 tokens"),
    ],
)
def test_files_that_are_refused(command: Call, model: Path, tmp_path: Path, row: str, message: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(f"{HEAD}{row}\n")
    code, out, err = command("evaluate", "--task", "reaction", "--denoiser", str(model), "--data", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


def test_a_damaged_wheel_is_refused(command: Call, tmp_path: Path) -> None:
    (tmp_path / "rxnmapper-0.4.3-py3-none-any.whl").write_bytes(b"PK damaged")
    code, out, err = command("models", "rxnmapper", "--out", str(tmp_path / "new"), "--wheels", str(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1) and "is not the expected release: its SHA-256 is" in err
    assert not (tmp_path / "new").exists()


def test_an_order_is_learned_and_ships_under_the_models_name(
    command: Call, model: Path, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--task", "reaction", "--denoiser", str(model), "--data", file, "--data.validation", "0.4")
    small = ("--steps", "1", "--training.prompts", "2", "--training.validate", "2", "--policy.width", "8")
    code, _, err = command("train", *words, *small, "--out", str(tmp_path / "run"))
    assert code == 0, err
    named = tmp_path / "any-name"
    shutil.copytree(model, named)
    config = json.loads((named / "config.json").read_text())
    (named / "config.json").write_text(json.dumps(config | {"unmask_name": "tiny"}))
    monkeypatch.setattr(loading, "POLICIES", tmp_path / "shipped")
    with pytest.raises(ValueError, match="no policy sas ships for the denoiser"):
        loading.load_scheduler("sas", denoiser_name=str(named))
    shutil.copytree(tmp_path / "run" / "policy", tmp_path / "shipped" / "sas-tiny")
    assert evaluate(command, named, file, "--schedulers", "sas", "--limit", "3")["rows"][0]["scheduler"] == "sas"
