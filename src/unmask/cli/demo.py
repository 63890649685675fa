"""``unmask demo``: the whole story on a laptop, in minutes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from unmask.cli.evaluate import show_evaluation
from unmask.cli.finetune import show_tuning
from unmask.cli.pretrain import show_pretraining
from unmask.cli.shell import Inline, console
from unmask.cli.train import show_learning
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Scheduler
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.placement import Placement
from unmask.evaluation.evaluate import EvaluationOptions, Report
from unmask.report import cases, page
from unmask.report.terminal import tables as terminal
from unmask.report.traces import record as trace
from unmask.runs.presets import load_preset
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.source import SudokuData
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.denoiser.pretrain import Pretrain
from unmask.training.denoiser.second_stage import SecondStage
from unmask.training.policy.run import PolicyRun

CASES = 6
"""Puzzles in the page's viewer: won, lost and failed by both in turn."""


@dataclass(frozen=True)
class Demo:
    """Train a small denoiser and an order for it, and write a report, in minutes on two cores. With the usual heuristics and a
    second stage beside it.

    $ unmask demo
    $ unmask demo --quick --out runs/quick
    """

    out: Path = Path("runs/demo")  # The folder of its runs. A second demo continues where the first one stopped.
    puzzles: int = 200  # Held-out puzzles in the tables.
    quick: bool = False  # 4x4 boards: the same in less than a minute.
    placement: Annotated[Placement, Inline] = field(default_factory=Placement)  # Where everything runs.

    def run(self) -> None:
        where = {"device": self.placement.device, "dtype": self.placement.dtype}
        size, clues, preset = (4, None, "demo-quick") if self.quick else (9, "rao", "demo")
        out, problems = self.out, SudokuTask.generate(self.puzzles, size, clues)
        console.print(f"everything runs on {self.placement.describe()}")
        base, order, tuned = out / "denoiser", out / "order", out / "tuned"
        console.print("1. A small masked diffusion model learns Sudoku from random masks.")
        first = replace(load_preset(f"sudoku-{size}x{size}-imperfect", Pretrain, "pretrain"), **where)
        show_pretraining(first, base, resume=True)

        console.print("2. A policy learns the order in which that model, now frozen, fills a board best.")
        learning = replace(load_preset(preset, PolicyRun, "train"), denoiser=str(base), **where)
        show_learning(learning, order, resume=True)

        console.print(
            "3. The same model fills held-out puzzles: with the usual heuristics, and with the learned policy."
        )
        learned = _compare(
            problems, self._load(base), base, {name: name for name in SudokuData.schedulers} | {"learned": str(order)}
        )
        learned.write(out / "orders.json", command="unmask demo")

        console.print("4. The second stage: the model is tuned along the learned order.")
        second = replace(load_preset(preset, SecondStage, "finetune"), denoiser=str(base), order=str(order), **where)
        show_tuning(second, tuned, resume=True)
        names = {"confidence": "confidence", "learned": str(order)}
        _compare(problems, self._load(tuned), tuned, names).write(out / "tuned.json", command="unmask demo")

        model, decodings = self._load(base), {"sequential": Decoding()}
        schedulers = {label: load_scheduler(name, model) for label, name in names.items()}
        about = trace.about_boards(problems.size, str(base))
        traces = cases.record_cases(learned, problems, model, schedulers, decodings, about, out / "traces", CASES)
        inputs = [out / "orders.json", out / "tuned.json", order, *traces]
        page.write(inputs, out / "report.html", "A learned order of thought", "unmask demo")
        console.print(f"5. Everything on one page, with the orders to watch step by step: open {out / 'report.html'}")

    def _load(self, folder: Path) -> Any:
        return load_denoiser(folder, **self.placement.options)


def _compare(problems: SudokuTask, model: Any, folder: Path, names: dict[str, str]) -> Report:
    schedulers: dict[str, Scheduler] = {label: load_scheduler(name, model) for label, name in names.items()}
    options = EvaluationOptions(str(folder), "confidence", likelihood=False)
    report = show_evaluation(problems, model, schedulers, {"sequential": Decoding()}, options)
    console.print(terminal.comparison(report))
    return report
