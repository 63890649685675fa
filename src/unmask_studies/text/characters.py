"""Open text: how likely a model of characters finds passages it has never seen, along different orders.

The exact −log p(x | σ) of each order's own path, in bits per character; for an order drawn at random, one draw of an upper
bound. Left to right is how the text was written. The order is learned twice: from confidence, and from the teacher's order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas, Scheduler
from unmask.denoisers.folder import save_denoiser
from unmask.denoisers.transformer import Transformer, TransformerConfig
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.runs.run import Run
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy, PolicyConfig
from unmask.tasks.passages import ALPHABET, MASK, Passages
from unmask.training.denoiser.masked_trainer import MaskedTraining, train_masked
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import fitted
from unmask.training.policy.trainer import train_policy
from unmask_studies.sets import BATCH, denoiser_named
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import label
from unmask_studies.text.ground import LEARNED
from unmask_studies.trained import finished, history

STATISTICS = ("confidence", "entropy", "position", "margin", "progress", "left", "right")


@dataclass(frozen=True)
class DenoiserRun:
    """What the run of the study's denoiser is made of."""

    model: TransformerConfig
    data: Passages
    training: MaskedTraining


@dataclass(frozen=True)
class OrderRun:
    """The same of its order."""

    denoiser: str
    policy: PolicyConfig
    data: Passages
    training: PolicyTraining


