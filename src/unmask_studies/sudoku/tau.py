"""Agreement with the human expert (tab:tau_sudoku): Kendall's τ that ignores pairs of moves which are equivalent.

π is the expert's order, s_t the board after its first t − 1 moves, c(i; s) the easiest technique that places cell i in state s
(``cell_classes``). A pair t < j is left out where c(π_j; s_t) = c(π_t; s_t): the expert could as well have taken π_j. Over the
other pairs, C concordant and D discordant, τ_eq = (C − D) / (C + D).

Two readings of "other pairs": *literal*, all of them, also those where π_j could not be placed at all in s_t; *hierarchy*, only
those where π_j could be placed, by a harder technique. τ_eq is defined where there is a pair. Its null is a random order, whose
expectation is 0. ``n`` moves of one puzzle, ``N`` puzzles, ``L`` cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from unmask.evaluation.statistics import mean_interval, paired_bootstrap, wilson
from unmask.tasks.sudoku.task import SudokuTask
from unmask.tasks.sudoku.techniques import FALLBACK, cell_classes, expert_order
from unmask_studies import paper_numbers as paper
from unmask_studies.sets import Sets, decoded_of, decodings, piece_name
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import label

READINGS = ("literal", "hierarchy")
NULL = "null: shuffled cells"


@dataclass(frozen=True)
class Pairs:
    """One puzzle's expert ``order`` [n], and for each reading which pairs (t, j) count; all lie above the diagonal."""

    order: Int[np.ndarray, "n"]
    literal: Bool[np.ndarray, "n n"]
    hierarchy: Bool[np.ndarray, "n n"]


def relevant_pairs(puzzle: Int[np.ndarray, "L"], solution: Int[np.ndarray, "L"], order: Int[np.ndarray, "n"]) -> Pairs:
    """Which pairs of the expert's moves are not equivalent."""
    n = len(order)
    states = np.repeat(puzzle[None], n, axis=0).astype(np.int8)
    for t in range(n - 1):
        states[t + 1 :, order[t]] = solution[order[t]]
    classes = cell_classes(states)[:, order] if n else np.empty((0, 0), np.int8)
    own = np.diagonal(classes)[:, None]
    later = np.triu(np.ones((n, n), bool), 1)
    return Pairs(order, later & (classes != own), later & (classes > own) & (classes < FALLBACK))


def tau_eq(rank: Int[np.ndarray, "L"], order: Int[np.ndarray, "n"], pairs: Bool[np.ndarray, "n n"]) -> float:
    """(C − D) / (C + D) of the places ``rank`` that another order gives the cells; NaN where no pair counts."""
    mine = rank[order]
    agrees = np.sign(mine[None, :] - mine[:, None])[pairs]
    return float(agrees.mean()) if len(agrees) else float("nan")


@cache
def expert_pairs(problems: SudokuTask) -> tuple[Pairs, ...]:
    found = expert_order(problems.puzzles, problems.solutions).order.astype(np.int64)
    return tuple(
        relevant_pairs(puzzle, solution, order[order >= 0])
        for puzzle, solution, order in zip(problems.puzzles, problems.solutions, found, strict=True)
    )


def taus(problems: SudokuTask, ranks: Int[np.ndarray, "N L"]) -> dict[str, list[float]]:
    """τ_eq of every puzzle in each reading."""
    found = [(rank, pairs) for rank, pairs in zip(ranks, expert_pairs(problems), strict=True)]
    return {name: [tau_eq(rank, pairs.order, getattr(pairs, name)) for rank, pairs in found] for name in READINGS}


def shuffled(problems: SudokuTask, draws: int, seed: int) -> dict[str, list[list[float]]]:
    """The null: ``draws`` uniformly random orders of every puzzle."""
    rng = np.random.default_rng(seed)
    out: dict[str, list[list[float]]] = {name: [] for name in READINGS}
    cells = problems.puzzles.shape[1]
    for _ in range(draws):
        ranks = np.stack([rng.permutation(cells) for _ in range(len(problems))])
        for name, values in taus(problems, ranks).items():
            out[name].append(values)
    return out


