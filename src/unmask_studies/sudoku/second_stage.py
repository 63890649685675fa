"""The second stage (tab:stage2_sudoku): a denoiser tuned along an order, before and after, and a second round of policy training.

On the path: −log p per cell along the order; off it: on random masks. Both are on held-out puzzles of the validation split, the
shares solved on puzzles of the test split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from unmask.report import figures
from unmask.report.gather import report_from_json
from unmask.runs.presets import change_training, load_preset
from unmask.runs.run import Run
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.denoiser.second_stage import SecondStage, run_second_stage
from unmask_studies import paper_numbers
from unmask_studies.reports import compare_rows, evaluate_scheduler, get_denoiser
from unmask_studies.sets import Sets
from unmask_studies.study import Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Table, TableRow, against_baseline, describe, label, limits, solved
from unmask_studies.training_runs import ensure_run, load_recipe

SECOND_ROUND = "sas, second round"
"""The name of the policy that was trained further, for the tuned denoiser."""
BEFORE, TUNE = "before", "tune"


@dataclass(frozen=True)
class SecondStageStudy(GridStudy):
    """A second stage of ``tuning_preset`` along each of ``schedulers``; after the one along ``sas`` the policy trains further.

    ``samples``, ``puzzles`` and ``validate`` replace the preset's, ``policy_steps`` the policy preset's steps.
    """

    tuning_preset: str = "stage2-sudoku-9x9-imperfect"
    schedulers: tuple[str, ...] = ("sas", "expert", "confidence", "random")
    policy_preset: str = "sas-sudoku-9x9-tuned"
    samples: int | None = None
    puzzles: int | None = None
    validate: int | None = None
    policy_steps: int | None = None
    sets: Sets = field(default_factory=Sets)
    seed: int = 0

    @property
    def stage(self) -> SecondStage:
        stage = change_training(load_preset(self.tuning_preset, SecondStage, "finetune"), samples=self.samples)
        if self.puzzles is not None:
            stage = replace(stage, data=replace(cast(SudokuData, stage.data), puzzles=self.puzzles))
        return stage if self.validate is None else replace(stage, validate=self.validate)

    def grid(self) -> list[Key]:
        """("before", used), then (tuned along, "tune") and (tuned along, used) for each scheduler."""
        self.sets.by_name()
        keys: list[Key] = [(BEFORE, used) for used in dict.fromkeys((*self.schedulers, "confidence"))]
        for along in self.schedulers:
            keys += [(along, TUNE), *((along, used) for used in self._used(along))]
        return keys

    def _used(self, along: str) -> list[str]:
        """The schedulers that decode with the denoiser tuned along one of them."""
        return [*dict.fromkeys((along, "confidence")), *([SECOND_ROUND] if along == "sas" else [])]

    def measure(self, key: Key, folder: Path) -> Result:
        along, used = map(str, key)
        stage, tuned = self.stage, folder / "runs" / f"tuned-{along}"
        if used == TUNE:
            tuned.parent.mkdir(parents=True, exist_ok=True)
            for _ in run_second_stage(replace(stage, order=along), tuned, resume=True):
                pass
            ends = [record for record in Run(tuned).metrics() if "on_path" in record]
            return {"before": ends[0], "after": ends[-1]}
        denoiser, name = stage.denoiser if along == BEFORE else str(tuned), used
        if used == SECOND_ROUND:
            config = load_recipe(self.policy_preset, None, self.policy_steps, denoiser, self.validate)
            name = str(ensure_run("second-round", config, folder))
        scheduler = (used, load_scheduler(name, get_denoiser(denoiser), stage.denoiser))
        return evaluate_scheduler(self.sets.load(), denoiser, scheduler, self.seed)

    def findings(self, results: Results) -> Findings:
        rows: list[TableRow] = []
        panels: dict[str, list[figures.Point]] = {"before: tuned along → decoded by": [], "after": []}
        for along in self.schedulers:
            ends = [results[along, TUNE][end] for end in ("before", "after")]
            for used in self._used(along):
                start = "sas" if used == SECOND_ROUND else used
                before = report_from_json(results[BEFORE, start]).rows[0]
                after = report_from_json(results[along, used]).rows[0]
                after = compare_rows(after, before)
                own = used == along
                paper = paper_numbers.SECOND_STAGE.get(along) if own else None
                rows.append(
                    {
                        "tuned along": label(along),
                        "decoded by": _label(used),
                        "before, solved %": solved(before),
                        "after, solved %": solved(after),
                        "difference, paired": against_baseline(after),
                        "paper": "{:.1f} → {:.1f}".format(*paper) if paper else "",
                        "−log p per cell on the path": _change(ends, "on_path") if own else "",
                        "off the path": _change(ends, "off_path") if own else "",
                    }
                )
                name = f"{label(along)} → {_label(used)}".replace("learned (SAS), ", "").replace(" (SAS)", "")
                better = after.versus is not None and after.versus.low > 0
                for points, row, strong in zip(panels.values(), (before, after), (False, better), strict=True):
                    points.append(figures.share(name, limits(row), strong))
        one = report_from_json(results[BEFORE, "confidence"])
        title = describe(one).replace(" on ", f", second stage by {self.tuning_preset}, on ", 1)
        note = (
            f"Losses in nats, on {self.stage.validate} puzzles of the validation split. Second round: {self.policy_preset} trains "
            "the policy further, for the tuned denoiser. Bold: the paired interval excludes 0."
        )
        return Findings([Table.of(title, rows, note)], {"stage2": figures.intervals(panels, "solved, %")})


def _label(used: str) -> str:
    return f"{label('sas')}, second round" if used == SECOND_ROUND else label(used)


def _change(ends: list[Mapping[str, float]], key: str) -> str:
    return " → ".join(f"{end[key]:.4f}" for end in ends)
