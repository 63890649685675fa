"""What caches save, and what they cost in accuracy.

Accuracy: denoisers of Sudoku decode block by block, a block being a row of the board, with every cache; all arms see the same
puzzles, in turn within each batch. Speed at length: a backbone of LLaDA's proportions with random weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
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
from unmask_studies.bench.backbones import backbone, llada_like
from unmask_studies.bench.measuring import Finding, ratios, time_rounds

ARMS: tuple[tuple[Cache, int | None], ...] = (
    ("none", None),
    *((cache, refresh) for cache in ("prefix", "dual") for refresh in (1, 2, 4, None)),
)
"""(cache, refresh)."""


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


def cache_name(cache: str, refresh: int | None) -> str:
    if cache == "none":
        return "no cache"
    return f"{cache}, " + ("at block boundaries only" if refresh is None else f"refresh {refresh}")


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
            f"{board} has one layer, whose keys and values are never stale: its accuracy with a cache says nothing; "
            "expected a denoiser of at least two layers"
        )
    task = SudokuTask.generated(config.puzzles, size)
    arms = [(cache_name(*arm), with_cache(denoiser, *arm)) for arm in ARMS]
    solved = {name: np.zeros(config.puzzles, bool) for name, _ in arms}
    seconds: dict[str, list[float]] = {name: [] for name, _ in arms}
    positions = {name: 0 for name, _ in arms}
    decoding = Decoding(block=size)
    for start in range(0, config.puzzles, config.batch):
        rows = range(start, min(start + config.batch, config.puzzles))
        canvas = task.canvas(rows)
        for name, model in arms:
            began = time.process_time()
            trajectory = unmask(model, confidence, canvas, decoding, record=False)
            seconds[name].append(time.process_time() - began)
            positions[name] += trajectory.positions
            solved[name][rows.start : rows.stop] = task.verify(rows, trajectory.tokens).exact.numpy()
    plain = cache_name(*ARMS[0])
    for name, _ in arms:
        right, n = solved[name], config.puzzles
        low, high = wilson(int(right.sum()), n)
        share = 100 * float(right.mean())
        yield Finding(f"{board}, {name}: solved", share, "%", 100 * low, 100 * high, n, "95 %")
        if name == plain:
            continue
        pair = compare(right, solved[plain])
        low, high = 100 * pair.low, 100 * pair.high
        yield Finding(
            f"{board}, {name}: against no cache",
            100 * pair.difference,
            "points",
            low,
            high,
            n,
            "95 %, paired",
        )
        yield Finding(f"{board}, {name}: positions computed", 100 * positions[name] / positions[plain], "%")
        speedup = ratios(seconds[plain], seconds[name])
        yield Finding.median(f"{board}, {name}: times as fast", speedup, "×")


def measure_speed(config: Caches) -> Iterator[Finding]:
    """``blocks`` blocks in the middle of the answer: those before are given, those behind stay hidden."""
    denoiser = backbone(llada_like(config.width, config.layers, length=config.prompt + config.length))
    total = config.prompt + config.length
    tokens = torch.randint(denoiser.config.vocab_size - 1, (1, total), generator=torch.Generator().manual_seed(2))
    first = config.prompt + (config.length - config.blocks * config.text_block) // 2
    tokens[:, first:] = denoiser.mask_id
    candidates = (torch.arange(total) < first + config.blocks * config.text_block)[None]
    chosen = [arm for arm in ARMS if arm[1] in (4, None)]

    def decode(model: Denoiser) -> int:
        decoding = Decoding(config.text_block)
        return unmask(model, confidence, Canvas(tokens, candidates=candidates), decoding, record=False).positions

    calls = {cache_name(*arm): partial(decode, with_cache(denoiser, *arm)) for arm in chosen}
    positions = {name: call() for name, call in calls.items()}
    times = time_rounds(calls, config.repeats, warm=False)
    plain = cache_name(*ARMS[0])
    what = f"{config.layers} layers of width {config.width}, L = {total}, blocks of {config.text_block}"
    for name in list(calls)[1:]:
        yield Finding(f"{what}, {name}: positions computed", 100 * positions[name] / positions[plain], "%")
        yield Finding.median(f"{what}, {name}: times as fast", ratios(times[plain], times[name]), "×")
