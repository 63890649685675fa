"""What a ranking of positions gets wrong along the truth, and the study that fits one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from unmask.decoding.loop import unmask
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import build_policy
from unmask.training.policy.methods import choose_method
from unmask.training.policy.run import load_run
from unmask_studies.reactions import learnable
from unmask_studies.reactions.learnable import HEURISTICS, ORACLE, OTHERS, OWN, Learnable, draw_states, fit
from unmask_studies.reactions.task import ReactionData
from unmask_studies.study import conclude, run_study

pytest.importorskip("rdkit", reason="RDKit is not installed (extra chem)")


def test_first_choices_are_those_of_the_decoding(model: Path, file: str) -> None:
    denoiser = load_denoiser(model)
    task = ReactionData(file=file).problems(denoiser, str(model)).sides["all"]
    recipe = load_run("reaction", "default", str(model))
    policy = build_policy(recipe.policy, denoiser, str(model))
    method = choose_method(recipe.training, policy)
    states = draw_states(task, [3, 5], method, seed=0)
    found = states.judge(states.prices["confidence"])
    for nth in range(len(states.reaction)):
        canvas = task.canvas([int(states.reaction[nth])])
        tokens = states.rollout.seen["tokens"][nth][: canvas.tokens.shape[1]][None]
        decoded = unmask(denoiser, load_scheduler("confidence"), type(canvas)(tokens), record=False)
        first = int(decoded.order[0, 0])
        assert found.first[nth] == float(decoded.tokens[0, first] != canvas.truth[0, first])
    oracle = states.judge(states.rollout.reward)
    assert sum(oracle.first) <= sum(found.first)


def test_a_fitted_policy_knows_its_own_states(model: Path, file: str) -> None:
    denoiser = load_denoiser(model)
    task = ReactionData(file=file).problems(denoiser, str(model)).sides["all"]
    recipe = load_run("reaction", "default", str(model))
    policy = build_policy(recipe.policy, denoiser, str(model))
    states = draw_states(task, [3, 5, 7], choose_method(recipe.training, policy), seed=0)
    truth = states.rollout.reward.exp()[states.rollout.eligible]

    def loss() -> float:
        with torch.no_grad():
            scores = policy.score(states.rollout.seen)[states.rollout.eligible]
        return float(torch.nn.functional.binary_cross_entropy_with_logits(scores, truth))

    before = loss()
    training = type(recipe.training)(objective="regression", steps=20, states=64, lr=1e-3, ema=0.5)
    fit(policy, [states.rollout], training)
    assert loss() < before


def test_the_study_writes_its_table(model: Path, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnable, "BATCH", 4)
    study = Learnable(denoiser=str(model), data=Path(file), reactions=8, steps=3, epochs=1)
    assert len(list(run_study(study, tmp_path / "out"))) == 1
    findings = conclude(study, tmp_path / "out", "reaction-orders", "unmask study reaction-orders")
    assert [row[0] for row in findings.tables[0].rows] == [*HEURISTICS, OTHERS, OWN, ORACLE]
    assert "of 8 reactions" in findings.tables[0].title
    assert (tmp_path / "out" / "orders.svg").exists()


@pytest.mark.parametrize("options", [{"reactions": 63}, {"steps": 0}, {"epochs": 0}])
def test_bad_configurations(options: dict) -> None:
    with pytest.raises(ValueError, match="at least 64 reactions, a step and an epoch"):
        Learnable(**options)


def test_the_study_needs_reactions() -> None:
    with pytest.raises(ValueError, match="name a CSV file"):
        Learnable().grid()
