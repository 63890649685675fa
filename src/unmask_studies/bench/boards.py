"""What a learned order adds to decoding boards with a small denoiser: whole decodings, in rounds with those of confidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from unmask.decoding.loop import unmask
from unmask.denoisers.loading import load_denoiser
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask
from unmask_studies.bench.measuring import Finding, ratios, time_rounds

BASELINE = "confidence"


@dataclass(frozen=True)
class Boards:
    """``boards`` generated puzzles with ``clues``, decoded together by each of the ``schedulers`` in every round."""

    denoiser: str = "sudoku-9x9-imperfect"
    schedulers: tuple[str, ...] = ("sas", "sas-general")
    boards: int = 64
    clues: str = "rao"
    repeats: int = 5


QUICK = Boards("sudoku-4x4-imperfect", ("sas",), boards=4, clues="4-6", repeats=2)


def measure_boards(config: Boards) -> Iterator[Finding]:
    """Their time over confidence's."""
    denoiser = load_denoiser(config.denoiser)
    size = round(denoiser.config.max_length**0.5)
    canvas = SudokuTask.generate(config.boards, size, config.clues).canvas(range(config.boards))
    orders = {name: load_scheduler(name, denoiser, config.denoiser) for name in (BASELINE, *config.schedulers)}
    times = time_rounds(
        {name: partial(unmask, denoiser, order, canvas, record=False) for name, order in orders.items()}, config.repeats
    )
    for name in config.schedulers:
        yield Finding.median(
            f"{name}: time over {BASELINE}'s, {config.denoiser}, {config.boards} boards",
            ratios(times[name], times[BASELINE]),
            "×",
        )
