"""How a policy is learned on Sudoku (fig:sudoku_train): reward of its rollouts, entropy and held-out puzzles, step by step.

The presets pay with the truth's likelihood and sample as many orders per step, so that their rewards can be compared: the return is
log p(x | σ) of an order σ drawn from the policy, summed over a board.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unmask.evaluation.statistics import mean_interval
from unmask.report import figures
from unmask.report.numbers import percent_interval
from unmask.runs.run import Run
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Table, TableRow, count_limits, spread
from unmask_studies.training_runs import ensure_run, load_recipe, read_curve, read_history, run_name

PANELS = ("log p of a board along sampled orders", "entropy of a choice, nats", "held-out puzzles solved, %")


@dataclass(frozen=True)
class Training(GridStudy):
    """``presets`` of ``unmask train``, each for ``steps``, validated on ``validate`` puzzles every ``validate_every`` steps.

    The first and the last ``ends`` steps are in the table. ``names`` are those of the tables; ``prompts`` makes the steps smaller;
    ``runs`` holds runs that are finished; ``seed`` is that of the trainings, by default each preset's own.
    """

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

    def axes(self) -> Axes:
        return (self.presets,)

    def measure(self, key: Key, folder: Path) -> Result:
        preset = str(key[0])
        config = load_recipe(preset, self.seed, self.steps, validate=self.validate)
        every, prompts = min(self.steps, self.validate_every), self.prompts or config.training.prompts
        config = replace(config, training=replace(config.training, validate_every=every, prompts=prompts))
        run = ensure_run(run_name(preset, self.seed), config, folder, self.runs)
        history, records = read_history(run), Run(run).metrics()
        if history["steps"] != self.steps:
            raise ValueError(f"{run} is a training of {history['steps']} steps, not of {self.steps}: name other runs")
        kept = {key: [record[key] for record in records] for key in ("return", "entropy", "denoiser_calls")}
        return {"history": history, "curve": read_curve(run), "records": kept}

    def findings(self, results: Results) -> Findings:
        rows: list[TableRow] = []
        panels: dict[str, dict[str, list[tuple[float, figures.Point]]]] = {title: {} for title in PANELS}
        reward, entropy, solved = panels.values()
        for preset, name in zip(self.presets, self.names, strict=True):
            found = results[preset,]
            history, records = found["history"], found["records"]
            n, returns = history["validated"], records["return"]
            shares = [(float(calls), count_limits(round(share * n), n)) for calls, share in found["curve"]]
            reward[name] = _points(records["denoiser_calls"], returns)
            entropy[name] = _points(records["denoiser_calls"], records["entropy"])
            solved[name] = [(calls, figures.share("", limits)) for calls, limits in shares]
            best = max((limits for _, limits in shares), key=lambda limits: limits[0])
            rows.append(
                {
                    "training": f"{name} ({preset})",
                    "training calls": f"{history['calls']:,}",
                    f"reward, first {self.ends} steps": spread(mean_interval(returns[: self.ends])),
                    f"last {self.ends}": spread(mean_interval(returns[-self.ends :])),
                    "held-out solved %, start": percent_interval(*shares[0][1]),
                    "best": percent_interval(*best),
                    "n": f"{n:,}",
                    "seed": str(history["seed"]),
                }
            )
        note = (
            "Reward: log p of the whole board along orders drawn from the policy, in nats, a mean over steps, each on new puzzles. "
            "Held-out puzzles are of the validation split; the best of several validations is a little too good. "
            "Training calls: canvases through the denoiser, validation not counted."
        )
        table = Table.of(f"Training on Sudoku: {self.steps} steps", rows, note)
        return Findings([table], {"training": figures.progress(panels, "denoiser calls in training")})


def _points(x: Sequence[int], y: Sequence[float]) -> list[tuple[float, figures.Point]]:
    """Without limits."""
    return [(float(place), figures.Point("", value, value, value)) for place, value in zip(x, y, strict=True)]
