"""Heads: loaded by folder and for their purpose, rows apart; trained, and a resumed training equals an uninterrupted one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, View
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heads import Doubt, LearnedPace
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy, build_policy
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.head_methods import PaceHead
from unmask.training.policy.run import PolicyRun, run_policy_training

NAME = "sudoku-4x4-imperfect"
CANVAS = SudokuTask.generate(6, 4, "6-7", "test", 0).canvas(range(6)).seeded(torch.arange(6))
KINDS = {
    "grid": {"kind": "grid", "width": 8},
    "mlp": {"kind": "mlp", "width": 8},
    "transformer": {"kind": "transformer", "width": 8, "n_layers": 1},
    "hidden": {"kind": "hidden", "width": 8},
    "general": {"kind": "general", "width": 64, "n_layers": 1, "token_width": 6},
}


def head(purpose: str, **options: Any) -> OrderPolicy:
    torch.manual_seed(0)
    config = PolicyConfig(residual=False, purpose=purpose, **(options or KINDS["grid"]))
    return build_policy(config, load_denoiser(NAME), NAME).requires_grad_(False)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_their_batch(kind: str) -> None:
    """An untrained head doubts and paces at random, which moves plenty of tokens."""
    denoiser, policies = load_denoiser(NAME), [head(purpose, **KINDS[kind]) for purpose in ("doubt", "pace")]
    for decoding in (
        Decoding(revision=Doubt(policies[0], 0.45, 0.5, after=0.5)),
        Decoding(pace=LearnedPace(policies[1], 0.5), block=7),
    ):
        whole = unmask(denoiser, confidence, CANVAS, decoding, record=False)
        for row in range(3):
            alone = unmask(denoiser, confidence, CANVAS.rows(slice(row, row + 1)), decoding, record=False)
            n = int(alone.reveals[0])
            assert torch.equal(whole.order[row, :n], alone.order[0, :n])
            assert torch.equal(whole.tokens[row], alone.tokens[0])


@pytest.mark.parametrize("scheduler", ["confidence", "sas"])
def test_drafts_change_nothing_of_what_a_head_decides(scheduler: str) -> None:
    """The plain loop's trajectory in every bit, and fewer forwards one after another."""
    denoiser = load_denoiser(NAME)
    order, canvas = load_scheduler(scheduler, denoiser, NAME), CANVAS.rows(slice(2))
    for decoding in (
        Decoding(pace=LearnedPace(head("pace"), 0.5)),
        Decoding(pace=LearnedPace(head("pace", walks=True, **KINDS["grid"]), 0.5)),
        Decoding(revision=Doubt(head("doubt"), 0.45, 0.5, after=0.5)),
    ):
        plain, drafted = (unmask(denoiser, order, canvas, replace(decoding, draft=n)) for n in (1, 6))
        for name in ("tokens", "order", "step", "logp", "score"):
            assert torch.equal(getattr(plain, name), getattr(drafted, name)), name
        assert drafted.steps < plain.steps


class Suspicious(OrderPolicy):
    """Holds every fifth position to be wrong with probability 0.9, the others with 0.2."""

    def __init__(self) -> None:
        super().__init__(PolicyConfig(kind="mlp", width=4, vocab_size=5, length=16))

    def observe(self, view: View) -> dict[str, Tensor]:
        return {"tokens": view.tokens}

    def score(self, seen: dict[str, Tensor]) -> Tensor:
        fifth = torch.arange(seen["tokens"].shape[1]) % 5 == 0
        return torch.where(fifth, 0.9, 0.2).logit().expand(seen["tokens"].shape)


@pytest.mark.parametrize("keep", [0.0, 0.3, 1.0])
def test_a_doubted_row_keeps_a_part_of_its_surest_tokens(keep: float) -> None:
    decoding = Decoding(revision=Doubt(Suspicious(), 0.5, keep))
    found = unmask(load_denoiser(NAME), confidence, CANVAS, decoding, record=False).revisions
    assert found is not None
    hidden = CANVAS.tokens == 0
    first = found.step == hidden.sum(1)[found.row]  # the look at the complete board
    taken = torch.zeros_like(hidden).index_put((found.row[first], found.position[first]), torch.tensor(True))
    fifth = hidden & (torch.arange(16) % 5 == 0)
    for row in range(len(hidden)):
        surest = torch.nonzero(hidden[row] & ~fifth[row])[:, 0][: int(keep * hidden[row].sum())]
        expected = hidden[row].clone() if fifth[row].any() else torch.zeros_like(hidden[row])
        expected[surest] = False
        assert torch.equal(taken[row], expected)