@dataclass(frozen=True)
class Tau:
    """``draws`` random orders per puzzle for the null."""

    minutes: float = 0.0
    denoiser: str = "sudoku-9x9-imperfect"
    orders: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "sas")
    baseline: str = "confidence"
    sets: Sets = field(default_factory=Sets)
    data: tuple[Path, ...] = ()
    draws: int = 20
    seed: int = 0

    def pieces(self, folder: Path) -> list[Piece]:
        def chance(problems: SudokuTask) -> Mapping[str, Any]:
            found = {name: np.array(values) for name, values in shuffled(problems, self.draws, self.seed).items()}
            return {name: _summary(values.ravel()) for name, values in found.items()}

        sets = self.sets.named(self.data)
        nulls = [Piece(f"{name}: {NULL}", lambda p=problems: chance(p())) for name, problems in sets.items()]
        return decodings(self.denoiser, self.orders, sets, self.seed) + nulls

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        tables, panels = [], {}
        for name, problems in self.sets.named(self.data).items():
            there = problems()
            values = {
                order: taus(there, decoded_of(results[piece_name(self.denoiser, name, order)]).ranks())
                for order in self.orders
            }
            for reading in READINGS:
                chance = results[f"{name}: {NULL}"][reading]
                one = {order: np.array(found[reading]) for order, found in values.items()}
                table, points = self._reading(there.source, reading, one, chance)
                tables.append(table)
                panels[f"{name}, {reading}"] = [drawing.Point(*point) for point in points]
        return Findings(tables, {"tau": drawing.intervals(panels, "mean τ_eq", zero=True)})

    def _reading(
        self, source: str, reading: str, values: Mapping[str, Float[np.ndarray, "N"]], chance: Mapping[str, float]
    ) -> tuple[Table, list[tuple[Any, ...]]]:
        defined = ~np.isnan(next(iter(values.values())))
        n, total = int(defined.sum()), len(defined)
        rows: list[list[Cell | str]] = []
        points: list[tuple[Any, ...]] = []
        base = values.get(self.baseline)
        for order, tau in values.items():
            interval = mean_interval(tau[defined])
            versus = Cell("")
            if base is not None and order != self.baseline and n:
                v = paired_bootstrap(tau[defined], base[defined])
                versus = Cell(_minus(f"{v.mean:+.3f} [{v.low:+.3f}, {v.high:+.3f}]"), v.low > 0 or v.high < 0)
            said = paper.TAU.get(order)
            rows.append(
                [
                    label(order),
                    _minus(f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]") if n else "",
                    versus,
                    _share(int((tau[defined] > 0).sum()), n),
                    _share(int((tau[defined] > 0.5).sum()), n),
                    _minus(f"{said[0]:.3f}; {said[1]:.2f}; {said[2]:.2f}") if said else "",
                ]
            )
            points.append((label(order), interval.mean, interval.low, interval.high, False, said[0] if said else None))
        rows.append(
            [
                NULL,
                _minus(f"{chance['mean']:.3f}"),
                "",
                f"{chance['above 0']:.2f}",
                f"{chance['above 0.5']:.2f}",
                "",
            ]
        )
        columns = [
            "order",
            "mean τ_eq",
            f"against {self.baseline}, in pairs",
            "share > 0",
            "share > 0.5",
            "paper: the three",
        ]
        title = (
            f"{reading} reading, {self.denoiser} on {source}, defined on {n:,} of {total:,} puzzles, seed {self.seed}"
        )
        note = f"The null is {self.draws} random orders of each puzzle. Bold: the paired interval leaves out 0."
        return Table(title, columns, rows, note), points


def _summary(values: Any) -> dict[str, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return {"mean": 0.0, "above 0": 0.0, "above 0.5": 0.0}
    return {
        "mean": float(known.mean()),
        "above 0": float((known > 0).mean()),
        "above 0.5": float((known > 0.5).mean()),
    }


def _share(count: int, n: int) -> str:
    low, high = wilson(count, n)
    return f"{count / n:.2f} [{low:.2f}, {high:.2f}]" if n else ""


def _minus(text: str) -> str:
    return text.replace("-", "−")
