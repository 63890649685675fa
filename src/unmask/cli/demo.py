"""``unmask demo``: the whole story on a laptop, in minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from unmask.cli.evaluate import HEURISTICS, show_evaluation
from unmask.cli.shell import console
from unmask.cli.train import show_learning, show_pretraining, show_tuning
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Scheduler
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import Report, schedulers_named
from unmask.report import cases, page
from unmask.report.terminal import tables as terminal
from unmask.report.traces import record as trace
from unmask.runs.presets import load_preset
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask
from unmask.training.denoiser.pretrain import Pretrain
from unmask.training.denoiser.second_stage import SecondStage
from unmask.training.policy.run import Learn

CASES = 6
"""Puzzles in the page's viewer: won, lost and failed by both in turn."""


def demo(out: Path = Path("runs/demo"), puzzles: int = 200) -> None:
    """The whole story, in minutes on two cores. A denoiser, the orders people use, a learned one, a second stage, a page.

    Args:
        out: The folder of its runs. A second demo goes on where the first one stopped.
        puzzles: Held-out puzzles in the tables.
    """
    problems = SudokuTask.generated(puzzles, clues="rao")
    base, order, tuned = out / "denoiser", out / "order", out / "tuned"
    console.print("1. A small masked diffusion model learns Sudoku from random masks.")
    show_pretraining(load_preset("sudoku-9x9-imperfect", Pretrain, "pretrain"), base, resume=True)

    console.print(
        "2. A policy learns in which order that model, now frozen, fills a board best, from its own likelihood."
    )
    show_learning(replace(load_preset("demo", Learn, "train"), denoiser=str(base)), order, resume=True)

    console.print("3. The same model fills held-out puzzles: the orders people use, and the learned one.")
    model = load_denoiser(base)
    orders = {**schedulers_named(HEURISTICS.split(","), load_scheduler), "learned": load_scheduler(str(order), model)}
    before = _compare(problems, base, orders)
    before.write(out / "orders.json", command="unmask demo")

    console.print("4. The second stage: the model is tuned along the learned order.")
    second = replace(load_preset("demo", SecondStage, "finetune"), denoiser=str(base), order=str(order))
    show_tuning(second, tuned, resume=True)
    model = load_denoiser(tuned)
    orders = {"confidence": load_scheduler("confidence"), "learned": load_scheduler(str(order), model)}
    _compare(problems, tuned, orders).write(out / "tuned.json", command="unmask demo")

    model = load_denoiser(base)
    orders = {"confidence": load_scheduler("confidence"), "learned": load_scheduler(str(order), model)}
    about = trace.about_boards(problems.size, str(base))
    traces = cases.record_cases(before, problems, model, orders, {"sequential": Decoding()}, about, out / "traces", CASES)
    inputs = [out / "orders.json", out / "tuned.json", order, *traces]
    page.write(inputs, out / "report.html", "A learned order of thought", "unmask demo")
    console.print(f"5. Everything on one page, with the orders to watch step by step: open {out / 'report.html'}")


def _compare(problems: SudokuTask, folder: Path, orders: dict[str, Scheduler]) -> Report:
    model, once = load_denoiser(folder), {"sequential": Decoding()}
    report = show_evaluation(problems, model, orders, once, str(folder), "confidence", 64, 0, False)
    console.print(terminal.comparison(report))
    return report
