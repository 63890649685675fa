"""Where the order matters, and where it stops: what a learned order gains on denoisers from barely trained to nearly perfect.

The denoisers differ only in how long they were trained. For each, an order is learned from the same short preset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from unmask.evaluation.evaluate import Report
from unmask.report.numbers import percent_interval
from unmask.runs.presets import load_preset
from unmask.schedulers.loading import load_scheduler
from unmask.training.denoiser.pretrain import Pretrain, pretrain
from unmask_studies.sets import Sets, denoiser_named, evaluated, joined
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import against, label
from unmask_studies.trained import history, recipe, trained

LEARNED = "learned"


@dataclass(frozen=True)
class Quality:
    """A denoiser of ``denoiser_preset`` for each number of ``samples``, an order of ``order_preset`` for each denoiser."""

    minutes: float = 0.0
    denoiser_preset: str = "sudoku-9x9-imperfect"
    samples: tuple[int, ...] = (3200, 5120, 7040, 12800, 64000)
    order_preset: str = "demo"
    order_steps: int | None = None
    validate: int | None = None
    orders: tuple[str, ...] = ("left_to_right", "confidence", "margin", "expert", "gt_logp")
    baseline: str = "confidence"
    sets: Sets = field(default_factory=lambda: Sets(generated=500))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.baseline not in self.orders:
            raise ValueError(f"the baseline {self.baseline!r} is not among the orders: {', '.join(self.orders)}")
        if not self.samples or list(self.samples) != sorted(set(self.samples)):
            raise ValueError(f"samples must be different numbers, the fewest first, got {self.samples}")

    def pieces(self, folder: Path) -> list[Piece]:
        problems = next(iter(self.sets.named().values()))

        def train_denoiser(samples: int) -> Mapping[str, Any]:
            place = _denoiser(folder, samples)
            place.parent.mkdir(parents=True, exist_ok=True)
            if not (place / "denoiser" / "model.safetensors").exists():
                config = load_preset(self.denoiser_preset, Pretrain, "pretrain")
                config = replace(config, training=replace(config.training, samples=samples))
                for _ in pretrain(config, place, resume=True):
                    pass
            return {"samples": samples}

        def learn_order(samples: int) -> Mapping[str, Any]:
            denoiser = str(_denoiser(folder, samples))
            config = recipe(self.order_preset, steps=self.order_steps, denoiser=denoiser, validate=self.validate)
            return history(trained(f"order-{samples}", config, None, folder))

        @cache
        def order_of(samples: int) -> Any:
            place = folder / "runs" / f"order-{samples}"
            return load_scheduler(str(place), denoiser_named(str(_denoiser(folder, samples))))

        def measure(samples: int, order: str) -> Mapping[str, Any]:
            name = str(_denoiser(folder, samples))
            scheduler = order_of(samples) if order == LEARNED else load_scheduler(order, denoiser_named(name), name)
            return evaluated(problems(), name, order, scheduler, self.seed)

        pieces = []
        for samples in self.samples:
            pieces.append(Piece(f"denoiser of {samples} samples", lambda s=samples: train_denoiser(s)))
            pieces.append(Piece(f"order for {samples} samples", lambda s=samples: learn_order(s)))
            for order in (*self.orders, LEARNED):
                pieces.append(Piece(f"{samples} samples: {order}", lambda s=samples, o=order: measure(s, o)))
        return pieces

    def findings(self, results: Mapping[str, Any]) -> Findings:
        reports = {
            samples: replace(
                joined([results[f"{samples} samples: {order}"] for order in (*self.orders, LEARNED)], self.baseline),
                denoiser=f"{self.denoiser_preset}, {samples:,} samples",
            )
            for samples in self.samples
        }
        return Findings([self._table(reports)], {"quality": self._figure(reports)}, list(reports.values()))

    def _table(self, reports: Mapping[int, Report]) -> Table:
        names = [label(order) for order in (*self.orders, LEARNED)]
        rows: list[list[Cell | str]] = []
        for samples, report in reports.items():
            solved = [percent_interval(row.exact, row.exact_low, row.exact_high) for row in report.rows]
            rows.append([f"{samples:,}", *solved, against(report.row(LEARNED))])
        one = next(iter(reports.values()))
        columns = ["boards trained on", *(f"{name}, solved %" for name in names), f"learned against {self.baseline}"]
        title = f"{self.denoiser_preset} trained for so long, on {one.source}, n = {one.n:,}, seed {one.seed}"
        note = (
            f"Each order is learned by the preset {self.order_preset}. Bold: the paired interval leaves out 0. The paper has no "
            "such table; its remark that a perfect denoiser makes the order irrelevant is the last row's limit."
        )
        return Table(title, columns, rows, note)

    def _figure(self, reports: Mapping[int, Report]) -> Any:
        from unmask.report import figures as drawing

        solved, gain = {}, []
        for order in (*self.orders, LEARNED):
            solved[label(order)] = [
                drawing.share(f"{samples:,}", (row.exact, row.exact_low, row.exact_high))
                for samples, row in ((samples, report.row(order)) for samples, report in reports.items())
            ]
        for samples, report in reports.items():
            v = report.row(LEARNED).versus
            assert v is not None
            gain.append(drawing.share(f"{samples:,}", (v.difference, v.low, v.high)))
        difference = f"gain of the learned order over {self.baseline}"
        panels = {"solved": solved, difference: {LEARNED: gain}}
        return drawing.lines(panels, "boards the denoiser was trained on", ["solved, %", "points"], [difference])


def _denoiser(folder: Path, samples: int) -> Path:
    return folder / "runs" / f"denoiser-{samples}"
