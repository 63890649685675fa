"""What learning an order and decoding with it will cost, before either starts: forwards, FLOPs, memory, hours.

Symbols: ``P`` prompts and ``G`` orders each per training step, ``L`` positions of a canvas, ``K`` of them hidden, ``T`` denoiser
steps per order (``K``, or the budget), ``V`` vocabulary. A training step needs

    forwards   P·(1 + G·(T − 1)): the first state of a group is one forward (at most: other states may be equal, too)
    positions  P·G·K·(T + 1)/2 with logits: a policy prices everything that is hidden
    relative   P·K more of both, where rewards are relative to what a position costs when all others are known
    decisions  P·G·(K − 1), each a state that the update reads ``mu`` times, forward and backward (three forwards' arithmetic)

A multiplication and an addition are two FLOPs; what is no matrix product is not counted, as in ``torch.utils.flop_counter``. Time
is FLOPs over a rate: a device's peak times a utilisation, or what a micro-run of the real modules reached (:func:`measure`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from unmask.decoding.pricing import AT_ONCE, BYTES_PER_LOGIT
from unmask.decoding.protocols import Canvas, Denoiser
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.transformer import TransformerConfig
from unmask.schedulers.policy import OrderPolicy, PolicyConfig
from unmask.tasks.sources import problems
from unmask.tasks.sudoku.source import SudokuData
from unmask.training.cost.flops import head_flops, parameters, policy_flops, trunk_flops
from unmask.training.cost.preflight import COPIES, JOINED
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.objectives import Clipped, policy_loss
from unmask.training.policy.rollout import collect
from unmask.training.policy.run import PolicyRun, build_policy

BACKWARD = 2
"""FLOPs of a backward pass per FLOP of its forward."""
SAMPLE = 256
"""Problems looked at to learn how much is hidden in them."""
STATE_BYTES = 38
"""Kept of a position of a state: tokens, best (8 each), eligible, revealed (1 each), five prices (4 each)."""
SEEN_BYTES = 14
"""Kept of a position for the policy, whatever its kind: eligible, hidden (1 each), token (8), confidence (4)."""


@dataclass(frozen=True)
class Device:
    """``peak`` FLOP/s of dense bfloat16 products as the vendor states it, ``memory`` in bytes."""

    peak: float
    memory: float


DEVICES = {
    "h200": Device(989e12, 141e9),
    "h100": Device(989e12, 80e9),
    "a100": Device(312e12, 80e9),
    "l40s": Device(362e12, 48e9),
    "rtx4090": Device(165e12, 24e9),
}


@dataclass(frozen=True)
class Work:
    """What is to be done. ``hidden``: the K of typical problems. ``length`` L. ``budget``: T, or None for one reveal a step.

    ``validations`` problems are decoded in all, during training. ``forwards`` of the denoiser per state: 1 here, 2 where states are
    rolled out first and priced by a second pass, as in the paper. ``at_once`` canvases are decoded together (None: all).
    """

    length: int
    hidden: tuple[int, ...]
    steps: int = 200
    prompts: int = 64
    group: int = 1
    mu: int = 1
    budget: int | None = None
    validations: int = 0
    forwards: int = 1
    at_once: int | None = None
    relative: bool = False

    def __post_init__(self) -> None:
        for name in ("length", "steps", "prompts", "group", "mu", "forwards"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.hidden or min(self.hidden) < 1 or max(self.hidden) > self.length:
            raise ValueError(f"an answer must hide 1 to {self.length} positions (the length), got {self.hidden[:3]}")
        if self.budget is not None and self.budget < 1:
            raise ValueError(f"budget must be at least 1, got {self.budget}")

    def turns(self, hidden: int) -> int:
        """T of a problem."""
        return hidden if self.budget is None else min(self.budget, hidden)

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


@dataclass(frozen=True)
class Rate:
    """FLOP/s of one device in rollouts and in updates, and where they come from."""

    rollout: float
    update: float
    source: str


@dataclass(frozen=True)
class Plan:
    """Per training step unless it says otherwise. ``memory`` in bytes on one device; ``seconds`` of all devices together."""

    parameters: int
    forwards: float
    rollout_flops: float
    update_flops: float
    validation_flops: float
    total_forwards: float
    total_flops: float
    memory: dict[str, float]
    step_seconds: float
    validation_seconds: float
    hours: float
    decode_flops: float
    decode_seconds: float
    rate: Rate
    devices: int
    notes: tuple[str, ...] = ()


def plan(
    shape: TransformerConfig,
    policy: PolicyConfig,
    work: Work,
    rate: Rate,
    devices: int = 1,
    device: Device | None = None,
    bytes_per_weight: int = 2,
) -> Plan:
    """The cost of ``work``. Each of the ``devices`` holds the whole denoiser and takes its part of the prompts."""
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
    notes = []
    if devices > work.prompts:
        notes.append(f"{devices} devices cannot share {work.prompts} prompts: planned on {work.prompts}")
        devices = work.prompts
    busiest = -(-work.prompts // devices)  # prompts of the process that all wait for
    rollout, update = rollout_flops(shape, policy, work), update_flops(shape, policy, work)
    one = decode_flops(shape, policy, work)
    step_seconds = busiest / work.prompts * (rollout / rate.rollout + update / rate.update)
    validation_seconds = work.validations * one / rate.rollout / devices
    memory = memory_bytes(shape, policy, replace(work, prompts=busiest), bytes_per_weight)
    needed = sum(memory.values())
    if device is not None and needed > device.memory:
        notes.append(
            f"{needed / 1e9:.0f} GB do not fit a device of {device.memory / 1e9:.0f} GB: fewer prompts per device, smaller groups, "
            "or weights spread over several devices (docs/scaling.md)"
        )
    forwards = forwards_per_step(work)
    return Plan(
        parameters=parameters(shape),
        forwards=forwards,
        rollout_flops=rollout,
        update_flops=update,
        validation_flops=work.validations * one,
        total_forwards=work.steps * forwards + work.validations * work.mean_turns,
        total_flops=work.steps * (rollout + update) + work.validations * one,
        memory=memory,
        step_seconds=step_seconds,
        validation_seconds=validation_seconds,
        hours=(work.steps * step_seconds + validation_seconds) / 3600,
        decode_flops=one,
        decode_seconds=one / rate.rollout,
        rate=rate,
        devices=devices,
        notes=tuple(notes),
    )


def forwards_per_step(work: Work) -> float:
    """Canvases through the denoiser in one training step, if no two states but the first ones of a group are equal."""
    rollouts = work.forwards * work.prompts * (1 + work.group * (work.mean_turns - 1))
    return rollouts + work.relative * work.prompts * work.mean_hidden


def rollout_flops(shape: TransformerConfig, policy: PolicyConfig, work: Work) -> float:
    """Trunk, head and policy of one training step's rollouts."""
    orders = work.prompts * work.group
    priced = work.forwards * orders * work.mean_priced + work.relative * work.prompts * work.mean_hidden
    head = priced * head_flops(shape, 1)
    scores = orders * work.mean_turns * policy_flops(policy, shape, work.length)
    return forwards_per_step(work) * trunk_flops(shape, work.length) + head + scores


