"""What a learned order adds to decoding boards with a small denoiser: whole decodings, in rounds with those of confidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask
from unmask_studies.bench.measuring import Finding, ratios, time_rounds

BASELINE = "confidence"


@dataclass(frozen=True)
class Boards:
    """Generated puzzles with ``clues``, so many of ``boards`` decoded together, by each of the ``schedulers`` in every round.

    Numbers of boards that are also in ``compiled`` are decoded in compiled graphs, too; what compiles them is not timed.
    """

    denoiser: str = "sudoku-9x9-imperfect"
    schedulers: tuple[str, ...] = ("sas", "sas-general")
    boards: tuple[int, ...] = (1, 8, 32, 64)
    compiled: tuple[int, ...] = (1, 8)
    clues: str = "rao"
    repeats: int = 5


QUICK = Boards("sudoku-4x4-imperfect", ("sas",), boards=(4,), compiled=(), clues="4-6", repeats=2)


def measure_boards(config: Boards) -> Iterator[Finding]:
    """Their time over confidence's."""
    denoiser = load_denoiser(config.denoiser)
    size = round(denoiser.config.max_length**0.5)
    orders = {name: load_scheduler(name, denoiser, config.denoiser) for name in (BASELINE, *config.schedulers)}
    for boards in config.boards:
        canvas = SudokuTask.generate(boards, size, config.clues).canvas(range(boards))
        for compiled in (False, True) if boards in config.compiled else (False,):
            decoding = Decoding(compile=compiled)
            decode = {
                name: partial(unmask, denoiser, order, canvas, decoding, record=False) for name, order in orders.items()
            }
            times = time_rounds(decode, config.repeats)
            how = f"boards at once: {boards}{', compiled' if compiled else ''}"
            for name in config.schedulers:
                yield Finding.median(
                    f"{name}: time over {BASELINE}'s, {config.denoiser}, {how}",
                    ratios(times[name], times[BASELINE]),
                    "×",
                )
