"""Schedulers and denoisers by name, and the errors for unknown names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from unmask.assets import MODELS, POLICIES
from unmask.decoding.loop import unmask
from unmask.decoding.paces import load_pace
from unmask.decoding.protocols import Denoiser
from unmask.denoisers.checkpoint import save_denoiser
from unmask.denoisers.loading import list_denoisers, load_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.runs.names import did_you_mean
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import SCHEDULERS, _load_policy, load_scheduler
from unmask.schedulers.policy import OrderPolicy
from unmask.tasks.sudoku.task import SudokuTask


def test_denoisers_ship_with_the_package() -> None:
    assert "sudoku-9x9-imperfect" in list_denoisers()


@pytest.mark.parametrize("name", list_denoisers())
def test_shipped_denoisers_are_frozen(name: str) -> None:
    denoiser = load_denoiser(name)
    assert isinstance(denoiser, Denoiser)
    assert not denoiser.training
    assert not any(p.requires_grad for p in denoiser.parameters())
    assert denoiser.mask_id in denoiser.forbidden_ids
    length = denoiser.config.max_length
    canvas = torch.zeros(1, length, dtype=torch.long)
    assert denoiser.logits(denoiser.hidden(canvas)[0]).isfinite().all()
    assert denoiser.embedding.weight.dtype == torch.float32
    folder = MODELS / name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 5_000_000  # it is part of a package


def test_by_folder_and_by_the_run_that_trained_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TransformerConfig(vocab_size=5, width=6, n_layers=1, n_heads=3, ffn=8, mask_id=0, max_length=16)
    trained = Transformer(config).initialise(torch.Generator().manual_seed(0))
    save_denoiser(trained, tmp_path / "run" / "denoiser")
    monkeypatch.chdir(tmp_path)  # a relative path with one slash is a folder before it is an id on the hub
    for name in (tmp_path / "run", tmp_path / "run" / "denoiser", str(tmp_path / "run"), "run", "run/denoiser"):
        assert torch.equal(load_denoiser(name).head.weight, trained.head.weight)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sudoku-9x9-imperfet", "did you mean 'sudoku-9x9-imperfect'"),
        ("nothing like it", "expected a folder, a hub id, or one of"),
        (Path("absent"), "expected a denoiser's folder"),
        (Path("absent/code"), "got absent/code; unmask pretrain --preset code --out absent/code trains one"),
        ("./absent/code", "no denoiser .*; unmask pretrain --preset code --out ./absent/code trains one"),
    ],
)
def test_unknown_denoisers(name: str | Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_denoiser(name)


def test_folders_without_a_denoiser(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"with config\.json and model\.safetensors"):
        load_denoiser(str(tmp_path))


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> str:
        raise OSError("no network\nsecond line")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(ValueError, match=r"'some/model' is neither a local folder nor a model on the Hub: no network$"):
        load_denoiser("some/model")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_has_defaults(name: str) -> None:
    assert callable(load_scheduler(name))


def test_options_reach_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    def build(k: int = 5, tau: float = 1.0, table: object = None):
        given.update(k=k, tau=tau, table=table)
        return confidence

    monkeypatch.setitem(SCHEDULERS.declared, "built", None)
    monkeypatch.setitem(SCHEDULERS._loaded, "built", build)
    assert load_scheduler(" built:tau=2:k=3 ") is confidence
    assert given == {"k": 3, "tau": 2.0, "table": None}
    assert type(given["tau"]) is float
    for spec, message in {
        "built:k=2.5": "k must be a whole number of at least 1, got '2.5'",
        "built:k=0": "k must be a whole number of at least 1",
        "built:k=-2": "k must be a whole number of at least 1",
        "built:tau=-1": "tau must be a number of at least 0",
        "built:tau=nan": "tau must be a number of at least 0, got 'nan'",
        "built:tau=inf": "tau must be a number of at least 0",
        "built:tau=1e308": "tau must be a number of at least 0 and at most 1e+30, got '1e308'",
        "built:tau=": "tau must be a number",
        "built:table=3": "no option 'table=3': it takes k=5, tau=1.0",
        "built:tua=3": "no option 'tua=3': it takes k=5, tau=1.0; did you mean 'tau'",
        "built:k": "no option 'k'",
    }.items():
        with pytest.raises(ValueError) as error:
            load_scheduler(spec)
        assert message in str(error.value)


def test_unknown_schedulers_and_paces() -> None:
    with pytest.raises(ValueError, match=r"no scheduler 'confidnce': expected one of .*did you mean 'confidence'"):
        load_scheduler("confidnce")
    with pytest.raises(ValueError, match=r"no pace 'treshold': .*did you mean 'threshold'"):
        load_pace("treshold")
    with pytest.raises(ValueError, match="it takes no options"):
        load_scheduler("random:k=3")
    assert callable(load_pace("threshold:p=0.5"))


def test_only_near_names_are_suggested() -> None:
    assert did_you_mean("margn", ["margin", "entropy"]) == "; did you mean 'margin'?"
    assert did_you_mean("xyz", ["margin", "entropy"]) == ""


def test_every_shipped_denoiser_has_a_policy() -> None:
    for name in list_denoisers():
        denoiser = load_denoiser(name)
        policy = load_scheduler("sas", denoiser, name)
        assert isinstance(policy, OrderPolicy)
        assert policy.config.denoiser == name
    general = load_scheduler("sas-general", load_denoiser("sudoku-9x9-imperfect"), "sudoku-9x9-imperfect")
    assert isinstance(general, OrderPolicy) and general.config.kind == "general"
    sums = load_denoiser("arithmetic")
    best, general = (load_scheduler(name, sums, "arithmetic") for name in ("sas", "sas-general"))
    assert isinstance(best, OrderPolicy) and isinstance(general, OrderPolicy)
    assert torch.equal(
        best.network.readout.weight, general.network.readout.weight
    )  # where it is the best, it ships once
    with pytest.raises(ValueError, match="no policy sas-general ships for the denoiser 'sudoku-4x4'"):
        load_scheduler("sas-general", None, "sudoku-4x4")
    with pytest.raises(ValueError, match="no policy sas ships for the denoiser 'mine'"):
        load_scheduler("sas", None, "mine")


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in POLICIES.glob("*/config.json")), ids=lambda path: path.name
)
def test_every_shipped_policy_and_head_loads(folder: Path) -> None:
    """With the weights of the network that it was made with, whatever new policies of its kind are made of."""
    config = json.loads((folder / "config.json").read_text())
    denoiser = load_denoiser(config["denoiser"]) if config["denoiser"] in list_denoisers() else None
    policy = _load_policy(folder, denoiser, config.get("purpose", "order"))
    assert policy.config.kind == config["kind"]


@pytest.mark.parametrize("name", ["confidence", "sas", "pc_sampler:decay=1"])
def test_rounded_scores_tie_by_index(name: str) -> None:
    """Any scheduler may be rounded: scores that agree to so many decimals go from left to right."""
    board = "sudoku-4x4-imperfect"
    denoiser, canvas = load_denoiser(board), SudokuTask.generate(3, 4, "4-6", "test", 0).canvas(range(3))
    exact, rounded = (
        unmask(denoiser, load_scheduler(spec, denoiser, board), canvas) for spec in (name, f"{name}:round=0")
    )
    assert exact.states is not None and rounded.states is not None
    first = rounded.states.step == 0  # of the same canvases
    expected = exact.states.scores[exact.states.step == 0].round()
    assert torch.equal(rounded.states.scores[first], expected)
    eligible = rounded.states.eligible[first]
    assert torch.equal(rounded.order[:, 0], expected.masked_fill(~eligible, -torch.inf).argmax(1))
    with pytest.raises(ValueError, match=r"round must be a number of decimals in 0 \.\. 6, got 'x'"):
        load_scheduler(f"{name}:round=x")
