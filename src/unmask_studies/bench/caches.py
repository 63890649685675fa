"""What caches save, and what they cost in accuracy.

Accuracy: denoisers of Sudoku decode block by block, a block being a row of the board, with every cache; all arms decode the same
puzzles, alternating within each batch. Speed at length: a backbone of LLaDA's proportions with random weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from unmask.decoding.caching import with_cache
from unmask.decoding.loop import unmask
from unmask.decoding.options import Cache, Decoding
from unmask.decoding.protocols import Canvas, Denoiser
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.evaluation.statistics import compare, wilson
from unmask.schedulers.heuristics import confidence
from unmask.tasks.sudoku.task import SudokuTask
from unmask_studies.bench.backbones import backbone, llada_like, random_tokens
from unmask_studies.bench.measuring import Finding, ratios, time_rounds

PLAIN = "no cache"
ARMS: dict[str, tuple[Cache, int | None]] = {
    PLAIN: ("none", None),
    **{
        f"{cache}, " + ("at block boundaries only" if refresh is None else f"refresh {refresh}"): (cache, refresh)
        for cache in ("prefix", "dual")
        for refresh in (1, 2, 4, None)
    },
}
"""Name → cache and refresh."""


@dataclass(frozen=True)
class Caches:
    """``puzzles`` by each of the ``denoisers``; ``length`` tokens in blocks of ``text_block`` on a backbone like LLaDA."""

    denoisers: tuple[str, ...] = ("sudoku-9x9-imperfect",)
    puzzles: int = 512
    batch: int = 128
    width: int = 256
    layers: int = 4
    prompt: int = 128
    length: int = 384
    text_block: int = 32
    blocks: int = 1
    repeats: int = 2


QUICK = Caches(puzzles=8, batch=8, width=128, layers=4, prompt=64, length=64, blocks=1, repeats=1)


def measure_caches(config: Caches) -> Iterator[Finding]:
    for name in config.denoisers:
        yield from measure_accuracy(name, config)
    yield from measure_speed(config)


def measure_accuracy(board: str, config: Caches) -> Iterator[Finding]:
    """Puzzles solved with each cache; ``board`` names the denoiser."""
    denoiser = load_denoiser(board)
    size = denoiser.config.grid
    if not isinstance(denoiser, Transformer) or size is None:
        raise ValueError(f"expected a denoiser of Sudoku boards, got {board}")
    if denoiser.config.n_layers == 1:
        raise ValueError(
            f"{board} has one layer, whose keys and values are never stale: its accuracy with a cache means nothing; "
            "expected a denoiser of at least two layers"
        )
    task, n = SudokuTask.generate(config.puzzles, size), config.puzzles
    arms = {name: with_cache(denoiser, *arm) for name, arm in ARMS.items()}
    solved: dict[str, list[bool]] = {name: [] for name in arms}
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    positions = dict.fromkeys(arms, 0)
    for start in range(0, n, config.batch):
        rows = range(start, min(start + config.batch, n))
        for name, model in arms.items():
            began = time.process_time()
            trajectory = unmask(model, confidence, task.canvas(rows), Decoding(block=size), record=False)
            seconds[name].append(time.process_time() - began)
            positions[name] += trajectory.positions
            solved[name] += task.verify(rows, trajectory.tokens).exact.tolist()
    for name in arms:
        count = sum(solved[name])
        low, high = wilson(count, n)
        yield Finding(f"{board}, {name}: solved", 100 * count / n, "%", 100 * low, 100 * high, n, "95 %")
        if name != PLAIN:
            pair = compare(solved[name], solved[PLAIN])
            value, low, high = (100 * share for share in (pair.difference, pair.low, pair.high))
            yield Finding(f"{board}, {name}: against no cache", value, "points", low, high, n, "95 %, paired")
            yield from _savings(f"{board}, {name}", positions[name] / positions[PLAIN], seconds[PLAIN], seconds[name])


def measure_speed(config: Caches) -> Iterator[Finding]:
    """``blocks`` blocks in the middle of the answer: those before are given, those behind stay hidden."""
    total = config.prompt + config.length
    denoiser = backbone(llada_like(config.width, config.layers, length=total))
    revealed = config.blocks * config.text_block
    first = config.prompt + (config.length - revealed) // 2
    tokens = random_tokens(denoiser, 1, total, hidden=total - first, seed=2)
    canvas = Canvas(tokens, candidates=(torch.arange(total) < first + revealed)[None])

    def decode(model: Denoiser) -> int:
        return unmask(model, confidence, canvas, Decoding(config.text_block), record=False).positions

    arms = {name: arm for name, arm in ARMS.items() if arm[1] in (4, None)}
    calls = {name: partial(decode, with_cache(denoiser, *arm)) for name, arm in arms.items()}
    positions = {name: call() for name, call in calls.items()}
    times = time_rounds(calls, config.repeats, warm=False)
    where = f"{config.layers} layers of width {config.width}, L = {total}, blocks of {config.text_block}"
    for name in list(calls)[1:]:
        yield from _savings(f"{where}, {name}", positions[name] / positions[PLAIN], times[PLAIN], times[name])


def _savings(name: str, positions: float, plain: Sequence[float], cached: Sequence[float]) -> Iterator[Finding]:
    yield Finding(f"{name}: positions computed", 100 * positions, "%")
    yield Finding.median(f"{name}: times as fast", ratios(plain, cached), "×")
