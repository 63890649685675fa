"""Open text with ends: what should stand behind the end of an answer in training (:mod:`unmask.tasks.pads`)?

A policy is trained with each way. All are measured on the canvases of a decoding, whose whole region is hidden and may be revealed:
−log p(x | σ) of the sentence, its end and its padding along the policy's own order, in bits per character of the sentence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Scheduler
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.report import figures
from unmask.report.numbers import percent_interval
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.pads import DEFAULT, Pads
from unmask.training.denoiser.masked_trainer import MaskedTraining
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.validation import share_before_end
from unmask_studies.reports import BATCH, get_denoiser
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Cell, Table, TableRow, gap, label, spread
from unmask_studies.text.character_models import (
    STATISTICS,
    CharacterDenoiser,
    CharacterPolicy,
    shape_denoiser,
    train_character_denoiser,
    train_character_policy,
)
from unmask_studies.text.sentences import Sentences, characters_of

WAYS: tuple[Pads, ...] = ("hidden", "end", "left_out")


@dataclass(frozen=True)
class SentencePads(GridStudy):
    """``sentences`` of the text of ``data``; a denoiser of ``width`` and ``layers``; a policy for each of ``ways``."""

    data: tuple[Path, ...] = ()
    given: int = 8
    length: int = 48
    sentences: int = 300
    width: int = 96
    layers: int = 4
    ways: tuple[Pads, ...] = WAYS
    schedulers: tuple[str, ...] = ("left_to_right", "confidence")
    denoiser_training: MaskedTraining = field(default_factory=lambda: MaskedTraining(samples=80_000))
    policy_training: PolicyTraining = field(
        default_factory=lambda: PolicyTraining(advantage="reward_to_go", group=6, select="nll")
    )
    seed: int = 0

    def __post_init__(self) -> None:
        if self.policy_training.select != "nll":
            raise ValueError("nothing is right or wrong in open text: policy_training.select must be 'nll'")
        if DEFAULT not in self.ways:
            raise ValueError(f"the others are compared with {DEFAULT!r}: expected it among ways, got {self.ways}")

    @property
    def source(self) -> Sentences:
        if len(self.data) != 1:
            raise ValueError(f"expected one plain text file: name it with --data, got {len(self.data)}")
        return Sentences(str(self.data[0]), self.given, self.length, seed=self.seed)

    def axes(self) -> Axes:
        return ["bits"], (*self.schedulers, *self.ways)

    def grid(self) -> list[Key]:
        self.source.part("test")
        return [("train", "denoiser"), *(("train", way) for way in self.ways), *super().grid()]

    def measure(self, key: Key, folder: Path) -> Result:
        what, name = map(str, key)
        denoiser, place = folder / "runs" / "denoiser", folder / "runs" / name
        if what == "train":
            place.parent.mkdir(parents=True, exist_ok=True)
            return self._train(name, denoiser, place)
        model = get_denoiser(str(denoiser))
        scheduler = load_scheduler(str(place) if name in self.ways else name, model)
        return self._measure_bits(model, scheduler)

    def findings(self, results: Results) -> Findings:
        bits = {str(name): np.array(results[what, name]["bits"]) for what, name in self.points()}
        rows: list[TableRow] = []
        points = []
        for name, values in bits.items():
            mean, found = mean_interval(values), results["bits", name]
            difference = paired_bootstrap(values, bits[DEFAULT])
            when = mean_interval(found["before_end"])
            rows.append(
                {
                    "order": f"`{name}`" if name in self.ways else label(name),
                    "bits per character": Cell(spread(mean, 4)),
                    f"against `{DEFAULT}`, paired": "" if name == DEFAULT else gap(difference, 4),
                    "before the first end, % of the reveals": percent_interval(when.mean, when.low, when.high, 0),
                    "denoiser calls of the training": f"{results['train', name]['calls']:,}"
                    if name in self.ways
                    else "",
                }
            )
            points.append(figures.Point(label(name), mean.mean, mean.low, mean.high))
        file, n = self.data[0].name, len(bits[DEFAULT])
        title = f"{file}: sentences of {self.given} given characters and a region of {self.length}, n = {n:,}, seed {self.seed}"
        note = (
            "−log₂ p of sentence, end and padding along the order, per character of the sentence and its end; bold: the paired "
            "95 % interval excludes 0. One training seed."
        )
        return Findings(
            [Table.of(title, rows, note)], {"sentence-pads": figures.intervals({file: points}, "bits per character")}
        )

    def _measure_bits(self, denoiser: Any, scheduler: Scheduler) -> dict[str, Any]:
        """Bits per character of each test sentence on the canvases of a decoding, and the share of reveals before the first end."""
        canvas = self.source.held_out("test", self.sentences)
        bits: list[float] = []
        before: list[float] = []
        for rows in torch.arange(len(canvas.tokens)).split(BATCH):
            part = canvas.rows(rows).seeded(row_seeds(self.seed, rows.tolist()))
            trajectory = unmask(denoiser, scheduler, part, forced=True, record=False)
            counted = characters_of(part.truth) + 1 - self.given
            bits += (-trajectory.total_logp.double() / counted / math.log(2)).tolist()
            before += share_before_end(trajectory, denoiser).tolist()
        return {"bits": bits, "before_end": before}

    def _train(self, name: str, denoiser: Path, place: Path) -> Result:
        if name == "denoiser":
            shape = shape_denoiser(self.source, self.width, self.layers)
            return train_character_denoiser(
                place, CharacterDenoiser(shape, self.source, self.denoiser_training), self.seed
            )
        shape = PolicyConfig(kind="transformer", width=32, n_layers=1, n_heads=4, features=STATISTICS, tokens=False)
        data = replace(self.source, pads=cast(Pads, name), seed=self.seed + 1)
        return train_character_policy(place, CharacterPolicy(str(denoiser), shape, data, self.policy_training))
