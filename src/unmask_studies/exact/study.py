"""Where the optimum is known: ``theory.four_by_four`` as a study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unmask.denoisers.loading import load_denoiser
from unmask_studies.exact import four_by_four
from unmask_studies.study import Findings, Piece, Table, null


@dataclass(frozen=True)
class FourByFour:
    """``steps`` of each training; the other fields are ``theory.four_by_four.Study``'s."""

    minutes: float = 0.0
    denoiser: str = "sudoku-4x4-imperfect"
    steps: int = 250
    puzzles: int = 200
    ambiguous: int = 40
    estimator_canvases: int = 4
    group_sizes: tuple[int, ...] = (2, 4, 6, 8)
    groups: int = 300
    seed: int = 1

    def pieces(self, folder: Path) -> list[Piece]:
        return [Piece("findings", self._found)]

    def _found(self) -> Mapping[str, Any]:
        config = four_by_four.Study(
            seed=self.seed,
            trainings=four_by_four.arms(steps=self.steps, seed=self.seed),
            puzzles=self.puzzles,
            ambiguous=self.ambiguous,
            estimator_canvases=self.estimator_canvases,
            group_sizes=self.group_sizes,
            groups=self.groups,
        )
        return null(asdict(four_by_four.study(load_denoiser(self.denoiser), config)))

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        found = results["findings"]
        panels: dict[str, list[Any]] = {}
        for row in found["standings"]:
            point = drawing.Point(row["order"], row["share"], row["low"], row["high"])
            panels.setdefault(f"boards: {row['boards']}", []).append(point)
        figure = drawing.intervals(panels, "share of the way from the best heuristic to the best policy", zero=True)
        return Findings([self._standings(found), self._qualities(found)], {"standings": figure})

    def _standings(self, found: Mapping[str, Any]) -> Table:
        columns = ["boards", "order", "n", "E[R], nats", "solved %", "share of the gap", "training calls"]
        rows = [
            [
                row["boards"],
                row["order"],
                str(row["count"]),
                f"{row['value']:.3f}",
                "" if row["solved"] is None else f"{100 * row['solved']:.1f}",
                f"{row['share']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
                str(found["calls"].get(row["order"], "")),
            ]
            for row in found["standings"]
        ]
        title = (
            f"{self.denoiser}, seed {self.seed}: exact E[R] of each order, and its share of the way to the best policy"
        )
        return Table(title, columns, rows, "Limits are over boards. The paper has no such table.")

    def _qualities(self, found: Mapping[str, Any]) -> Table:
        columns = ["policy", "estimator", "G", "bias / |gradient|", "variance", "trajectory's / its variance", "cosine"]
        rows = []
        for policy, some in found["qualities"].items():
            plain = {q["group"]: q["variance"] for q in some if q["advantage"] == "trajectory" and not q["normalised"]}
            for q in some:
                known = q["group"] in plain and q["variance"]
                kind = f"{q['advantage']}, {q['baseline'].replace('_', ' ')}" + ", normalised" * q["normalised"]
                bias = f"{q['bias']:.2f}" if q["known_bias"] is None else f"{q['known_bias']:.2f} exactly"
                ratio = f"{plain[q['group']] / q['variance']:.2f}" if known else ""
                rows.append([policy, kind, str(q["group"]), bias, f"{q['variance']:.3g}", ratio, f"{q['cosine']:.2f}"])
        return Table("gradient estimators against the exact gradient, at equal sampled orders", columns, rows)
