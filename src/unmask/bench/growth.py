"""How time and memory of decoding grow with length, vocabulary and batch, and of a rollout with the group: fitted exponents.

k of time ∝ size^k: 1 is proportional, below 1 there is a fixed part. Memory is the most bytes of tensors alive at one time besides
the weights. Decoding reveals a quarter of the canvas in two steps, so that a size costs what its forwards cost.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from unmask.bench.backbones import backbone, llada_like
from unmask.bench.measuring import Finding, TensorBytes, exponent, rounds
from unmask.decode import unmask, unmask_canvas
from unmask.denoisers.transformer import Transformer
from unmask.live import Regime
from unmask.registry import load_denoiser, load_scheduler
from unmask.schedulers import confidence
from unmask.tasks.sudoku.task import SudokuTask


@dataclass(frozen=True)
class Growth:
    width: int = 128
    layers: int = 2
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    vocabularies: tuple[int, ...] = (1_000, 4_000, 16_000, 64_000, 128_000)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    groups: tuple[int, ...] = (1, 2, 4, 8)
    repeats: int = 3


QUICK = Growth(
    lengths=(64, 256, 1024), vocabularies=(1_000, 16_000, 128_000), batches=(1, 4, 16), groups=(1, 4), repeats=1
)


def growth(config: Growth) -> Iterator[Finding]:
    small = backbone(llada_like(config.width, config.layers, 4_000))
    yield from _grown("length", {n: _decoding(small, 1, n) for n in config.lengths}, config.repeats)
    vocabularies = {n: backbone(llada_like(config.width, 1, n)) for n in config.vocabularies}
    calls = {n: _decoding(model, 1, 64) for n, model in vocabularies.items()}
    yield from _grown("vocabulary", calls, config.repeats)
    yield from _grown("batch", {n: _decoding(small, n, 64) for n in config.batches}, config.repeats)
    yield from _grown("group", {n: _rollout(n) for n in config.groups}, config.repeats)


def _grown(what: str, calls: Mapping[int, Callable[[], object]], repeats: int) -> Iterator[Finding]:
    times = rounds({str(size): call for size, call in calls.items()}, repeats)
    medians = [statistics.median(times[str(size)]) for size in calls]
    fits = [exponent(list(calls), [times[str(size)][n] for size in calls]) for n in range(repeats)]
    span = f"{min(calls):,} to {max(calls):,}"
    yield Finding.median(f"{what} {span}: exponent of time", fits, "k")
    yield Finding(f"{what} {span}: time of the largest over the smallest", medians[-1] / medians[0], "×", n=repeats)
    peaks = []
    for call in calls.values():
        with TensorBytes() as counted:
            call()
        peaks.append(counted.peak)
    yield Finding(f"{what} {span}: exponent of memory", exponent(list(calls), peaks), "k")
    yield Finding(f"{what} {span}: memory of the largest", peaks[-1] / 2**20, "MiB")


def _decoding(denoiser: Transformer, batch: int, length: int) -> Callable[[], object]:
    tokens = torch.randint(denoiser.mask_id, (batch, length), generator=torch.Generator().manual_seed(length))
    tokens[:, -length // 4 :] = denoiser.mask_id
    return lambda: unmask(denoiser, confidence, tokens, Regime(steps=2), record=False)


def _rollout(group: int) -> Callable[[], object]:
    """Teacher forcing with an order drawn by the shipped policy, equal canvases shared, as in training."""
    denoiser = load_denoiser("sudoku-4x4-imperfect")
    policy = load_scheduler("sas", denoiser, "sudoku-4x4-imperfect")
    canvas = SudokuTask.generated(8, 4).canvas(range(8)).repeated(group)
    seeds = torch.arange(len(canvas.tokens))
    regime = Regime(order_temperature=1.0)
    return lambda: unmask_canvas(denoiser, policy, canvas, regime, forced=True, seeds=seeds, share=True)
