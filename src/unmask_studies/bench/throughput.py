"""The denoiser's arithmetic per second as a share of a plain matrix product's, in the same rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from unmask.denoisers.loading import load_denoiser
from unmask.training.cost.flops import trunk_flops
from unmask_studies.bench.backbones import backbone, llada_like
from unmask_studies.bench.measuring import Finding, time_rounds


@dataclass(frozen=True)
class Throughput:
    sides: tuple[int, ...] = (512, 1024, 2048)
    width: int = 512
    layers: int = 4
    length: int = 256
    denoiser: str = "sudoku-9x9"
    boards: int = 64
    repeats: int = 5


QUICK = Throughput(sides=(512, 1024), width=256, layers=2, boards=32, repeats=3)


@torch.no_grad()
def measure_throughput(config: Throughput) -> Iterator[Finding]:
    """The peak is the best size's in each round: FLOP per second of CPU time, so per core where one is used."""
    generator = torch.Generator().manual_seed(0)
    squares = {f"product {n}": torch.randn(n, n, generator=generator) for n in config.sides}
    calls: dict[str, Callable[[], object]] = {name: partial(torch.matmul, a, a) for name, a in squares.items()}
    work = {f"product {n}": 2 * n**3 for n in config.sides}
    text = backbone(llada_like(config.width, config.layers))
    tokens = torch.randint(text.mask_id, (1, config.length), generator=generator)
    name = f"{config.layers} layers of width {config.width}, L = {config.length}"
    calls[name], work[name] = lambda: text.hidden(tokens), trunk_flops(text.config, config.length)
    grid = load_denoiser(config.denoiser)
    boards = torch.randint(10, (config.boards, 81), generator=generator)
    board_name = f"{config.denoiser}, {config.boards} boards"
    calls[board_name] = lambda: grid.hidden(boards)
    work[board_name] = config.boards * trunk_flops(grid.config, 81)  # pyright: ignore[reportArgumentType]
    times = time_rounds(calls, config.repeats)
    rates = {key: [work[key] / seconds / 1e9 for seconds in times[key]] for key in calls}
    peak = [max(rates[key][n] for key in squares) for n in range(config.repeats)]
    yield Finding.median("matrix product, float32, best size", peak, "GFLOP/s")
    for key in (name, board_name):
        yield Finding.median(
            f"{key}: of the matrix product's", [100 * r / p for r, p in zip(rates[key], peak, strict=True)], "%"
        )
