"""What learning reaches on 4×4 Sudoku, where all states of a board can be listed.

Two tables. *Standings*: the exact E[R] of heuristics and of policies trained with each advantage at the same number of sampled
orders, on held-out puzzles and on boards with several solutions, and their share of the way from the best heuristic to the best
policy. *Qualities*: each gradient estimator against the exact gradient, at the untrained policy and at a trained one.

A denoiser that is nearly perfect leaves no way to go (Rem. expressivity_exactness): use one whose best heuristic falls short.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import nan

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from unmask.decoding.protocols import Denoiser, Scheduler
from unmask.schedulers.heuristics import confidence, entropy, margin
from unmask.schedulers.policy import OrderPolicy, PolicyConfig
from unmask.tasks.sudoku.solver import is_solution
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask, expert
from unmask.theory.lattice import lattice
from unmask.theory.states import choice_logp
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.trainer import PolicyJob, train_policy
from unmask_studies.exact.estimators import Estimator, Quality, estimator_quality, slopes
from unmask_studies.exact.optimum import (
    best_policy,
    clairvoyant_value,
    completions,
    policy_value,
    share_closed,
    solve_chance,
)

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
Board = tuple[Int[Tensor, "L"], Int[Tensor, "M L"]]
"""A canvas and all of its solutions."""


def arms(
    steps: int = 250, orders: int = 48, group: int = 6, lr: float = 1e-2, seed: int = 0
) -> dict[str, PolicyTraining]:
    """A training for each advantage, all with the same number of sampled orders. ``trajectory`` is the paper's.

    ``all_action`` is the trainer's default, whose group mean shrinks the future by 1 − 1/G; ``all_action_unbiased`` undoes that;
    ``myopic`` has groups of one and no future.
    """
    if orders % group or group < 2:
        raise ValueError(
            f"expected a number of orders that groups of at least 2 divide, got {orders} in groups of {group}"
        )
    shared = PolicyTraining(steps=steps, prompts=orders // group, group=group, lr=lr, weight_decay=0.0, seed=seed)
    change = dataclasses.replace
    return {
        "trajectory": change(shared, advantage="trajectory"),
        "reward_to_go": change(shared, advantage="reward_to_go"),
        "all_action": change(shared, advantage="all_action"),
        "all_action_unbiased": change(shared, advantage="all_action", future=group / (group - 1)),
        "myopic": change(shared, advantage="all_action", prompts=orders, group=1),
    }


@dataclass(frozen=True)
class Study:
    """How many boards, of what kind, and which trainings. ``estimated`` is the training at whose policy qualities are taken."""

    puzzles: int = 200
    clues: str = "6-7"
    ambiguous: int = 40
    ambiguous_clues: int = 7
    most_completions: int = 6
    policy: PolicyConfig = field(default_factory=lambda: PolicyConfig(width=16, n_layers=2))
    data: SudokuData = field(default_factory=lambda: SudokuData(size=4, puzzles=4000, clues="5-7"))
    trainings: Mapping[str, PolicyTraining] = field(default_factory=arms)
    estimated: str = "all_action_unbiased"
    estimator_canvases: int = 4
    estimator_clues: str = "8"
    group_sizes: tuple[int, ...] = (2, 4, 6, 8)
    groups: int = 300
    seed: int = 0


@dataclass(frozen=True)
class Standing:
    """One order on one kind of boards: exact means over ``count`` of them.

    ``value`` is E[R] of the greedy order in nats, ``sampled`` that at the policy's temperature, ``solved`` the share of boards
    that greedy decoding solves; ``share`` of the way from ``base`` to the optimum, with 95 % limits over boards.
    """

    boards: str
    order: str
    count: int
    value: float
    sampled: float | None
    solved: float
    base: str
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Findings:
    """``qualities`` at each policy by its name; ``calls`` are the denoiser forwards of each training."""

    standings: list[Standing]
    qualities: dict[str, list[Quality]]
    calls: dict[str, int]


def study(denoiser: Denoiser, config: Study = Study()) -> Findings:  # noqa: B008
    """Train, then measure everything exactly."""
    fitted = dataclasses.replace(
        config.policy, size=4, length=16, vocab_size=5, mask_id=denoiser.mask_id, hidden_width=_width(denoiser)
    )
    policies, calls = {"untrained": _fresh(fitted, config.seed)}, {}
    for name, training in config.trainings.items():
        policies[name] = _fresh(fitted, config.seed)
        calls[name] = list(train_policy(PolicyJob(denoiser, policies[name], config.data, training)))[-1][
            "denoiser_calls"
        ]
    unique = list(held_out(config.puzzles, config.clues, config.seed))
    several = list(
        itertools.islice(ambiguous(config.ambiguous_clues, config.most_completions, config.seed), config.ambiguous)
    )
    standing = standings(denoiser, "unique", unique, HEURISTICS, policies)
    planless = {name: scheduler for name, scheduler in HEURISTICS.items() if name != "expert"}
    standing += standings(denoiser, "ambiguous", several, planless, policies) if several else []
    qualities = {}
    small = list(held_out(config.estimator_canvases, config.estimator_clues, config.seed))
    for name in dict.fromkeys(["untrained", config.estimated]):
        sample = [slopes(lattice(denoiser, tokens, truths[0]), policies[name]) for tokens, truths in small]
        # Groups of one have no baseline: only the estimate without a future is left.
        found = estimator_quality(sample, [Estimator("all_action", "group")], 1, config.groups, config.seed)
        for group in config.group_sizes:
            found += estimator_quality(sample, ESTIMATORS, group, config.groups, config.seed)
        qualities[name] = found
    return Findings(standing, qualities, calls)


def standings(
    denoiser: Denoiser,
    kind: str,
    boards: Sequence[Board],
    heuristics: Mapping[str, Scheduler],
    policies: Mapping[str, OrderPolicy],
) -> list[Standing]:
    """Every order on every board, and the best policy with and without knowledge of the solution."""
    schedulers: dict[str, Scheduler] = {**heuristics, **policies}
    value, solved = ({name: [] for name in (*schedulers, "optimum", "clairvoyant")} for _ in range(2))
    sampled: dict[str, list[float]] = {name: [] for name in policies}
    for tokens, truths in boards:
        board = completions(denoiser, tokens, truths)
        raw = board.scores(schedulers)
        tables = {name: choice_logp(scores, 0.0) for name, scores in raw.items()}
        tables["optimum"] = best_policy(board)[0]
        for name, logv in tables.items():
            value[name].append(float(policy_value(board, logv)))
            solved[name].append(solve_chance(board, logv))
        value["clairvoyant"].append(clairvoyant_value(board))
        solved["clairvoyant"].append(nan)
        for name, policy in policies.items():
            sampled[name].append(float(policy_value(board, choice_logp(raw[name], policy.config.temperature))))
    found = []
    for name in value:
        share = share_closed(value[name], {h: value[h] for h in heuristics}, value["optimum"])
        found.append(
            Standing(
                boards=kind,
                order=name,
                count=len(boards),
                value=float(np.mean(value[name])),
                sampled=float(np.mean(sampled[name])) if name in sampled else None,
                solved=float(np.mean(solved[name])),
                base=share.base,
                share=share.closed.mean,
                low=share.closed.low,
                high=share.closed.high,
            )
        )
    return found


def held_out(count: int, clues: str, seed: int = 0) -> Iterator[Board]:
    """Puzzles of the test split, with their only solution."""
    canvas = SudokuTask.generated(count, 4, clues, "test", seed).canvas(range(count))
    for tokens, target in zip(canvas.tokens, canvas.truth, strict=True):
        yield tokens, target[None]


def ambiguous(clues: int, most: int, seed: int = 0) -> Iterator[Board]:
    """Different boards with so many clues and 2 to ``most`` solutions, without end unless there are no more."""
    rng = np.random.default_rng(seed)
    grids, seen = all_grids(), set()
    for _ in range(100_000):
        shown = np.isin(np.arange(16), rng.permutation(16)[:clues])
        board = np.where(shown, grids[rng.integers(len(grids))], 0)
        truths = grids[(grids == board)[:, shown].all(1)]
        if 2 <= len(truths) <= most and board.tobytes() not in seen:
            seen.add(board.tobytes())
            yield torch.from_numpy(board.astype(np.int64)), torch.from_numpy(truths.astype(np.int64))


@cache
def all_grids() -> NDArray[np.int8]:
    """The 288 complete boards, ``[288, 16]``."""
    rows = np.array(list(itertools.permutations(range(1, 5))), np.int8)
    # Two rows make a band when their boxes are complete; a grid is two bands.
    bands = np.array([np.concatenate(pair) for pair in itertools.product(rows, rows) if _band(*pair)])
    grids = np.array([np.concatenate(pair) for pair in itertools.product(bands, bands)])
    return grids[is_solution(np.zeros_like(grids), grids)]


def _band(above: NDArray[np.int8], below: NDArray[np.int8]) -> bool:
    return set(above[:2]).isdisjoint(below[:2])


def _fresh(config: PolicyConfig, seed: int) -> OrderPolicy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OrderPolicy(config)


def _width(denoiser: Denoiser) -> int:
    return getattr(getattr(denoiser, "config", None), "width", 0)
