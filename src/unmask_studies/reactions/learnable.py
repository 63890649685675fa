"""How much of an order for reactions can be learned: wrong first choices in states along the truth.

States are those that confidence visits with the right tokens. In each, every hidden position has a likeliest token, right or wrong;
a ranking is wrong where the token of its first position is. The general policy of the default recipe is fitted to the states of
some reactions, by its own objective. It is measured on the states of others, which is what an order can know, and on the very
states it was fitted to: what such a network could say if it had been shown the answers. ``Z`` states, ``L`` positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import DeclaredScheduler
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.report import figures
from unmask.runs.presets import change_training
from unmask.runs.processes import ProcessGroup, start_accelerator
from unmask.schedulers.policy import OrderPolicy, build_policy
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.decisions import Rollout
from unmask.training.policy.learner import Learner
from unmask.training.policy.method import Method
from unmask.training.policy.methods import choose_method
from unmask.training.policy.run import load_run
from unmask_studies.reactions.smiles import tokenize
from unmask_studies.reactions.study import SEEN
from unmask_studies.reactions.task import ReactionData, ReactionTask
from unmask_studies.reports import get_denoiser
from unmask_studies.study import Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Table, TableRow, gap, spread
from unmask_studies.training_runs import EVEN_PASSES

BATCH = 32
HEURISTICS = ("confidence", "margin", "entropy")
OTHERS, OWN, ORACLE = "learned, other reactions", "learned, these very states", "oracle: gt_logp"


@dataclass(frozen=True)
class Learnable(GridStudy):
    """``steps`` states of each of ``reactions`` of the training side of ``data``. A policy is fitted to each half in ``epochs``."""

    denoiser: str = "models/rxnmapper"
    data: Path | None = None
    hide: float = 0.7
    reactions: int = 512
    steps: int = 8
    epochs: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.reactions < 2 * BATCH or min(self.steps, self.epochs) < 1:
            raise ValueError(
                f"expected at least {2 * BATCH} reactions, a step and an epoch, got {self.reactions}, {self.steps}, {self.epochs}"
            )

    def grid(self) -> list[Key]:
        if self.data is None:
            raise ValueError("the study needs reactions: name a CSV file (reactants, product) with --data")
        return [("orders",)]

    def measure(self, key: Key, folder: Path) -> Result:
        denoiser = get_denoiser(self.denoiser)
        source = ReactionData(file=str(self.data), hide=self.hide, seed=self.seed).problems(denoiser, self.denoiser)
        recipe = load_run("reaction", "default", self.denoiser)
        torch.manual_seed(self.seed)
        policies = [build_policy(recipe.policy, denoiser, self.denoiser) for _ in range(2)]
        drawn = list(self._draw(source.sides["train"], policies[0], recipe.training))
        halves = [drawn[0::2], drawn[1::2]]
        for policy, half in zip(policies, halves, strict=True):
            training = change_training(recipe, steps=self.epochs * len(half), **EVEN_PASSES).training
            fit(policy, [states.rollout for states in half], training)
        found: dict[str, list[Choices]] = {}
        for half, own, other in zip(halves, policies, reversed(policies), strict=True):
            for states in half:
                for name, scores in states.rank(own, other).items():
                    found.setdefault(name, []).append(states.judge(scores))
        return {name: vars(Choices.concatenate(parts)) for name, parts in found.items()}

    def _draw(self, task: ReactionTask, policy: OrderPolicy, training: PolicyTraining) -> Iterator[DrawnStates]:
        """Batches of reactions of about one length; confidence draws, near its greedy order."""
        rows = np.random.default_rng(self.seed).permutation(len(task))[: self.reactions]
        lengths = [len(tokenize(task.reactions[row].smiles)) for row in rows]
        rows = rows[np.argsort(lengths, kind="stable")].tolist()
        training = replace(training, decoding=replace(training.decoding, steps=self.steps))
        for start in range(0, len(rows), BATCH):
            yield draw_states(task, rows[start : start + BATCH], choose_method(training, policy), self.seed)

    def findings(self, results: Results) -> Findings:
        found = results["orders",]
        states, reactions = len(found[ORACLE]["first"]), len(set(found[ORACLE]["reaction"]))
        title = f"{Path(self.denoiser).name}, {self.hide:.0%} hidden, {states:,} states of {reactions} reactions, seed {self.seed}"
        errors = {name: _per_reaction(one, "first") for name, one in found.items()}
        limits = {name: mean_interval(values) for name, values in errors.items()}
        panel = [figures.Point(name, one.mean, one.low, one.high) for name, one in limits.items()]
        rows: list[TableRow] = [
            {
                "ranking": name,
                "wrong first choices per 1,000": spread(limits[name], 1),
                "against confidence, paired": "" if name == "confidence" else gap(_against(errors, name), 1),
                "wrong in the first quarter per 1,000": spread(mean_interval(_per_reaction(one, "quarter")), 1),
            }
            for name, one in found.items()
        ]
        note = f"Intervals are over reactions. The learned rows are fitted to half of the reactions. {SEEN}"
        figure = figures.intervals({title: panel}, "wrong first choices per 1,000 states", zero=True)
        return Findings([Table.of(title, rows, note)], {"orders": figure})


@dataclass(frozen=True)
class Choices:
    """Of each state: its reaction, whether the first choice is wrong, and the share of wrong ones in the first quarter."""

    reaction: list[int]
    first: list[float]
    quarter: list[float]

    @classmethod
    def concatenate(cls, parts: Sequence[Choices]) -> Choices:
        return cls(*([x for part in parts for x in getattr(part, name)] for name in ("reaction", "first", "quarter")))


@dataclass(frozen=True, eq=False)
class DrawnStates:
    """States as a rollout to learn from, with the reaction of each and where the likeliest token is right."""

    rollout: Rollout
    reaction: Int[Tensor, "Z"]
    right: Bool[Tensor, "Z L"]
    prices: Mapping[str, Float[Tensor, "Z L"]]

    @torch.no_grad()
    def rank(self, own: OrderPolicy, other: OrderPolicy) -> dict[str, Float[Tensor, "Z L"]]:
        """The scores of all rankings."""
        seen = self.rollout.seen
        return {**self.prices, OTHERS: other.score(seen), OWN: own.score(seen), ORACLE: self.rollout.reward}

    def judge(self, scores: Float[Tensor, "Z L"]) -> Choices:
        hidden = self.rollout.eligible
        order = scores.masked_fill(~hidden, -torch.inf).argsort(dim=1, descending=True, stable=True)
        wrong = (~self.right).gather(1, order).float()
        quarter = (hidden.sum(1, keepdim=True) / 4).ceil()
        inside = torch.arange(wrong.shape[1]) < quarter
        share = (wrong * inside).sum(1) / quarter[:, 0]
        return Choices(self.reaction.tolist(), wrong[:, 0].tolist(), share.tolist())


def draw_states(task: ReactionTask, rows: Sequence[int], method: Method, seed: int) -> DrawnStates:
    """States that the method's scheduler visits along the truth, those with at least two hidden positions."""
    canvas = task.canvas(rows).seeded(row_seeds(seed, rows))
    scheduler = DeclaredScheduler(method.scheduler, prices_all=True)
    with torch.no_grad():
        states = unmask(task.denoiser, scheduler, canvas, method.decoding, forced=True, observe=method.observe).states
    assert states is not None and states.target_logp is not None
    kept = torch.nonzero(states.eligible.sum(1) > 1)[:, 0]
    eligible, nothing = states.eligible[kept], torch.zeros(len(kept))
    rollout = Rollout(
        seen={name: value[kept] for name, value in states.observed.items()},
        state=torch.arange(len(kept)),
        eligible=eligible,
        chosen=torch.zeros(len(kept), dtype=torch.long),
        old_logv=nothing,
        advantage=nothing,
        live=torch.ones(len(kept), dtype=torch.bool),
        reward=states.target_logp[kept].clamp(min=method.config.reward_floor),
        truth_margin=torch.zeros_like(eligible, dtype=torch.float),
        drawn=eligible,
        regret=nothing,
        totals={},
    )
    prices = {"confidence": states.confidence, "margin": states.margin, "entropy": -states.entropy}
    return DrawnStates(
        rollout,
        torch.tensor(rows)[states.row[kept]],
        (states.best == canvas.truth[states.row])[kept],
        {name: prices[name][kept] for name in HEURISTICS},
    )


def fit(policy: OrderPolicy, rollouts: Sequence[Rollout], training: PolicyTraining) -> None:
    """Passes over the recorded states until ``training.steps`` batches are done; the policy ends with its averaged weights."""
    method, processes = choose_method(training, policy), ProcessGroup(start_accelerator(cpu=True))
    learner = Learner(policy, training, torch.device("cpu"))
    for step in range(training.steps):
        turn, place = divmod(step, len(rollouts))
        shuffled = np.random.default_rng((training.seed, turn)).permutation(len(rollouts))
        learner.update(method, rollouts[shuffled[place]], step, processes)
    policy.load_state_dict(learner.average, strict=False)


def _per_reaction(found: Mapping[str, Any], what: str) -> np.ndarray:
    """The mean over the states of each reaction, per 1,000."""
    reaction, values = np.array(found["reaction"]), np.array(found[what])
    _, place = np.unique(reaction, return_inverse=True)
    return 1000 * np.bincount(place, values) / np.bincount(place)


def _against(errors: Mapping[str, np.ndarray], name: str) -> Any:
    return paired_bootstrap(errors[name], errors["confidence"])
