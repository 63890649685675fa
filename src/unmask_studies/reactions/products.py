"""Whole products: a published model of reactions before and after a second stage, as a predictor of products.

The model was trained with few masks; the second stage (:mod:`unmask.training.denoiser.second_stage`) shows it the states of a
decoding that begins with the whole product hidden: those of the learned order, of confidence, or random masks, on equally many
canvases of ``train``. All numbers are of ``data``, which shares no product with it. The number of the product's tokens is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Scheduler
from unmask.evaluation.statistics import paired_bootstrap
from unmask.report import figures
from unmask.report.numbers import percent, percent_interval
from unmask.runs.presets import change_training, load_preset
from unmask.schedulers.loading import load_scheduler
from unmask.training.denoiser.second_stage import SecondStage, run_second_stage
from unmask_studies.reactions.smiles import tokenize
from unmask_studies.reactions.study import BATCH, SEEN, measure_reactions
from unmask_studies.reactions.task import ReactionData, ReactionTask
from unmask_studies.reports import get_denoiser
from unmask_studies.study import Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Cell, Table, TableRow, count_limits, label, points_gap
from unmask_studies.training_runs import is_finished

PUBLISHED, RANDOM = "as published", "random masks"
ORDER_OF_RANDOM = "confidence"
"""Names the order of a second stage on random masks, where none is drawn."""
DRAWN = "drawn by "
"""Begins the name of a row of answers along orders that a scheduler draws."""


@dataclass(frozen=True)
class Products(GridStudy):
    """``denoiser`` as published and after the second stage of ``tuning_preset`` along each of ``tunings`` (or on random masks).

    ``limit`` products are predicted along each of ``schedulers``. Of the first ``drawn`` also ``draws`` more answers, each along
    an order that the scheduler draws at temperature 1: the truth is among so many answers. ``samples`` replaces the preset's
    canvases.
    """

    tuning_preset: str = "stage2-rxnmapper"
    denoiser: str = "models/rxnmapper"
    data: Path | None = None
    train: Path | None = None
    tunings: tuple[str, ...] = (RANDOM, "confidence", "sas")
    schedulers: tuple[str, ...] = ("confidence", "sas")
    samples: int | None = None
    limit: int = 200
    draws: int = 4
    drawn: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.limit, self.drawn) < 2 or self.draws < 0:
            raise ValueError(
                f"expected limit and drawn of 2 or more and draws of 0 or more, got {self.limit}, {self.drawn}, {self.draws}"
            )

    @property
    def models(self) -> tuple[str, ...]:
        return (PUBLISHED, *self.tunings)

    @property
    def stage(self) -> SecondStage:
        stage = change_training(load_preset(self.tuning_preset, SecondStage, "finetune"), samples=self.samples)
        data = replace(cast(ReactionData, stage.data), file=str(self.train))
        return replace(
            stage, denoiser=self.denoiser, data=data, validate=2
        )  # the study measures more than the stage does

    def grid(self) -> list[Key]:
        """What every scheduler predicts, then what drawn orders add, which takes longest."""
        if self.data is None or self.train is None:
            raise ValueError("the study needs reactions: name CSV files (reactants, product) with --data and --train")
        rows = (*self.schedulers, *(DRAWN + name for name in self.schedulers if self.draws))
        return [(model, row) for row in rows for model in self.models]

    def measure(self, key: Key, folder: Path) -> Result:
        model, row = map(str, key)
        name = self.denoiser if model == PUBLISHED else str(self._tune(model, folder) / "denoiser")
        denoiser = get_denoiser(name)
        data = replace(cast(ReactionData, self.stage.data), file=str(self.data), seed=self.seed)
        task = data.problems(denoiser, name).held_out(self.limit, "all")
        scheduler = load_scheduler(row.removeprefix(DRAWN), denoiser, self.denoiser)
        if row.startswith(DRAWN):
            return draw_answers(task, scheduler, range(min(self.drawn, len(task))), self.draws, self.seed)
        return measure_reactions(task, scheduler, self.seed, range(len(task)))

    def _tune(self, along: str, folder: Path) -> Path:
        """The finished second stage, or one that is run now, resuming an interrupted one."""
        place = folder / "runs" / f"tuned-{along.replace(' ', '-')}"
        if not is_finished(place, "denoiser"):
            place.parent.mkdir(parents=True, exist_ok=True)
            stage = self.stage
            order = (
                replace(stage, order=ORDER_OF_RANDOM, random_share=1.0)
                if along == RANDOM
                else replace(stage, order=along)
            )
            for _ in run_second_stage(order, place, resume=True):
                pass
        return place

    def findings(self, results: Results) -> Findings:
        longest = cast(ReactionData, self.stage.data).longest
        base = results[PUBLISHED, self.schedulers[0]]
        rows: list[TableRow] = []
        panels: dict[str, list[figures.Point]] = {}
        for model in self.models:
            for scheduler in self.schedulers:
                one = results[model, scheduler]
                limits = count_limits(sum(one["exact"]), len(one["exact"]))
                rows.append(
                    {
                        "tuned on": _describe(model),
                        "decoded by": label(scheduler),
                        "top-1 %": percent_interval(*limits),
                        "against as published, paired": _gap(results, (model, scheduler), (PUBLISHED, scheduler)),
                        "against random masks": _gap(results, (model, scheduler), (RANDOM, scheduler)),
                        f"against {label(self.schedulers[0])}": _gap(
                            results, (model, scheduler), (model, self.schedulers[0])
                        ),
                        "valid %": percent(np.mean(one["valid"])),
                        "atoms conserved %": percent(np.mean(one["conserved"])),
                    }
                )
                panels.setdefault(f"decoded by {label(scheduler)}", []).append(figures.share(_describe(model), limits))
        where = f"{Path(self.denoiser).name}, the product hidden, reactions of at most {longest} tokens"
        note = (
            f"Tuned on {self.stage.training.samples:,} canvases each. The number of tokens of the product is given. "
            f"Bold: the paired 95 % interval excludes 0. {SEEN}"
        )
        tables = [Table.of(f"{where}, n = {len(base['exact']):,}, seed {self.seed}", rows, note)]
        if self.draws:
            keys = [(model, name) for model in self.models for name in self.schedulers]
            drawn = {(model, name): results[model, DRAWN + name]["right"] for model, name in keys}
            tables.append(_tabulate_draws(where, drawn, self.seed))
        return Findings(tables, {"reaction-products": figures.intervals(panels, "whole product right, %")})


def draw_answers(
    task: ReactionTask, scheduler: Scheduler, chosen: Sequence[int], draws: int, seed: int
) -> dict[str, Any]:
    """``right[row][k]``: whether the k-th answer is right; the first is greedy, the others follow drawn orders."""
    right: dict[int, list[bool]] = {row: [] for row in chosen}
    by_length = sorted(chosen, key=lambda row: len(tokenize(task.reactions[row].smiles)))
    for draw in range(draws + 1):
        decoding = Decoding(order_temperature=1.0) if draw else Decoding()
        for start in range(0, len(by_length), BATCH):
            rows = by_length[start : start + BATCH]
            canvas = task.canvas(rows).seeded(row_seeds(seed + draw, rows))
            tokens = unmask(task.denoiser, scheduler, canvas, decoding, record=False).tokens
            for row, exact in zip(rows, task.verify(rows, tokens).exact.tolist(), strict=True):
                right[row].append(exact)
    return {"right": [right[row] for row in chosen]}


def _tabulate_draws(where: str, drawn: Mapping[tuple[str, str], list[list[bool]]], seed: int) -> Table:
    """Whether one of the first k answers is right. Answers may repeat, so that k distinct ones would have at least as much."""
    answers = len(next(iter(drawn.values()))[0])
    n = len(next(iter(drawn.values())))
    ks = sorted({1, *(k for k in (3, 5, 10) if k < answers), answers})
    rows: list[TableRow] = [
        {
            "tuned on": _describe(model),
            "orders drawn by": label(scheduler),
            **{f"top-{k} %": percent_interval(*count_limits(sum(any(one[:k]) for one in right), n)) for k in ks},
        }
        for (model, scheduler), right in drawn.items()
    ]
    note = f"The first answer is greedy, the others follow orders drawn at temperature 1. {SEEN}"
    return Table.of(f"Drawn orders: {where}, n = {n:,}, seed {seed}", rows, note)


def _gap(results: Results, one: Key, other: Key) -> Cell | str:
    """The paired difference; nothing where the other is the same, not measured, or, of a model as published, tuned."""
    if one == other or other not in results or (one[0] == PUBLISHED and other[0] != PUBLISHED):
        return ""
    return points_gap(paired_bootstrap(results[one]["exact"], results[other]["exact"]))


def _describe(model: str) -> str:
    return {PUBLISHED: "— (as published)", RANDOM: RANDOM}.get(model) or f"the states of {label(model)}"
