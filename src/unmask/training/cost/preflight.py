"""Forwards and memory of a training step: the one model of ``unmask plan`` and of the check before a run's first step.

Symbols: ``P`` prompts and ``G`` orders each per training step, ``L`` positions of a canvas, ``K`` of them hidden, ``T`` denoiser
steps per order (``K``, or the budget), ``V`` vocabulary. A training step needs

    forwards   P·(1 + G·(T − 1)): the first state of a group is one forward (at most: other states may be equal, too)
    positions  P·G·K·(T + 1)/2 with logits: a policy prices everything that is hidden
    relative   P·K more of both, for rewards relative to leave-one-out prices
    states     P·G·T are kept: the loop's own record and the policy's observation, nothing of size ``V``
    decisions  P·G·(K − 1), each a state that the update reads ``mu`` times, forward and backward (three forwards' arithmetic)
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import psutil
import torch

from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import AT_ONCE, BYTES_PER_LOGIT
from unmask.decoding.protocols import Canvas
from unmask.denoisers.transformer import TransformerConfig
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.policy import OrderPolicy
from unmask.training.cost.flops import observation
from unmask.training.policy.config import PolicyTraining

RECORD_BYTES = 38
"""Kept of a position of a state by the loop: tokens, best (8 each), eligible, revealed (1 each), five prices (4 each)."""
COPIES = 6
"""Float32 tensors of the size of the logits that are in use at once."""
CONCATENATED = 2
"""A step's states are kept one by one and then concatenated: for a moment there are two of each."""
TIMED = 16
"""Canvases of the preflight's timed forward: a forward of one is mostly overhead."""


@dataclass(frozen=True)
class Work:
    """A training on canvases of ``length`` L, of which typical ones hide ``hidden`` positions K.

    ``validations`` problems are decoded in all, during training. ``forwards`` of the denoiser per state: 1 here, 2 where states are
    rolled out first and priced by a second pass, as in the paper.
    """

    length: int
    hidden: tuple[int, ...]
    training: PolicyTraining = PolicyTraining()  # noqa: RUF009
    validations: int = 0
    forwards: int = 1

    def __post_init__(self) -> None:
        if not self.hidden or not 1 <= max(self.hidden) <= self.length:
            raise ValueError(f"an answer must hide 1 to {self.length} positions (the length), got {self.hidden[:3]}")

    @classmethod
    def of(cls, canvas: Canvas, mask_id: int, training: PolicyTraining) -> Work:
        """A training on problems like these canvases."""
        hidden = tuple(int(k) for k in canvas.answer(mask_id).sum(1).tolist())
        # Before the first step, every so many, and at the end.
        rounds = 1 + math.ceil(training.steps / training.validate_every)
        return cls(canvas.tokens.shape[1], hidden, training, training.validate * rounds)

    def turns(self, hidden: int) -> int:
        """T of a problem."""
        return min(self.training.decoding.steps or hidden, hidden)

    @property
    def mean_turns(self) -> float:
        return fmean(self.turns(k) for k in self.hidden)

    @property
    def mean_priced(self) -> float:
        """Positions with logits over one order, every hidden position of every state."""
        return fmean(k * (self.turns(k) + 1) / 2 for k in self.hidden)

    @property
    def mean_hidden(self) -> float:
        return fmean(self.hidden)

    @property
    def step_forwards(self) -> float:
        """Canvases through the denoiser in one training step, if only the first states of a group are equal."""
        prompts, group = self.training.prompts, self.training.group
        rollouts = self.forwards * prompts * (1 + group * (self.mean_turns - 1))
        return rollouts + self.training.relative * prompts * self.mean_hidden

    @property
    def orders(self) -> int:
        """Orders of one training step."""
        return self.training.prompts * self.training.group


def step_memory(shape: Any, policy: PolicyConfig, work: Work, bytes_per_weight: int) -> dict[str, float]:
    """Bytes besides the weights at the fullest moment of a training step. ``shape``: the denoiser's configuration.

    Activations are known of this library's own transformers only.
    """
    orders, length = work.orders, work.length
    rows = min(orders, max(work.training.group, work.training.at_once or orders))
    activations = 0.0
    if isinstance(shape, TransformerConfig):
        inner = shape.n_heads * shape.inner_width
        # The stream and its norm, then the tensors of attention or of the FFN.
        widest = 2 * shape.width + max(4 * inner, 3 * max(shape.ffn_widths(taken=True)))
        activations = float(rows * length * widest * bytes_per_weight)
    vocabulary = getattr(shape, "head_rows", None) or shape.vocab_size
    seen = sum(tensor.nbytes for tensor in observation(policy, shape.width, vocabulary, length).values())
    priced = rows * max(work.hidden) * vocabulary
    return {
        "activations": activations,
        "logits": float(priced * BYTES_PER_LOGIT + 4 * COPIES * min(AT_ONCE, priced)),
        "states": (CONCATENATED + work.training.replay) * orders * work.mean_turns * (length * RECORD_BYTES + seen),
    }


@dataclass(frozen=True)
class Needs:
    """One training step in each of ``processes``. ``memory`` in bytes; the weights are loaded, ``available`` is left."""

    memory: dict[str, float]
    forwards: int
    seconds: float
    available: int
    processes: int = 1

    @property
    def step_bytes(self) -> float:
        """Besides the weights."""
        return sum(self.memory.values()) - self.memory["weights"]

    @property
    def lines(self) -> tuple[str, str]:
        """For people."""
        size = lambda count: f"{count / 2**30:.2f} GiB" if count >= 2**29 else f"{count / 2**20:.0f} MiB"  # noqa: E731
        each = f" in each of {self.processes} processes" if self.processes > 1 else ""
        parts = ", ".join(f"{name} {size(count)}" for name, count in self.memory.items())
        return (
            f"memory: {parts}; {size(self.available)} are free",
            f"a step: up to {self.forwards} denoiser forwards{each}, about {self.seconds:.1f} s of them",
        )

    def require(self) -> None:
        """Refuse a step that does not fit."""
        if self.step_bytes > self.available:
            raise ValueError(
                f"a training step does not fit into memory ({self.lines[0]}): lower at_once, prompts or group, shorten the "
                "canvases, or choose a policy that keeps less (kind hidden keeps the denoiser's states)"
            )


@torch.no_grad()
def preflight(denoiser: Any, policy: OrderPolicy, canvas: Canvas, config: PolicyTraining) -> Needs:
    """From this process's canvases of the first step; one forward is timed, of each block where a denoiser has blocks."""
    device = torch.device(denoiser.device)
    policy.to(device)
    work = Work.of(canvas, denoiser.mask_id, replace(config, prompts=len(canvas.tokens)))
    some = canvas.rows(canvas.answer(denoiser.mask_id).sum(1).argsort(descending=True)[:TIMED]).to(device)
    at_once = Decoding(pace=lambda view, keys, quota: view.eligible)
    for _ in range(2):  # the first time, memory is allocated and kernels are chosen
        began = time.perf_counter()
        path = unmask(denoiser, policy, some, at_once, forced=True, observe=policy.observe)
        seconds = (time.perf_counter() - began) / path.denoiser_calls
    weights = list(denoiser.parameters())
    forwards = round(work.step_forwards)
    return Needs(
        memory={
            "weights": float(sum(p.nbytes for p in weights)),
            **step_memory(denoiser.config, policy.config, work, weights[0].element_size()),
        },
        forwards=forwards,
        seconds=forwards * seconds,
        available=_available(device),
    )


def _available(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