@dataclass(frozen=True)
class Characters:
    """``passages`` of the text of ``data``; a denoiser of ``width`` and ``layers``, orders learned for it, and ``orders``.

    ``order_training`` is for the order that begins with its ``warm_start`` from a teacher; the one that begins as confidence needs
    none, and has everything else from it.
    """

    minutes: float = 0.0
    data: tuple[Path, ...] = ()
    given: int = 16
    length: int = 48
    passages: int = 400
    width: int = 96
    layers: int = 4
    denoiser_training: MaskedTraining = field(default_factory=lambda: MaskedTraining(samples=100_000))
    order_training: PolicyTraining = field(
        default_factory=lambda: PolicyTraining(
            advantage="reward_to_go", group=8, select="nll", teacher="left_to_right", warm_start=6
        )
    )
    orders: tuple[str, ...] = ("random", "left_to_right", "right_to_left", "confidence", "margin", "entropy")
    baseline: str = "left_to_right"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.baseline not in self.orders:
            raise ValueError(f"the baseline {self.baseline!r} is not among the orders: {', '.join(self.orders)}")
        if self.order_training.select != "nll":
            raise ValueError("nothing is right or wrong in open text: order_training.select must be 'nll'")
        if self.order_training.behaviour == "teacher" or self.order_training.objective == "imitation":
            raise ValueError("the teacher of order_training is for its warm start alone")
        if self.order_training.teacher == "confidence":
            raise ValueError("an order begins as confidence without a teacher: name another one, or none")

    def pieces(self, folder: Path) -> list[Piece]:
        if len(self.data) != 1:
            raise ValueError(f"expected one plain text file: name it with --data, got {len(self.data)}")
        source = Passages(str(self.data[0]), self.given, self.length, self.seed)
        source.part("test")
        place = folder / "runs" / "denoiser"

        def measure(scheduler: str) -> Mapping[str, Any]:
            denoiser = denoiser_named(str(place))
            return priced(
                denoiser, load_scheduler(scheduler, denoiser), source.held_out("test", self.passages), self.seed
            )

        pieces = [Piece("the denoiser", lambda: self._train_denoiser(source, place))]
        where = {order: order for order in self.orders}
        for order, training in self._learned().items():
            run = folder / "runs" / order.replace(" ", "-")
            where[order] = str(run)
            pieces.append(Piece(f"the order {order}", lambda t=training, r=run: self._train_order(source, place, r, t)))
        return pieces + [Piece(order, lambda s=name: measure(s)) for order, name in where.items()]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        bits = {order: np.array(results[order]["bits"]) for order in (*self.orders, *self._learned())}
        least = min(bits, key=lambda order: bits[order].mean())
        alone = all(paired_bootstrap(bits[least], other).high < 0 for order, other in bits.items() if order != least)
        rows: list[list[Cell | str]] = []
        points = []
        for order, values in bits.items():
            mean, gap = mean_interval(values), paired_bootstrap(values, bits[self.baseline])
            text = f"{gap.mean:+.4f} [{gap.low:+.4f}, {gap.high:+.4f}]".replace("-", "−")
            strong = order == least and alone
            rows.append(
                [
                    label(order),
                    Cell(f"{mean.mean:.4f} [{mean.low:.4f}, {mean.high:.4f}]", strong),
                    "" if order == self.baseline else Cell(text, gap.low > 0 or gap.high < 0),
                    f"{results[order]['calls'] / len(values):.1f}",
                ]
            )
            points.append(drawing.Point(label(order), mean.mean, mean.low, mean.high, strong))
        columns = ["order", "bits per character", f"against {label(self.baseline)}, in pairs", "calls"]
        file, n = self.data[0].name, len(bits[self.baseline])
        title = f"{file}: {self.length} hidden characters after {self.given}, n = {n:,} test passages, seed {self.seed}"
        note = (
            "−log₂ p(x | σ) per character along the order's own path: the fewer the better. Bold: below every other order, or "
            "different from the baseline, the paired 95 % interval leaving out 0. One training seed."
        )
        figure = drawing.intervals({file: points}, "bits per character")
        return Findings([Table(title, columns, rows, note)], {"characters": figure})

    def _train_denoiser(self, source: Passages, place: Path) -> Mapping[str, Any]:
        if not finished(place, "denoiser"):
            shape = TransformerConfig(
                vocab_size=ALPHABET,
                width=self.width,
                n_layers=self.layers,
                n_heads=4,
                ffn=2 * self.width,
                mask_id=MASK,
                max_length=source.width,
                positions="rotary",
            )
            run = _run(place, DenoiserRun(shape, source, self.denoiser_training))
            with run.lock():
                model = Transformer(shape).initialise(torch.Generator().manual_seed(self.seed))
                for _ in train_masked(model, source, self.denoiser_training, run):
                    pass
                save_denoiser(model, place / "denoiser", dtype=torch.float16)
        return {"samples": self.denoiser_training.samples}

    def _learned(self) -> dict[str, PolicyTraining]:
        """The orders that are learned: from confidence and, if there is one, from the teacher's order."""
        training = self.order_training
        plain = replace(training, teacher="", warm_start=0)
        taught = {f"{LEARNED} from {label(training.teacher)}": training} if training.teacher else {}
        return {f"{LEARNED} from confidence": plain, **taught}

    def _train_order(
        self, source: Passages, denoiser: Path, place: Path, training: PolicyTraining
    ) -> Mapping[str, Any]:
        if not finished(place):
            model = denoiser_named(str(denoiser))
            teacher = load_scheduler(training.teacher, model) if training.teacher else None
            shape = PolicyConfig(kind="mlp", width=32, features=STATISTICS, tokens=False, residual=teacher is None)
            run = _run(place, OrderRun(str(denoiser), shape, source, training))
            with run.lock():
                torch.manual_seed(training.seed)
                policy = OrderPolicy(fitted(shape, model, str(denoiser)))
                held_out = source.held_out("validation", training.validate)
                problems = replace(source, seed=self.seed + 1)
                for _ in train_policy(model, policy, problems, training, held_out, run, teacher=teacher):
                    pass
        return history(place)


def priced(denoiser: Any, scheduler: Scheduler, canvas: Canvas, seed: int) -> dict[str, Any]:
    """Bits per hidden character of each passage, and the canvases that it took."""
    bits: list[float] = []
    calls = 0
    for rows in torch.arange(len(canvas.tokens)).split(BATCH):
        seeds = seed * 2**32 + rows
        path = unmask(denoiser, scheduler, canvas.rows(rows).seeded(seeds), forced=True, record=False)
        bits += (-path.total_logp.double() / path.reveals / math.log(2)).tolist()
        calls += path.denoiser_calls
    return {"bits": bits, "calls": calls}


def _run(place: Path, config: DenoiserRun | OrderRun) -> Run:
    place.parent.mkdir(parents=True, exist_ok=True)
    return Run.create(place, config, resume=True)
