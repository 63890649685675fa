"""The second stage (tab:stage2_sudoku): a denoiser tuned along an order, before and after, and a second round of order learning.

On the path: −log p per cell along the order; off it: on random masks (``second_stage.measured``). Both are on held-out puzzles of
the validation split, the shares solved on puzzles of the test split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.evaluation.statistics import compare, paired_bootstrap
from unmask.report.gather import report_from_json
from unmask.report.numbers import percent_interval
from unmask.runs.presets import load_preset
from unmask.runs.run import Run
from unmask.schedulers.loading import load_scheduler
from unmask.training.denoiser.second_stage import SecondStage, finetune
from unmask_studies import paper_numbers as paper
from unmask_studies.sets import Sets, denoiser_named, evaluated, solved
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import label
from unmask_studies.trained import recipe, trained

SECOND_ROUND = "sas again"
"""The name of the order that has learned on for the tuned denoiser."""


@dataclass(frozen=True)
class Second:
    """A second stage of ``preset`` along each of ``orders``. After the one along ``sas``, ``order_preset`` learns on for it.

    ``samples``, ``puzzles`` and ``validate`` replace the preset's, ``order_steps`` the order preset's steps.
    """

    minutes: float = 0.0
    preset: str = "stage2-sudoku-9x9-imperfect"
    orders: tuple[str, ...] = ("sas", "expert", "confidence", "random")
    order_preset: str = "sas-sudoku-9x9-tuned"
    samples: int | None = None
    puzzles: int | None = None
    validate: int | None = None
    order_steps: int | None = None
    sets: Sets = field(default_factory=Sets)
    seed: int = 0

    @property
    def stage(self) -> SecondStage:
        stage = load_preset(self.preset, SecondStage, "finetune")
        if self.samples is not None:
            stage = replace(stage, training=replace(stage.training, samples=self.samples))
        if self.puzzles is not None:
            stage = replace(stage, data=replace(stage.data, puzzles=self.puzzles))
        return stage if self.validate is None else replace(stage, validate=self.validate)

    def pieces(self, folder: Path) -> list[Piece]:
        problems, stage = next(iter(self.sets.named().values())), self.stage

        def tune(order: str) -> Mapping[str, Any]:
            place = _tuned(folder, order)
            place.parent.mkdir(parents=True, exist_ok=True)
            for _ in finetune(replace(stage, order=order), place, resume=True):
                pass
            ends = [record for record in Run(place).metrics() if "on_path" in record]
            return {"before": ends[0], "after": ends[-1]}

        def measure(denoiser: str, order: str, scheduler: str) -> Mapping[str, Any]:
            model = denoiser_named(denoiser)
            loaded = load_scheduler(scheduler, model, stage.denoiser)
            return evaluated(problems(), denoiser, order, loaded, self.seed)

        def learn_on() -> Mapping[str, Any]:
            tuned = str(_tuned(folder, "sas"))
            config = recipe(self.order_preset, steps=self.order_steps, denoiser=tuned, validate=self.validate)
            place = trained("order-again", config, None, folder)
            return measure(tuned, SECOND_ROUND, str(place))

        pieces = [
            Piece(f"before: {order}", lambda o=order: measure(stage.denoiser, o, o))
            for order in dict.fromkeys((*self.orders, "confidence"))
        ]
        for order in self.orders:
            pieces.append(Piece(f"tuned along {order}", lambda o=order: tune(o)))
            for used in dict.fromkeys((order, "confidence")):
                name = f"tuned along {order}: {used}"
                pieces.append(Piece(name, lambda o=order, u=used: measure(str(_tuned(folder, o)), u, u)))
        if "sas" in self.orders:
            pieces.append(Piece(f"tuned along sas: {SECOND_ROUND}", learn_on))
        return pieces

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        rows: list[list[Cell | str]] = []
        panels: dict[str, list[drawing.Point]] = {"before: tuned along → decoded by": [], "after": []}
        for order in self.orders:
            losses, used = results[f"tuned along {order}"], [order]
            used += ["confidence"] if order != "confidence" else []
            used += [SECOND_ROUND] if order == "sas" else []
            for scheduler in used:
                start = "sas" if scheduler == SECOND_ROUND else scheduler
                before = report_from_json(results[f"before: {start}"]).rows[0]
                after = report_from_json(results[f"tuned along {order}: {scheduler}"]).rows[0]
                v = paired_bootstrap(solved(after), solved(before))
                test = compare(solved(after), solved(before))
                text = f"{100 * v.mean:+.1f} [{100 * v.low:+.1f}, {100 * v.high:+.1f}], +{test.won} −{test.lost}"
                said = paper.SECOND_STAGE.get(order) if scheduler == order else None
                own = scheduler == order
                ends = (losses["before"], losses["after"])
                rows.append(
                    [
                        label(order),
                        _label(scheduler),
                        percent_interval(before.exact, before.exact_low, before.exact_high),
                        percent_interval(after.exact, after.exact_low, after.exact_high),
                        Cell(text.replace("-", "−"), v.low > 0 or v.high < 0),
                        f"{said[0]:.1f} → {said[1]:.1f}" if said else "",
                        "{:.4f} → {:.4f}".format(*(end["on_path"] for end in ends)) if own else "",
                        "{:.4f} → {:.4f}".format(*(end["off_path"] for end in ends)) if own else "",
                    ]
                )
                name = f"{label(order)} → {_label(scheduler)}".replace("learned (SAS), ", "").replace(" (SAS)", "")
                for points, row, better in zip(panels.values(), (before, after), (False, v.low > 0), strict=True):
                    points.append(drawing.share(name, (row.exact, row.exact_low, row.exact_high), better))
        one = report_from_json(results["before: confidence"])
        columns = [
            "tuned along",
            "decoded by",
            "before, solved %",
            "after, solved %",
            "in pairs",
            "paper",
            "−log p per cell on the path",
            "off the path",
        ]
        title = f"{one.denoiser}, second stage by {self.preset}, on {one.source}, n = {one.n:,}, seed {one.seed}"
        note = (
            f"Losses in nats, on {self.stage.validate} puzzles of the validation split. Learned on: {self.order_preset} goes on "
            "with the order, for the tuned denoiser. Bold: the paired interval leaves out 0."
        )
        figure = drawing.intervals(panels, "solved, %")
        return Findings([Table(title, columns, rows, note)], {"stage2": figure})


def _label(scheduler: str) -> str:
    return f"{label('sas')}, learned on" if scheduler == SECOND_ROUND else label(scheduler)


def _tuned(folder: Path, order: str) -> Path:
    return folder / "runs" / f"tuned-{order}"
