"""Policies for text, for both kinds of backbone: training, resume bit for bit, memory, the preflight check."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.text import MADE, examples
from unmask.decoding import pricing
from unmask.decoding.protocols import Denoiser
from unmask.denoisers.loading import load_denoiser
from unmask.runs.run import Run
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy, build_policy
from unmask.tasks.jsonl import TextData
from unmask.training.cost.preflight import preflight
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.methods import choose_method
from unmask.training.policy.rollout import collect
from unmask.training.policy.run import PolicyRun, run_policy_training

FEATURES = ("confidence", "entropy", "position", "left", "right")
TRAINING = PolicyTraining(
    steps=2, prompts=3, group=2, states=16, select="nll", validate=4, validate_every=1, save_every=1
)


def setup(tmp_path: Path, family: str, kind: str = "mlp", **training: Any) -> PolicyRun:
    folder = tmp_path / family
    if not folder.exists():
        MADE[family](folder)
    data = TextData(file=examples(tmp_path / f"{family}.jsonl", family), length=6, held_out=0.3)
    policy = PolicyConfig(kind=kind, width=8, n_layers=1, n_heads=2, features=FEATURES, tokens=False)
    return PolicyRun(denoiser=str(folder), policy=policy, data=data, training=replace(TRAINING, **training))


def parts(config: PolicyRun) -> tuple[Denoiser, OrderPolicy, Any]:
    denoiser = load_denoiser(config.denoiser)
    torch.manual_seed(0)
    policy = build_policy(config.policy, denoiser, config.denoiser)
    assert isinstance(config.data, TextData)
    return denoiser, policy, config.data.problems(denoiser, config.denoiser)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    policy = load_scheduler(str(folder))
    assert isinstance(policy, OrderPolicy)
    return policy.state_dict()


@pytest.mark.parametrize(
    ("family", "kind"), [("llada", "mlp"), ("llada", "transformer"), ("llada", "hidden"), ("bert", "hidden")]
)
def test_resume_of_a_text_run_is_bit_for_bit(tmp_path: Path, family: str, kind: str) -> None:
    config = setup(tmp_path, family, kind)
    records = list(run_policy_training(config, tmp_path / "whole"))
    assert len(records) == 2
    assert all(record["nll"] > 0 for record in records)
    stopped = run_policy_training(config, tmp_path / "parts", stop=lambda: True)
    assert len(list(stopped)) == 1
    list(run_policy_training(config, tmp_path / "parts", resume=True))
    whole, again = (weights(tmp_path / name) for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], again[name]) for name in whole)
    start = parts(config)[1].state_dict()
    final = Run(tmp_path / "whole").load_latest()
    assert final is not None
    assert any(not torch.equal(final.tensors[f"policy.{name}"], start[name]) for name in start)
    stored = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert stored["data"]["kind"] == "text"


def test_policy_refuses_a_denoiser_it_was_not_trained_for(tmp_path: Path) -> None:
    config = setup(tmp_path, "llada", steps=1)
    list(run_policy_training(config, tmp_path / "run"))
    stored = json.loads((tmp_path / "run" / "policy" / "config.json").read_text())
    assert (stored["vocab_size"], stored["mask_id"], stored["denoiser"]) == (32, 29, str(tmp_path / "llada"))
    bert = load_denoiser(MADE["bert"](tmp_path / "bert"))
    with pytest.raises(ValueError, match="mask id 29, the denoiser's is 4"):
        load_scheduler(str(tmp_path / "run"), bert)
    with pytest.raises(ValueError, match=r"policy.kind must be one of general, .*transformer, got grid"):
        build_policy(PolicyConfig(kind="grid"), bert, "bert")


def test_rollouts_keep_nothing_of_vocabulary_size(tmp_path: Path) -> None:
    config = setup(tmp_path, "llada")
    denoiser, policy, source = parts(config)
    canvas = source(0, 3)
    rollout = collect(denoiser, choose_method(config.training, policy), canvas, torch.arange(6))
    kept = [*rollout.seen.values(), *(v for v in vars(rollout).values() if isinstance(v, torch.Tensor))]
    states, length = len(rollout.seen["hidden"]), canvas.tokens.shape[1]
    assert states == 2 * int(canvas.answer(denoiser.mask_id).sum())
    features = len(FEATURES) + 1
    assert max(tensor.numel() for tensor in kept) == states * length * features
    assert sum(tensor[0].numel() for tensor in rollout.seen.values()) < 32 * length  # the vocabulary has 32 rows


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_at_once_bounds_memory_and_keeps_the_result(tmp_path: Path, at_once: int) -> None:
    config = setup(tmp_path, "llada")
    denoiser, policy, source = parts(config)
    sizes: list[int] = []
    inner = denoiser.hidden

    def hidden(tokens: torch.Tensor, attention: torch.Tensor | None = None) -> torch.Tensor:
        sizes.append(len(tokens))
        return inner(tokens, attention)

    whole = collect(denoiser, choose_method(config.training, policy), source(0, 3), torch.arange(6))
    denoiser.hidden = hidden  # pyright: ignore[reportAttributeAccessIssue]
    some = collect(
        denoiser, choose_method(replace(config.training, at_once=at_once), policy), source(0, 3), torch.arange(6)
    )
    assert max(sizes) <= max(at_once, config.training.group)
    assert len(some) == len(whole)
    # The states of a part stand next to each other: compare what the decisions say, in any order.
    for name in ("old_logv", "advantage"):
        ours, theirs = (getattr(r, name).sort().values for r in (some, whole))
        assert torch.allclose(ours, theirs, atol=1e-5)
    seen, expected = (r.observed(torch.arange(len(r)))["features"].sum().item() for r in (some, whole))
    assert seen == pytest.approx(expected, rel=1e-5)
    assert some.summary["return"] == pytest.approx(whole.summary["return"], rel=1e-5)


def test_pricing_in_parts_equals_pricing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(23, 50, generator=torch.Generator().manual_seed(0)) * 4
    whole = pricing.price(logits, (3,))
    monkeypatch.setattr(pricing, "AT_ONCE", 50 * 4 + 7)
    some = pricing.price(logits, (3,))
    for name in pricing.NAMES:
        assert torch.allclose(getattr(some, name), getattr(whole, name), atol=1e-6, equal_nan=True), name


@pytest.mark.parametrize("family", MADE)
def test_preflight_bounds_forwards_and_memory_of_a_step(tmp_path: Path, family: str) -> None:
    config = setup(tmp_path, family)
    denoiser, policy, source = parts(config)
    canvas = source(0, 3)
    needs = preflight(denoiser, policy, canvas, config.training)
    before = denoiser.forwarded
    rollout = collect(denoiser, choose_method(config.training, policy), canvas, torch.arange(6))
    assert denoiser.forwarded - before <= needs.forwards
    kept = sum(tensor.nbytes for tensor in rollout.seen.values())
    assert kept < needs.memory["states"]
    assert needs.memory["weights"] == sum(p.nbytes for p in denoiser.parameters())  # pyright: ignore[reportAttributeAccessIssue]
    assert len(needs.lines) == 2
    needs.require()
    with pytest.raises(ValueError, match=r"does not fit into memory .* lower at_once, prompts or group"):
        replace(needs, available=int(needs.memory["states"])).require()


def test_a_run_that_does_not_fit_is_refused_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.training.cost.preflight._available", lambda device: 1000)
    needs: list[Any] = []
    with pytest.raises(ValueError, match="does not fit into memory"):
        list(run_policy_training(setup(tmp_path, "llada"), tmp_path / "run", needs=needs.append))
    assert len(needs) == 1
    assert Run(tmp_path / "run").metrics() == []


def test_distance_features_to_the_nearest_known_token() -> None:
    from support.denoisers import CountingTable, view_of
    from unmask.schedulers.features import compute_distances

    tokens = torch.tensor([[0, 3, 3, 3, 1, 3]])
    left, right = compute_distances(view_of(CountingTable(), tokens))
    steps = torch.tensor([[0.0, 1, 2, 3, 0, 1]]), torch.tensor([[0.0, 3, 2, 1, 0, 1]])
    for got, expected in zip((left, right), steps, strict=True):
        assert torch.allclose(got, torch.log2(1 + expected) / 8)
