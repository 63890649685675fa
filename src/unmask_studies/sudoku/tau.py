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
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.report import figures
from unmask.report.numbers import interval, number
from unmask.tasks.sudoku.task import SudokuTask
from unmask.tasks.sudoku.techniques import FALLBACK, cell_classes, expert_order
from unmask_studies import paper_numbers
from unmask_studies.study import Findings, Key, Result, Results
from unmask_studies.sudoku.grids import DecodingStudy
from unmask_studies.tables import Table, TableRow, count_limits, gap, label, spread

READINGS = ("literal", "hierarchy")
NULL = "null: shuffled cells"
Taus = Float[np.ndarray, "N"]


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


def shuffle_cells(problems: SudokuTask, draws: int, seed: int) -> dict[str, list[list[float]]]:
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
class Tau(DecodingStudy):
    """``draws`` random orders per puzzle for the null."""

    schedulers: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "sas")
    draws: int = 20

    def grid(self) -> list[Key]:
        return super().grid() + [("null", name) for name in self.problems]

    def measure(self, key: Key, folder: Path) -> Result:
        if key[0] != "null":
            return super().measure(key, folder)
        drawn = shuffle_cells(self.problems[str(key[1])].load(), self.draws, self.seed)
        return {reading: _summary(np.array(values).ravel()) for reading, values in drawn.items()}

    def identity(self, key: Key) -> Result | None:
        return None if key[0] == "null" else super().identity(key)

    def findings(self, results: Results) -> Findings:
        tables, panels = [], {}
        for name, problems in self.problems.items():
            task = problems.load()
            values = {key: taus(task, found.ranks()) for key, found in self.decodings(results, name).items()}
            for reading in READINGS:
                one = {scheduler: np.array(found[reading]) for scheduler, found in values.items()}
                tables.append(self._table(task.source, reading, one, results["null", name][reading]))
                panels[f"{name}, {reading}"] = [_point(scheduler, tau) for scheduler, tau in one.items()]
        return Findings(tables, {"tau": figures.intervals(panels, "mean τ_eq", zero=True)})

    def _table(self, source: str, reading: str, values: Mapping[str, Taus], chance: Mapping[str, float]) -> Table:
        total = len(next(iter(values.values())))
        known = {scheduler: _defined(tau) for scheduler, tau in values.items()}
        n = len(next(iter(known.values())))
        base = known.get(self.baseline)
        rows: list[TableRow] = []
        for scheduler, tau in known.items():
            compared = None if scheduler == self.baseline or not n else base
            difference = "" if compared is None else gap(paired_bootstrap(tau, compared), 3)
            paper = paper_numbers.TAU.get(scheduler)
            rows.append(
                {
                    "scheduler": label(scheduler),
                    "mean τ_eq": spread(mean_interval(tau), 3) if n else "",
                    f"against {self.baseline}, paired": difference,
                    "share > 0": _share(tau > 0),
                    "share > 0.5": _share(tau > 0.5),
                    "paper: the three": f"{number(paper[0], 3)}; {paper[1]:.2f}; {paper[2]:.2f}" if paper else "",
                }
            )
        null = [number(chance["mean"], 3), "", f"{chance['above 0']:.2f}", f"{chance['above 0.5']:.2f}", ""]
        rows.append(dict(zip(rows[0], (NULL, *null), strict=True)))
        where = f"{self.denoiser} on {source}, defined on {n:,} of {total:,} puzzles, seed {self.seed}"
        note = f"The null is {self.draws} random orders of each puzzle. Bold: the paired interval excludes 0."
        return Table.of(f"{reading} reading, {where}", rows, note)


def _defined(tau: Taus) -> Taus:
    """Where a pair counts is the same for every scheduler."""
    return tau[~np.isnan(tau)]


def _point(scheduler: str, tau: Taus) -> figures.Point:
    found, paper = mean_interval(_defined(tau)), paper_numbers.TAU.get(scheduler)
    return figures.Point(label(scheduler), found.mean, found.low, found.high, paper=paper[0] if paper else None)


def _summary(values: Taus) -> dict[str, float]:
    known = _defined(values)
    if not len(known):
        return {"mean": 0.0, "above 0": 0.0, "above 0.5": 0.0}
    above = {f"above {limit:g}": float((known > limit).mean()) for limit in (0, 0.5)}
    return {"mean": float(known.mean()), **above}


def _share(above: Bool[np.ndarray, "n"]) -> str:
    return interval(*count_limits(int(above.sum()), len(above))) if len(above) else ""