def test_what_was_kept_is_to_blame_if_the_row_fails_again() -> None:
    """Without blame a row keeps the same tokens whenever it is looked at."""
    hidden = torch.nonzero(CANVAS.tokens[0] == 0)[:, 0].tolist()
    keeps = {}
    for blame in (0.0, 0.5):
        decoding = Decoding(revision=Doubt(Suspicious(), 0.5, 0.4, blame), revision_budget=1.5)
        found = unmask(load_denoiser(NAME), confidence, CANVAS.rows(slice(1)), decoding, record=False).revisions
        assert found is not None
        looks = [found.position[found.step == step].tolist() for step in found.step.unique()]
        keeps[blame] = [set(hidden) - set(look) for look in looks[:2]]
    assert keeps[0.0][0] == keeps[0.0][1] == keeps[0.5][0] and len(keeps[0.0][0]) == int(0.4 * len(hidden))
    assert keeps[0.5][0].isdisjoint(keeps[0.5][1])


def test_heads_are_loaded_by_folder_and_for_their_purpose(tmp_path: Path) -> None:
    denoiser = load_denoiser(NAME)
    for purpose in ("doubt", "pace"):
        head(purpose).save_pretrained(tmp_path / purpose)
    made = unmask(denoiser, confidence, CANVAS, Decoding(revision=Doubt(head("doubt"), 0.5)))
    named = unmask(denoiser, confidence, CANVAS, Decoding(revision=f"doubt:p=0.5:head={tmp_path / 'doubt'}"))
    assert torch.equal(made.order, named.order)
    paced = unmask(denoiser, confidence, CANVAS, Decoding(pace=f"learned:p=0.5:head={tmp_path / 'pace'}"))
    assert paced.steps < made.steps
    with pytest.raises(ValueError, match="another purpose: expected doubt, got pace"):
        unmask(denoiser, confidence, CANVAS, Decoding(revision=f"doubt:head={tmp_path / 'pace'}"))
    with pytest.raises(ValueError, match="another purpose: expected order, got doubt"):
        load_scheduler(str(tmp_path / "doubt"), denoiser)
    with pytest.raises(ValueError, match=f"no pace head 'pace-{NAME}': learn one with unmask train"):
        unmask(denoiser, confidence, CANVAS, Decoding(pace="learned"))


def test_a_learned_pace_reveals_what_is_final() -> None:
    """A head that is sure of everything reveals all at once, one that is sure of nothing one position a step."""
    denoiser, policy = load_denoiser(NAME), head("pace")
    canvas = Canvas(CANVAS.tokens[:2])
    for bias, steps in ((50.0, [1, 1]), (-50.0, (canvas.tokens == 0).sum(1).tolist())):
        policy.network.readout.bias.data.fill_(bias)
        trajectory = unmask(denoiser, confidence, canvas, Decoding(pace=LearnedPace(policy)))
        assert (trajectory.step.amax(1) + 1).tolist() == steps


def test_a_pace_that_walks_ends_at_the_first_position_that_is_not_final() -> None:
    """Down the scheduler's ranking; the probability is the head's own where the decoding names none."""
    denoiser, options = load_denoiser(NAME), KINDS["grid"]
    sets, walk = head("pace", sure=0.5, **options), head("pace", sure=0.5, walks=True, **options)
    views: list[tuple[View, Tensor]] = []

    def collect(view: View) -> dict[str, Tensor]:
        views.append((view, sets(view).sigmoid()))
        return {}

    unmask(denoiser, confidence, CANVAS, Decoding(), observe=collect)
    for view, final in views:
        middle = float(final[view.eligible].median())
        keys = confidence(view).masked_fill(~view.eligible, -torch.inf)
        found = LearnedPace(walk, middle)(view, keys, torch.ones_like(view.rows))
        for row in range(len(view.rows)):
            ranking = keys[row].sort(descending=True, stable=True).indices[: int(view.eligible[row].sum())].tolist()
            count = next((n for n, position in enumerate(ranking) if final[row, position] <= middle), len(ranking))
            assert torch.nonzero(found[row])[:, 0].tolist() == sorted(ranking[: max(count, 1)])
    for policy in (sets, walk):
        own, named = (unmask(denoiser, confidence, CANVAS, Decoding(pace=LearnedPace(policy, p))) for p in (0.0, 0.5))
        assert torch.equal(own.step, named.step)