def update_flops(shape: TransformerConfig, policy: PolicyConfig, work: Work) -> float:
    """Forward and backward of the policy over every decision, ``mu`` times. The denoiser does not run."""
    decisions = work.prompts * work.group * (work.mean_hidden - 1)
    return work.mu * decisions * (1 + BACKWARD) * policy_flops(policy, shape, work.length)


def decode_flops(shape: TransformerConfig, policy: PolicyConfig, work: Work) -> float:
    """One problem decoded by the policy."""
    per_turn = trunk_flops(shape, work.length) + policy_flops(policy, shape, work.length)
    return work.mean_turns * per_turn + work.mean_priced * head_flops(shape, 1)


def memory_bytes(
    shape: TransformerConfig, policy: PolicyConfig, work: Work, bytes_per_weight: int = 2
) -> dict[str, float]:
    """What stands in a device's memory at the fullest moment of a training step, by what it is."""
    orders, length = work.prompts * work.group, work.length
    rows = min(orders, max(work.group, work.at_once or orders))
    inner = shape.n_heads * (shape.head_width or shape.width // shape.n_heads)
    widest = 2 * shape.width + max(
        4 * inner, 3 * shape.ffn
    )  # the stream and its norm, then attention's or the FFN's tensors
    vocabulary = shape.head_rows or shape.vocab_size
    seen = {"hidden": 4 * shape.width, "grid": 4 * (vocabulary - 1) + 8}.get(
        policy.kind, 4 * (len(policy.features) + 1)
    )
    states = orders * work.mean_turns * length * (STATE_BYTES + SEEN_BYTES + seen)
    priced = rows * max(work.hidden) * vocabulary
    return {
        "weights": float(parameters(shape) * bytes_per_weight),
        "activations": float(rows * length * widest * bytes_per_weight),
        "logits": float(priced * BYTES_PER_LOGIT + 4 * COPIES * min(AT_ONCE, priced)),
        "states": JOINED * states,
    }


def peak_rate(device: Device, utilisation: float) -> Rate:
    """A share of the vendor's peak."""
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must be in (0, 1], got {utilisation}")
    rate = device.peak * utilisation
    return Rate(rate, rate, f"{device.peak / 1e12:.0f} TFLOP/s × {utilisation:.0%}")


def utilisation(found: Plan, seconds: float, device: Device, devices: int) -> float:
    """The share of the devices' peak that a training step of so many seconds means."""
    if seconds <= 0:
        raise ValueError(f"expected the seconds of a step, got {seconds}")
    return (found.rollout_flops + found.update_flops) / (seconds * devices * device.peak)


def measure(
    denoiser: Denoiser,
    policy: OrderPolicy,
    canvas: Canvas,
    config: PolicyTraining,
    shape: TransformerConfig,
    clock: Callable[[], float] = time.perf_counter,
) -> Rate:
    """The rates of a real rollout and a real update on ``canvas``: the prompts of one step, since smaller batches are slower.

    The policy is not changed.
    """

    def finished() -> float:
        if canvas.tokens.is_cuda:
            torch.cuda.synchronize(canvas.tokens.device)
        return clock()

    hidden = tuple(int(k) for k in canvas.answer(denoiser.mask_id).sum(1).tolist())
    work = Work(
        canvas.tokens.shape[1],
        hidden,
        prompts=len(hidden),
        group=config.group,
        budget=config.decoding.steps,
        relative=config.relative,
    )
    seeds = torch.arange(len(hidden) * config.group, device=canvas.tokens.device)
    collect(denoiser, policy, canvas.rows(slice(0, 1)), config, seeds[: config.group])  # warm: memory, kernels, threads
    began, before = finished(), denoiser.forwarded
    rollout = collect(denoiser, policy, canvas, config, seeds)
    rolled = finished()
    forwards = denoiser.forwarded - before
    size = min(config.micro or config.states, config.states)
    parts = torch.randperm(len(rollout), generator=torch.Generator().manual_seed(0)).split(size)
    for rows in parts:
        loss, _ = policy_loss(policy, rollout, rows.to(canvas.tokens.device), config, Clipped(config.epsilon))
        loss.backward()
    updated = finished()
    policy.zero_grad()
    # Equal states are one forward: the rate is of what was asked for, so that the same sharing is expected of the run.
    asked = rollout_flops(shape, policy.config, work)
    return Rate(
        rollout=asked / (rolled - began),
        update=update_flops(shape, policy.config, work) / (updated - rolled),
        source=f"measured: {forwards} forwards, {len(rollout)} decisions",
    )


def sample_of(config: PolicyRun, count: int) -> Canvas:
    """Some of a training's own problems. Boards are generated, few of them sooner than all; text needs its denoiser's tokenizer."""
    if isinstance(config.data, SudokuData):
        return replace(config.data, puzzles=min(config.data.puzzles, count))(0, count)
    return problems(config.data, load_denoiser(config.denoiser), config.denoiser)(0, count)


def work_of(config: PolicyRun, shape: TransformerConfig) -> Work:
    """The work of a training preset, its answers' lengths from a sample of its own problems."""
    training, canvas = config.training, sample_of(config, SAMPLE)
    hidden = tuple(int(k) for k in canvas.answer(shape.mask_id).sum(1).tolist())
    return Work(
        length=canvas.tokens.shape[1],
        hidden=hidden,
        steps=training.steps,
        prompts=training.prompts,
        group=training.group,
        mu=training.mu,
        budget=training.decoding.steps,
        validations=training.validate * validations(training),
        at_once=training.at_once,
        relative=training.relative,
    )


def validations(training: PolicyTraining) -> int:
    """How many times a training decodes its held-out problems: before the first step, every so many, and at the end."""
    return 1 + training.steps // training.validate_every + (training.steps % training.validate_every > 0)


def policy_of(config: PolicyRun, denoiser: Any) -> OrderPolicy:
    """The policy that a training would begin with."""
    return build_policy(config.policy, denoiser, config.denoiser)
