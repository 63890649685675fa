"""What a training step will need, found out before the first one: memory, forwards, seconds.

``P·G`` rollouts of ``K`` hidden positions visit ``P·G·K`` states (fewer with a budget). Kept of a state: the loop's own record and
what the policy observes, so many bytes per position, and nothing of the size of the vocabulary ``V``. The head is asked for the
hidden positions of the canvases that are decoded together; their prices are float32.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import AT_ONCE, BYTES_PER_LOGIT
from unmask.decoding.protocols import Canvas, Denoiser, View
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy.config import PolicyTraining

COPIES = 6
"""Float32 tensors of the size of the logits that are worked on at once."""
TIMED = 16
"""Canvases of the timed forward: a forward of one alone is mostly overhead."""
JOINED = 2
"""A step's states are kept one by one and then joined: for a moment there are two of each."""


@dataclass(frozen=True)
class Needs:
    """Bytes, canvases and seconds of one training step in each of ``processes``.

    ``weights`` are loaded already; ``available`` is left beside them.
    """

    weights: int
    rollout: int
    head: int
    forwards: int
    seconds: float
    available: int
    processes: int = 1

    @property
    def lines(self) -> tuple[str, str]:
        """For people."""
        size = lambda count: f"{count / 2**30:.2f} GiB" if count >= 2**29 else f"{count / 2**20:.0f} MiB"  # noqa: E731
        each = f" in each of {self.processes} processes" if self.processes > 1 else ""
        return (
            f"memory: weights {size(self.weights)}, kept states {size(self.rollout)}, head {size(self.head)}; "
            f"{size(self.available)} are free",
            f"a step: up to {self.forwards} denoiser forwards{each}, about {self.seconds:.1f} s of them",
        )

    def require(self) -> None:
        """Refuse what cannot fit."""
        if self.rollout + self.head > self.available:
            raise ValueError(
                f"a training step does not fit into memory ({self.lines[0]}): lower at_once, prompts or group, shorten the "
                "canvases, or choose a policy that keeps less (kind hidden keeps the denoiser's states)"
            )


@torch.no_grad()
def preflight(denoiser: Denoiser, policy: OrderPolicy, canvas: Canvas, config: PolicyTraining) -> Needs:
    """From the first step's canvases: one state of some of them is decoded, timed and weighed, the rest is counted."""
    device = torch.device(getattr(denoiser, "device", "cpu"))
    policy.to(device)
    answer = canvas.answer(denoiser.mask_id).sum(1)
    most = int(answer.max())
    vocabulary = 0

    def observe(view: View) -> dict[str, Tensor]:
        nonlocal vocabulary
        vocabulary = view.prices.logp.shape[1]
        return policy.observe(view)

    rollouts = len(answer) * config.group
    together = min(rollouts, max(config.group, config.at_once or rollouts))
    some = canvas.rows(answer.argsort(descending=True)[: min(TIMED, together)]).to(device)
    for _ in range(2):  # the first time, memory is fetched and kernels are chosen
        began = time.perf_counter()
        path = unmask(denoiser, policy, some, Decoding(steps=1), forced=True, observe=observe)  # a state each
        seconds = (time.perf_counter() - began) / len(some.tokens)
    assert path.states is not None
    kept = [value for value in vars(path.states).values() if isinstance(value, torch.Tensor)]
    per_state = sum(tensor.nbytes for tensor in [*kept, *path.states.observed.values()]) / len(path.states)
    turns = answer if config.decoding.steps is None else answer.clamp(max=config.decoding.steps)
    states = int(turns.sum()) * config.group
    forwards = len(answer) + (int(turns.sum()) - len(answer)) * config.group + int(answer.sum()) * config.relative
    weights = sum(p.nbytes for p in denoiser.parameters()) if isinstance(denoiser, torch.nn.Module) else 0
    return Needs(
        weights=weights,
        rollout=round(JOINED * states * per_state),
        head=together * most * vocabulary * BYTES_PER_LOGIT + 4 * COPIES * min(AT_ONCE, together * most * vocabulary),
        forwards=forwards,
        seconds=forwards * seconds,
        available=_available(device),
    )


def _available(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
