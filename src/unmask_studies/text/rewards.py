"""What an order is paid for (fig:reward_comparison_bar): its own likelihood, being right in the end, or both.

The trainings of the first three differ in the reward alone: the same policy, problems, groups of orders and steps. A step costs as
many denoiser calls with each of them, but for equal states, which share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.decoding.options import Decoding
from unmask.evaluation.statistics import wilson
from unmask.report.numbers import percent_interval
from unmask_studies.sets import joined
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import label
from unmask_studies.text.ground import Ground, Texts, limits, points
from unmask_studies.trained import curve


@dataclass(frozen=True)
class Rewards:
    """``presets`` of ``unmask train``, all for the ``task``; the others are compared with the first. ``names`` are for people.

    The last of them is the order of the other studies: the same reward, relative and for every candidate. Its curve has its calls.
    """

    minutes: float = 0.0
    task: str = "arithmetic"
    presets: tuple[str, ...] = ("reward-self-aware", "reward-terminal", "reward-hybrid", "sas-arithmetic")
    names: tuple[str, ...] = ("self-aware", "terminal 0/1", "hybrid", "self-aware, relative, all-action")
    heuristics: tuple[str, ...] = ("left_to_right", "confidence")
    sets: Texts = field(default_factory=Texts)
    runs: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.presets or len(self.names) != len(self.presets):
            raise ValueError(f"expected a name for each preset, got {len(self.names)} for {len(self.presets)}")

    def pieces(self, folder: Path) -> list[Piece]:
        ground = Ground(self.sets, self.runs, folder, self.seed)
        pieces = ground.pieces([self.task], self.presets)
        pieces += [
            Piece(f"the curve of {preset}", lambda p=preset: {"curve": curve(Path(ground.order(p)))})
            for preset in self.presets
        ]
        return pieces + [
            Piece(order, lambda o=order: ground.measured(self.task, o, Decoding()))
            for order in (*self.heuristics, *self.presets)
        ]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        report = joined([results[order] for order in (*self.heuristics, *self.presets)], self.presets[0])
        names = dict(zip(self.presets, self.names, strict=True))
        rows: list[list[Cell | str]] = []
        for row in report.rows:
            past = results.get(f"the order {row.scheduler}", {})
            rows.append(
                [
                    names.get(row.scheduler, label(row.scheduler)),
                    percent_interval(*limits(row)),
                    "" if row.scheduler == self.presets[0] else points(row, report.row(self.presets[0])),
                    f"{past['calls']:,}" if past else "",
                    f"{100 * past['validation']:.1f}" if past else "",
                    str(past.get("seed", "")),
                    f"{row.denoiser_calls:.1f}",
                ]
            )
        columns = [
            "reward",
            "solved %",
            f"against {self.names[0]}, in pairs",
            "training calls",
            "best validation, %",
            "training seed",
            "calls",
        ]
        note = (
            "Training calls: canvases through the denoiser in one training, validation not counted. The policy that validated best "
            "is tested. Bold: the paired 95 % interval leaves out 0. The paper's bars have no numbers."
        )
        title = f"{self.task}: what an order is paid for, n = {report.n:,}, seed {report.seed}"
        series = {}
        for preset, name in names.items():
            held = results[f"the order {preset}"]["validated"]
            series[name] = [
                (float(calls), drawing.share("", (share, *wilson(round(share * held), held))))
                for calls, share in results[f"the curve of {preset}"]["curve"]
            ]
        figure = drawing.curves(series, "denoiser calls in training", "held-out problems solved, %")
        return Findings([Table(title, columns, rows, note)], {"rewards": figure}, [report])
