"""What learning reaches on 4×4 Sudoku, where all states of a board can be listed.

Two tables. *Standings*: the exact E[R] of heuristics and of policies trained with each advantage at the same number of sampled
orders, on held-out puzzles and on boards with several solutions, and their share of the way from the best heuristic to the best
policy. *Qualities*: each gradient estimator against the exact gradient, at the untrained policy and at a trained one.

A denoiser that is nearly perfect leaves no gap (Rem. expressivity_exactness): use one whose best heuristic falls short.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.decoding.protocols import Denoiser, Scheduler
from unmask.denoisers.loading import load_denoiser
from unmask.report import figures
from unmask.report.numbers import interval
from unmask.runs.jsonable import to_jsonable
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.heuristics import confidence, entropy, margin
from unmask.schedulers.policy import OrderPolicy
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import expert
from unmask.theory.lattice import lattice
from unmask.theory.states import choice_logp
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.trainer import PolicyJob, train_policy
from unmask_studies.exact.boards import Board, ambiguous_boards, unique_boards
from unmask_studies.exact.estimators import Estimator, Quality, compute_slopes, measure_quality
from unmask_studies.exact.optimum import (
    best_policy,
    clairvoyant_value,
    measure_share,
    policy_value,
    price_completions,
    solve_chance,
)
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Table, TableRow

HEURISTICS: dict[str, Scheduler] = {"confidence": confidence, "margin": margin, "entropy": entropy, "expert": expert}
ESTIMATORS = (
    Estimator("trajectory", "group", normalised=True),
    Estimator("trajectory"),
    Estimator("reward_to_go"),
    Estimator("critic"),
    Estimator("all_action"),
    Estimator("all_action", "group"),
    Estimator("exact_baseline"),
    Estimator("exact_future"),
)
ARMS = ("trajectory", "reward_to_go", "all_action", "all_action_unbiased", "myopic")


@dataclass(frozen=True)
class Standing:
    """One scheduler on one kind of boards: exact means over ``count`` of them.

    ``value`` is E[R] of the greedy order in nats, ``solved`` the share of boards that greedy decoding solves; ``share`` of the way
    from ``base`` to the optimum, with 95 % limits over boards.
    """

    boards: str
    scheduler: str
    count: int
    value: float
    solved: float
    base: str
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class ExactResults:
    """``qualities`` at each policy by its name; ``calls`` are the denoiser forwards of each training."""

    standings: list[Standing]
    qualities: dict[str, list[Quality]]
    calls: dict[str, int]


@dataclass(frozen=True)
class FourByFour(GridStudy):
    """``puzzles`` with one solution and ``ambiguous`` boards; a training of ``steps`` × ``orders`` in groups for each of ``arms``.

    ``estimated`` is the training at whose policy the estimators are compared, on ``estimator_canvases``.
    """

    denoiser: str = "sudoku-4x4-imperfect"
    arms: tuple[str, ...] = ARMS
    steps: int = 250
    orders: int = 48
    group: int = 6
    lr: float = 1e-2
    policy: PolicyConfig = field(default_factory=lambda: PolicyConfig(width=16, n_layers=2))
    training_boards: SudokuData = field(default_factory=lambda: SudokuData(size=4, puzzles=4000, clues="5-7"))
    puzzles: int = 200
    clues: str = "6-7"
    ambiguous: int = 40
    ambiguous_clues: int = 7
    most_completions: int = 6
    estimated: str = "all_action_unbiased"
    estimator_canvases: int = 4
    estimator_clues: str = "8"
    group_sizes: tuple[int, ...] = (2, 4, 6, 8)
    groups: int = 300
    seed: int = 1

    def __post_init__(self) -> None:
        if self.orders % self.group or self.group < 2:
            raise ValueError(
                f"expected a number of orders that groups of at least 2 divide, got {self.orders} in groups of {self.group}"
            )
        if unknown := [arm for arm in (*self.arms, self.estimated) if arm not in ARMS]:
            raise ValueError(f"no training {unknown[0]!r}: expected some of {', '.join(ARMS)}")

    def training(self, arm: str) -> PolicyTraining:
        """A training for each advantage, all with the same number of sampled orders. ``trajectory`` is the paper's.

        ``all_action`` is the trainer's default, whose group mean shrinks the future by 1 − 1/G; ``all_action_unbiased`` undoes
        that; ``myopic`` has groups of one and no future.
        """
        prompts, group = self.orders // self.group, self.group
        shared = {"steps": self.steps, "lr": self.lr, "weight_decay": 0.0, "seed": self.seed}
        if arm == "myopic":
            return PolicyTraining(advantage="all_action", prompts=self.orders, group=1, **shared)
        training = PolicyTraining(advantage=arm.removesuffix("_unbiased"), prompts=prompts, group=group, **shared)
        return replace(training, future=group / (group - 1)) if arm == "all_action_unbiased" else training

    def axes(self) -> Axes:
        return (["exact learning"],)

    def measure(self, key: Key, folder: Path) -> Result:
        return to_jsonable(self.run(load_denoiser(self.denoiser)), finite="null")

    def run(self, denoiser: Denoiser) -> ExactResults:
        """Train, then measure everything exactly."""
        policies, calls = {"untrained": self._new_policy(denoiser)}, {}
        for arm in self.arms:
            policies[arm] = self._new_policy(denoiser)
            job = PolicyJob(denoiser, policies[arm], self.training_boards, self.training(arm))
            calls[arm] = list(train_policy(job))[-1]["denoiser_calls"]
        unique = list(unique_boards(self.puzzles, self.clues, self.seed))
        several = ambiguous_boards(self.ambiguous_clues, self.most_completions, self.seed)
        several = list(itertools.islice(several, self.ambiguous))
        standings = measure_standings(denoiser, "unique", unique, HEURISTICS, policies)
        if several:
            heuristics = {name: scheduler for name, scheduler in HEURISTICS.items() if name != "expert"}
            standings += measure_standings(denoiser, "ambiguous", several, heuristics, policies)
        qualities = {
            name: self._measure_qualities(denoiser, policies[name])
            for name in dict.fromkeys(["untrained", self.estimated])
        }
        return ExactResults(standings, qualities, calls)

    def _new_policy(self, denoiser: Denoiser) -> OrderPolicy:
        width = getattr(getattr(denoiser, "config", None), "width", 0)
        shape = {"size": 4, "length": 16, "vocab_size": 5, "mask_id": denoiser.mask_id, "hidden_width": width}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return OrderPolicy(replace(self.policy, **shape))

    def _measure_qualities(self, denoiser: Denoiser, policy: OrderPolicy) -> list[Quality]:
        boards = unique_boards(self.estimator_canvases, self.estimator_clues, self.seed)
        sample = [compute_slopes(lattice(denoiser, tokens, truths[0]), policy) for tokens, truths in boards]
        # Groups of one have no baseline: only the estimate without a future is left.
        found = measure_quality(sample, [Estimator("all_action", "group")], 1, self.groups, self.seed)
        for group in self.group_sizes:
            found += measure_quality(sample, ESTIMATORS, group, self.groups, self.seed)
        return found

    def findings(self, results: Results) -> Findings:
        found = results["exact learning",]
        panels: dict[str, list[figures.Point]] = {}
        for row in found["standings"]:
            point = figures.Point(row["scheduler"], row["share"], row["low"], row["high"])
            panels.setdefault(f"boards: {row['boards']}", []).append(point)
        figure = figures.intervals(panels, "share of the way from the best heuristic to the best policy", zero=True)
        return Findings([self._standings(found), self._qualities(found)], {"standings": figure})

    def _standings(self, found: Mapping[str, Any]) -> Table:
        rows: list[TableRow] = [
            {
                "boards": row["boards"],
                "scheduler": row["scheduler"],
                "n": str(row["count"]),
                "E[R], nats": f"{row['value']:.3f}",
                "solved %": "" if row["solved"] is None else f"{100 * row['solved']:.1f}",
                "share of the gap": interval(row["share"], row["low"], row["high"]),
                "training calls": str(found["calls"].get(row["scheduler"], "")),
            }
            for row in found["standings"]
        ]
        where = f"{self.denoiser}, seed {self.seed}"
        title = f"{where}: exact E[R] of each scheduler, and its share of the way to the best policy"
        return Table.of(title, rows, "Intervals are over boards. The paper has no such table.")

    def _qualities(self, found: Mapping[str, Any]) -> Table:
        rows: list[TableRow] = []
        for policy, some in found["qualities"].items():
            plain = {q["group"]: q["variance"] for q in some if q["advantage"] == "trajectory" and not q["normalised"]}
            for q in some:
                known = q["group"] in plain and q["variance"]
                kind = f"{q['advantage']}, {q['baseline'].replace('_', ' ')}" + ", normalised" * q["normalised"]
                rows.append(
                    {
                        "policy": policy,
                        "estimator": kind,
                        "G": str(q["group"]),
                        "bias / |gradient|": _bias(q),
                        "variance": f"{q['variance']:.3g}",
                        "trajectory's / its variance": f"{plain[q['group']] / q['variance']:.2f}" if known else "",
                        "cosine": f"{q['cosine']:.2f}",
                    }
                )
        return Table.of("gradient estimators against the exact gradient, at equal sampled orders", rows)


def _bias(quality: Mapping[str, Any]) -> str:
    known = quality["known_bias"]
    return f"{quality['bias']:.2f}" if known is None else f"{known:.2f} exactly"


def measure_standings(
    denoiser: Denoiser,
    kind: str,
    boards: Sequence[Board],
    heuristics: Mapping[str, Scheduler],
    policies: Mapping[str, OrderPolicy],
) -> list[Standing]:
    """Every scheduler on every board, and the best policy with and without knowledge of the solution."""
    schedulers: dict[str, Scheduler] = {**heuristics, **policies}
    value, solved = ({name: [] for name in (*schedulers, "optimum", "clairvoyant")} for _ in range(2))
    for tokens, truths in boards:
        board = price_completions(denoiser, tokens, truths)
        tables = {name: choice_logp(scores, 0.0) for name, scores in board.scores(schedulers).items()}
        tables["optimum"] = best_policy(board)[0]
        for name, logv in tables.items():
            value[name].append(float(policy_value(board, logv)))
            solved[name].append(solve_chance(board, logv))
        value["clairvoyant"].append(clairvoyant_value(board))
        solved["clairvoyant"].append(nan)
    found = []
    for name in value:
        share = measure_share(value[name], {h: value[h] for h in heuristics}, value["optimum"])
        found.append(
            Standing(
                boards=kind,
                scheduler=name,
                count=len(boards),
                value=float(np.mean(value[name])),
                solved=float(np.mean(solved[name])),
                base=share.base,
                share=share.closed.mean,
                low=share.closed.low,
                high=share.closed.high,
            )
        )
    return found
