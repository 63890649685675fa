"""How an order is learned on Sudoku (fig:sudoku_train): reward of its rollouts, entropy and held-out puzzles, step by step.

The presets pay with the truth's likelihood and sample as many orders per step, so that their rewards can be compared: the return is
log p(x | σ) of an order σ drawn from the policy, summed over a board.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.evaluation.statistics import mean_interval, wilson
from unmask.report.numbers import percent_interval
from unmask.runs.run import Run
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.trained import curve, history, recipe, run_name, trained


@dataclass(frozen=True)
class Training:
    """``presets`` of ``unmask train``, each for ``steps``, validated on ``validate`` puzzles every ``validate_every`` steps.

    The first and the last ``ends`` steps are in the table. ``names`` are for people; ``prompts`` makes the steps smaller; ``runs``
    holds runs that are finished; ``seed`` is that of the trainings, by default each preset's own.
    """

    minutes: float = 0.0
    presets: tuple[str, ...] = ("sas-sudoku-9x9-imperfect", "ablation-trajectory")
    names: tuple[str, ...] = ("all-action credit, dense correctness", "GRPO as published")
    steps: int = 60
    validate: int = 200
    validate_every: int = 6
    ends: int = 10
    prompts: int | None = None
    runs: Path | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.presets or len(self.names) != len(self.presets):
            raise ValueError(f"expected a name for each preset, got {len(self.names)} for {len(self.presets)}")
        if not 1 <= self.ends <= self.steps:
            raise ValueError(f"ends must be in 1 .. {self.steps}, the number of steps, got {self.ends}")

    def pieces(self, folder: Path) -> list[Piece]:
        def measure(preset: str) -> Mapping[str, Any]:
            config = recipe(preset, self.seed, self.steps, validate=self.validate)
            every, prompts = min(self.steps, self.validate_every), self.prompts or config.training.prompts
            training = replace(config.training, validate_every=every, prompts=prompts)
            run = trained(run_name(preset, self.seed), replace(config, training=training), self.runs, folder)
            past, records = history(run), Run(run).metrics()
            if past["steps"] != self.steps:
                raise ValueError(f"{run} is a training of {past['steps']} steps, not of {self.steps}: name other runs")
            kept = {key: [record[key] for record in records] for key in ("return", "entropy", "denoiser_calls")}
            return {"history": past, "curve": curve(run), "records": kept}

        return [Piece(preset, lambda p=preset: measure(p)) for preset in self.presets]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        rows: list[list[Cell | str]] = []
        panels: dict[str, dict[str, list[tuple[float, drawing.Point]]]] = {
            "log p of a board along sampled orders": {},
            "entropy of a choice, nats": {},
            "held-out puzzles solved, %": {},
        }
        reward, entropy, solved = panels.values()
        for preset, name in zip(self.presets, self.names, strict=True):
            past, records = results[preset]["history"], results[preset]["records"]
            n = past["validated"]
            shares = [(calls, (share, *wilson(round(share * n), n))) for calls, share in results[preset]["curve"]]
            reward[name] = _plain(records["denoiser_calls"], records["return"])
            entropy[name] = _plain(records["denoiser_calls"], records["entropy"])
            solved[name] = [(float(calls), drawing.share("", limits)) for calls, limits in shares]
            best = max((limits for _, limits in shares), key=lambda limits: limits[0])
            rows.append(
                [
                    f"{name} ({preset})",
                    f"{past['calls']:,}",
                    _mean(records["return"][: self.ends]),
                    _mean(records["return"][-self.ends :]),
                    percent_interval(*shares[0][1]),
                    percent_interval(*best),
                    f"{n:,}",
                    str(past["seed"]),
                ]
            )
        columns = [
            "training",
            "training calls",
            f"reward, first {self.ends} steps",
            f"last {self.ends}",
            "held-out solved %, start",
            "best",
            "n",
            "seed",
        ]
        note = (
            "Reward: log p of the whole board along orders drawn from the policy, in nats, a mean over steps, each on new puzzles. "
            "Held-out puzzles are of the validation split; the best of several validations is a little too good. "
            "Training calls: canvases through the denoiser, validation not counted."
        )
        title = f"Training on Sudoku: {self.steps} steps"
        figure = drawing.progress(panels, "denoiser calls in training")
        return Findings([Table(title, columns, rows, note)], {"training": figure})


def _plain(x: Sequence[int], y: Sequence[float]) -> list[tuple[float, Any]]:
    """Points without limits."""
    from unmask.report import figures as drawing

    return [(float(place), drawing.Point("", value, value, value)) for place, value in zip(x, y, strict=True)]


def _mean(values: Sequence[float]) -> str:
    found = mean_interval(np.array(values))
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]".replace("-", "−")
