"""Open text: how likely a model of characters finds passages it has never seen, along different orders.

The exact −log p(x | σ) of each scheduler's own order σ, in bits per character; for a random order, one draw of an upper bound. Left
to right is how the text was written. The policy is trained from confidence, from a teacher's order, and by the default recipe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas, Scheduler
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.report import figures
from unmask.runs.presets import change_training
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.loading import load_scheduler
from unmask.training.denoiser.masked_trainer import MaskedTraining
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, load_run
from unmask_studies.reports import BATCH, get_denoiser
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results, require_baseline
from unmask_studies.tables import LEARNED, Cell, Table, TableRow, gap, label, spread
from unmask_studies.text.character_models import (
    STATISTICS,
    CharacterDenoiser,
    CharacterPolicy,
    shape_denoiser,
    train_character_denoiser,
    train_character_policy,
)
from unmask_studies.text.character_task import CharacterData
from unmask_studies.text.passages import Passages
from unmask_studies.training_runs import ensure_run, read_history

BY_RECIPE = f"{LEARNED} by the default recipe"


@dataclass(frozen=True)
class Characters(GridStudy):
    """``passages`` of the text of ``data``; a denoiser of ``width`` and ``layers``, policies trained for it, and ``schedulers``.

    ``policy_training`` is for the policy that begins with its ``warm_start`` from a teacher; the one that begins as confidence has
    none, but all other options from it. With ``recipe`` there is a policy by the recipe of ``unmask train`` without a preset, too;
    ``recipe_steps`` makes its training shorter.
    """

    data: tuple[Path, ...] = ()
    given: int = 16
    length: int = 48
    passages: int = 400
    width: int = 96
    layers: int = 4
    denoiser_training: MaskedTraining = field(default_factory=lambda: MaskedTraining(samples=100_000))
    policy_training: PolicyTraining = field(
        default_factory=lambda: PolicyTraining(
            advantage="reward_to_go", group=8, select="nll", teacher="left_to_right", warm_start=6
        )
    )
    recipe: bool = True
    recipe_steps: int | None = None
    schedulers: tuple[str, ...] = ("random", "left_to_right", "right_to_left", "confidence", "margin", "entropy")
    baseline: str = "left_to_right"
    seed: int = 0

    def __post_init__(self) -> None:
        require_baseline(self.baseline, self.schedulers)
        if self.policy_training.select != "nll":
            raise ValueError("nothing is right or wrong in open text: policy_training.select must be 'nll'")
        if self.policy_training.behaviour == "teacher" or self.policy_training.objective == "imitation":
            raise ValueError("the teacher of policy_training is for its warm start alone")
        if self.policy_training.teacher == "confidence":
            raise ValueError("a policy begins as confidence without a teacher: name another one, or none")

    @property
    def learned(self) -> dict[str, PolicyTraining]:
        """The policies that are trained: from confidence and, if there is one, from the teacher."""
        training = self.policy_training
        plain = replace(training, teacher="", warm_start=0)
        taught = {f"{LEARNED} from {label(training.teacher)}": training} if training.teacher else {}
        return {f"{LEARNED} from confidence": plain, **taught}

    @property
    def policies(self) -> tuple[str, ...]:
        """All that are trained."""
        return (*self.learned, *([BY_RECIPE] if self.recipe else ()))

    @property
    def source(self) -> Passages:
        if len(self.data) != 1:
            raise ValueError(f"expected one plain text file: name it with --data, got {len(self.data)}")
        return Passages(str(self.data[0]), self.given, self.length, self.seed)

    def axes(self) -> Axes:
        return ["bits"], (*self.schedulers, *self.policies)

    def grid(self) -> list[Key]:
        self.source.part("test")
        return [("train", "denoiser"), *(("train", name) for name in self.policies), *super().grid()]

    def measure(self, key: Key, folder: Path) -> Result:
        what, name = map(str, key)
        denoiser, place = folder / "runs" / "denoiser", folder / "runs" / name.replace(" ", "-")
        if what == "train":
            place.parent.mkdir(parents=True, exist_ok=True)
            return self._train(name, denoiser, place)
        model = get_denoiser(str(denoiser))
        scheduler = load_scheduler(str(place) if name in self.policies else name, model)
        return measure_bits(model, scheduler, self.source.held_out("test", self.passages), self.seed)

    def findings(self, results: Results) -> Findings:
        bits = {str(name): np.array(results[what, name]["bits"]) for what, name in self.points()}
        least = min(bits, key=lambda name: bits[name].mean())
        ahead = all(paired_bootstrap(bits[least], other).high < 0 for name, other in bits.items() if name != least)
        rows: list[TableRow] = []
        points = []
        for name, values in bits.items():
            mean, strong = mean_interval(values), name == least and ahead
            difference = "" if name == self.baseline else gap(paired_bootstrap(values, bits[self.baseline]), 4)
            rows.append(
                {
                    "scheduler": label(name),
                    "bits per character": Cell(spread(mean, 4), strong),
                    f"against {label(self.baseline)}, paired": difference,
                    "calls": f"{results['bits', name]['calls'] / len(values):.1f}",
                }
            )
            points.append(figures.Point(label(name), mean.mean, mean.low, mean.high, strong))
        file, n = self.data[0].name, len(bits[self.baseline])
        title = f"{file}: {self.length} hidden characters after {self.given}, n = {n:,} test passages, seed {self.seed}"
        note = (
            "−log₂ p(x | σ) per character along the scheduler's own order: the fewer the better. Bold: below every other "
            "scheduler, or different from the baseline, the paired 95 % interval excluding 0. One training seed."
        )
        figure = figures.intervals({file: points}, "bits per character")
        return Findings([Table.of(title, rows, note)], {"characters": figure})

    def _train(self, name: str, denoiser: Path, place: Path) -> Result:
        if name == "denoiser":
            shape = shape_denoiser(self.source, self.width, self.layers)
            return train_character_denoiser(
                place, CharacterDenoiser(shape, self.source, self.denoiser_training), self.seed
            )
        if name == BY_RECIPE:
            return read_history(ensure_run(place.name, self.load_recipe(denoiser), place.parent.parent))
        training = self.learned[name]
        shape = PolicyConfig(kind="mlp", width=32, features=STATISTICS, tokens=False, residual=not training.teacher)
        config = CharacterPolicy(str(denoiser), shape, self.source, training)
        return train_character_policy(place, config, replace(self.source, seed=self.seed + 1))

    def load_recipe(self, denoiser: Path) -> PolicyRun:
        """The training of ``unmask train --task characters`` for the denoiser in this folder."""
        config = change_training(
            load_run(CharacterData.kind, None, str(denoiser)),
            steps=self.recipe_steps,
            validate=self.policy_training.validate,
            validate_every=self.recipe_steps,
        )
        data = CharacterData(file=self.source.file, given=self.given, length=self.length, seed=self.seed + 1)
        return replace(config, denoiser=str(denoiser), data=data)


def measure_bits(denoiser: Any, scheduler: Scheduler, canvas: Canvas, seed: int) -> dict[str, Any]:
    """Bits per hidden character of each passage, and the number of canvases through the denoiser."""
    bits: list[float] = []
    calls = 0
    for rows in torch.arange(len(canvas.tokens)).split(BATCH):
        seeded = canvas.rows(rows).seeded(row_seeds(seed, rows.tolist()))
        trajectory = unmask(denoiser, scheduler, seeded, forced=True, record=False)
        bits += (-trajectory.total_logp.double() / trajectory.reveals / math.log(2)).tolist()
        calls += trajectory.denoiser_calls
    return {"bits": bits, "calls": calls}
