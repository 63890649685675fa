"""Clocks and counters: interleaved CPU times, ratios with their spread, fitted exponents, bytes of live tensors.

Time is the CPU time of this process. Calls that are compared alternate in every round, and a ratio is taken within a round: other
load on the machine slows both sides. Medians drop outliers; the spread is the least and the greatest round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Finding:
    """One number: a median over ``n`` rounds with its spread, a share of ``n`` problems with its interval, or a computed one."""

    what: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    n: int = 1
    limits: str = ""

    @classmethod
    def median(cls, what: str, values: Sequence[float], unit: str) -> Finding:
        return cls(what, statistics.median(values), unit, min(values), max(values), len(values), "spread")


def time_rounds(calls: Mapping[str, Callable[[], object]], repeats: int, warm: bool = True) -> dict[str, list[float]]:
    """Seconds of CPU time of each call in each round, the calls one after the other; ``warm`` calls each once before."""
    if warm:
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.process_time()
            call()
            times[name].append(time.process_time() - began)
    return times


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def exponent(sizes: Sequence[float | int], values: Sequence[float | int]) -> float:
    """k of the least-squares fit value = c·size^k, in logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


class TensorBytes(TorchDispatchMode):
    """The most bytes that tensors made inside this context held at one time. Earlier tensors do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        self.live = {key: (ref, size) for key, (ref, size) in self.live.items() if not ref.expired()}
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            # An output that shares the storage of an input is a view of it, or the same: not new.
            if storage._cdata not in self.live and storage._cdata not in given:
                self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
