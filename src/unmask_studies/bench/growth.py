"""How time and memory of decoding grow with length, vocabulary and batch, and of a rollout with the group: fitted exponents.

k of time ∝ size^k: 1 is proportional, below 1 there is a fixed part. Beside it stands the k of the forwards alone, trunk and head
of the same canvases. Memory is the most bytes of tensors alive at one time besides the weights. Decoding reveals a quarter of the
canvas in two steps, so that a size costs what its forwards cost.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import Transformer
from unmask.schedulers.heuristics import confidence
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.sudoku.task import SudokuTask
from unmask_studies.bench.backbones import backbone, llada_like, random_tokens
from unmask_studies.bench.measuring import Finding, TensorBytes, exponent, time_rounds

Call = Callable[[], object]
STEPS = 2


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


def measure_growth(config: Growth) -> Iterator[Finding]:
    small = backbone(llada_like(config.width, config.layers, 4_000))
    wide = {n: backbone(llada_like(config.width, 1, n)) for n in config.vocabularies}
    canvases = {
        "length": {n: (small, _canvases(small, 1, n)) for n in config.lengths},
        "vocabulary": {n: (model, _canvases(model, 1, 64)) for n, model in wide.items()},
        "batch": {n: (small, _canvases(small, n, 64)) for n in config.batches},
    }
    for what, sizes in canvases.items():
        calls = {n: (_decoding(*pair), _forwards(*pair)) for n, pair in sizes.items()}
        yield from _measure_growth(what, calls, config.repeats)
    yield from _measure_growth("group", {n: (_rollout(n), None) for n in config.groups}, config.repeats)


def _measure_growth(what: str, calls: Mapping[int, tuple[Call, Call | None]], repeats: int) -> Iterator[Finding]:
    """Each size's call, and beside it the denoiser's own part where that can be separated."""
    both = {f"{size}": call for size, (call, _) in calls.items()}
    both |= {f"{size} bare": bare for size, (_, bare) in calls.items() if bare is not None}
    times = time_rounds(both, repeats)
    medians = [statistics.median(times[f"{size}"]) for size in calls]
    span = f"{min(calls):,} to {max(calls):,}"
    yield _fit(f"{what} {span}: exponent of time", [times[f"{size}"] for size in calls], list(calls))
    if all(bare is not None for _, bare in calls.values()):
        yield _fit(f"{what} {span}: of the forwards alone", [times[f"{size} bare"] for size in calls], list(calls))
    yield Finding(f"{what} {span}: time of the largest over the smallest", medians[-1] / medians[0], "×", n=repeats)
    peaks = []
    for call, _ in calls.values():
        with TensorBytes() as counted:
            call()
        peaks.append(counted.peak)
    yield Finding(f"{what} {span}: exponent of memory", exponent(list(calls), peaks), "k")
    yield Finding(f"{what} {span}: memory of the largest", peaks[-1] / 2**20, "MiB")


def _fit(name: str, times: Sequence[Sequence[float]], sizes: Sequence[int]) -> Finding:
    return Finding.median(name, [exponent(sizes, turn) for turn in zip(*times, strict=True)], "k")


def _canvases(denoiser: Transformer, batch: int, length: int) -> Int[Tensor, "B L"]:
    """The last quarter hidden."""
    return random_tokens(denoiser, batch, length, hidden=-(-length // 4), seed=length)


def _decoding(denoiser: Transformer, tokens: Int[Tensor, "B L"]) -> Call:
    return lambda: unmask(denoiser, confidence, tokens, Decoding(steps=STEPS), record=False)


def _forwards(denoiser: Transformer, tokens: Int[Tensor, "B L"]) -> Call:
    """Trunk and head of a decoding's states, with fewer hidden positions in every step."""
    hidden = [tokens == denoiser.mask_id]
    for _ in range(STEPS - 1):
        fewer = hidden[-1].clone()
        fewer[:, : -hidden[0].sum(1).max() // STEPS] = False
        hidden.append(fewer)

    @torch.no_grad()
    def call() -> None:
        for positions in hidden:
            denoiser.logits(denoiser.hidden(tokens)[positions])

    return call


def _rollout(group: int) -> Call:
    """Teacher forcing with an order drawn by the shipped policy, equal canvases shared, as in training."""
    denoiser = load_denoiser("sudoku-4x4-imperfect")
    policy = load_scheduler("sas", denoiser, "sudoku-4x4-imperfect")
    canvas = SudokuTask.generate(8, 4).canvas(range(8)).repeated(group)
    seeds = torch.arange(len(canvas.tokens))
    decoding = Decoding(order_temperature=1.0, share=True)
    return lambda: unmask(denoiser, policy, canvas.seeded(seeds), decoding, forced=True)
