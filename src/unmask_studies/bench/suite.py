"""The benchmarks by name, at full and at quick size, and the machine they ran on."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from unmask_studies.bench import boards, caches, decoding, drafts, growth, learning, policy_cost, processes, throughput
from unmask_studies.bench.measuring import Finding

SUITE: dict[str, tuple[Callable[[Any], Iterator[Finding]], Any, Any]] = {
    "boards": (boards.measure_boards, boards.Boards(), boards.QUICK),
    "caches": (caches.measure_caches, caches.Caches(), caches.QUICK),
    "policy-cost": (policy_cost.measure_policy_cost, policy_cost.PolicyCost(), policy_cost.QUICK),
    "decoding": (decoding.measure_decoding, decoding.DecodingBench(), decoding.QUICK),
    "learning": (learning.measure_learning, learning.Learning(), learning.QUICK),
    "drafts": (drafts.measure_drafts, drafts.DraftBench(), drafts.QUICK),
    "throughput": (throughput.measure_throughput, throughput.Throughput(), throughput.QUICK),
    "growth": (growth.measure_growth, growth.Growth(), growth.QUICK),
    "processes": (processes.measure_processes, processes.Processes(), processes.QUICK),
}
"""Name → the benchmark, its settings, and settings that take seconds."""


def machine() -> dict[str, Any]:
    """Versions, the processor and the threads in use."""
    return {
        "unmask": importlib.metadata.version("unmask"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": platform.platform(),
        "processor": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "loops": decoding.list_sources(),
    }