def test_a_pace_may_begin_with_the_scores_of_the_scheduler() -> None:
    """Untrained it reveals what they hold to be right; in training it reads the same ones."""
    denoiser, options = load_denoiser(NAME), {"kind": "mlp", "width": 8, "purpose": "pace", "base": "scheduler"}
    policy, order = build_policy(PolicyConfig(**options), denoiser, NAME), load_scheduler("sas", denoiser, NAME)
    states = unmask(denoiser, order, CANVAS).states
    assert states is not None
    middle = float(states.scores[states.eligible].sigmoid().median())
    found = unmask(denoiser, order, CANVAS, Decoding(pace=LearnedPace(policy, middle))).states
    assert found is not None
    sure = found.eligible & (found.scores.sigmoid() > middle)
    some = sure.any(1)
    assert torch.equal(found.revealed[some], sure[some]) and found.revealed[~some].sum(1).eq(1).all()
    method = PaceHead(PolicyTraining(objective="pace", teacher="sas"), policy, order)
    trajectory = unmask(denoiser, order, CANVAS, method.decoding, observe=method.observe)
    assert trajectory.states is not None
    read, _ = method.read(method.seen(trajectory, trajectory.states))
    eligible = trajectory.states.eligible
    assert torch.equal(read[eligible], trajectory.states.scores[eligible])
    with pytest.raises(ValueError, match=r"base must be one of confidence, .*, got 'scheduler'"):
        PolicyConfig(base="scheduler")


@pytest.mark.parametrize("settled", [1.0, 0.02])
def test_a_token_is_settled_that_is_nearly_as_likely_in_its_turn(settled: float) -> None:
    """Against the distributions of every state, forwarded again."""
    denoiser = load_denoiser(NAME)
    method = PaceHead(PolicyTraining(objective="pace", teacher="confidence", settled=settled), head("pace"), confidence)
    trajectory = unmask(denoiser, confidence, CANVAS, Decoding(), observe=method.observe)
    states = trajectory.states
    assert states is not None
    seen = method.seen(trajectory, states)
    logits = denoiser.logits(denoiser.hidden(states.tokens, None).flatten(0, 1)).unflatten(0, states.tokens.shape)
    logits[..., list(denoiser.forbidden_ids)] = -torch.inf
    logp, settled_only = logits.log_softmax(-1), 0
    for state, position in torch.nonzero(states.eligible).tolist():
        row, token = states.row[state], states.best[state, position]
        (turn,) = torch.nonzero((states.row == row) & states.revealed[:, position])[0]
        then = logp[turn, position].exp()
        expected = bool(then[token] >= settled * then.max())
        assert bool(seen["label"][state, position]) == expected
        settled_only += expected and int(token) != int(trajectory.tokens[row, position])
    assert (settled_only > 0) == (settled < 1)
    assert not seen.keys() & {"likely", "likely_logp"}
    with pytest.raises(ValueError, match=r"settled is a share in \(0, 1\], below 1 with objective pace alone, got 0.5"):
        PolicyTraining(settled=0.5)


@pytest.mark.parametrize("objective", ["doubt", "pace"])
def test_training_lowers_the_loss_and_resumes(objective: str, tmp_path: Path) -> None:
    run = PolicyRun(
        denoiser=NAME,
        policy=PolicyConfig(residual=False, purpose=objective, kind="grid", width=8, n_layers=2),
        data=SudokuData(size=4, puzzles=64, clues="5-7"),
        training=PolicyTraining(
            steps=6, prompts=16, states=16, objective=objective, teacher="confidence", validate=8, save_every=2
        ),
    )
    records = list(run_policy_training(run, tmp_path / "whole"))
    assert records[-1]["loss"] < records[0]["loss"]
    stopped = run_policy_training(run, tmp_path / "parts", stop=lambda: True)
    assert len(list(stopped)) == 1
    again = list(run_policy_training(run, tmp_path / "parts", resume=True))
    assert [record["loss"] for record in again] == [record["loss"] for record in records[1:]]
    whole, parts = (load_file(tmp_path / name / "policy" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    with pytest.raises(ValueError, match=r"set policy\.purpose to it, got 'order'"):
        replace(run, policy=PolicyConfig())
