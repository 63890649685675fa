"""What training a policy and decoding with it will cost, before either starts: forwards, FLOPs, memory, hours.

Time is FLOPs over a rate: a share of the device's peak, or that of a micro-run of the real modules (:func:`measure_rate`). The
counts of a step are in :mod:`~unmask.training.cost.preflight`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from unmask.decoding.protocols import Canvas, Denoiser
from unmask.denoisers.transformer import TransformerConfig
from unmask.schedulers.config import PolicyConfig
from unmask.schedulers.policy import OrderPolicy
from unmask.training.cost.flops import head_flops, parameters, policy_flops, trunk_flops
from unmask.training.cost.preflight import Work, step_memory
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.methods import build_posterior, choose_method
from unmask.training.policy.objectives import policy_loss
from unmask.training.policy.rollout import collect

DRAFT = 8
"""Canvases of a draft that is weighed."""
WORTH = 2.0
"""Times fewer sequential steps that drafts of this size take on the tasks where they were measured (docs/revising.md)."""
BACKWARD = 2
"""FLOPs of a backward pass per FLOP of its forward."""


@dataclass(frozen=True)
class Device:
    """``peak`` FLOP/s of dense bfloat16 products as the vendor states it, ``memory`` in bytes, ``bandwidth`` of it in bytes/s."""

    peak: float
    memory: float
    bandwidth: float


DEVICES = {
    "h200": Device(989e12, 141e9, 4.8e12),
    "h100": Device(989e12, 80e9, 3.35e12),
    "a100": Device(312e12, 80e9, 2.04e12),
    "l40s": Device(362e12, 48e9, 0.864e12),
    "rtx4090": Device(165e12, 24e9, 1.008e12),
}


@dataclass(frozen=True)
class Rate:
    """FLOP/s of one device in rollouts and in updates, and their source."""

    rollout: float
    update: float
    source: str


@dataclass(frozen=True)
class Plan:
    """Per training step unless the name says otherwise. ``memory`` in bytes on one device; ``seconds`` of all devices together."""

    parameters: int
    forwards: float
    rollout_flops: float
    update_flops: float
    total_forwards: float
    total_flops: float
    memory: dict[str, float]
    step_seconds: float
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
    notes, prompts = [], work.training.prompts
    if devices > prompts:
        notes.append(f"{devices} devices cannot share {prompts} prompts: planned on {prompts}")
        devices = prompts
    busiest = -(-prompts // devices)  # prompts of the slowest process
    part = replace(work, training=replace(work.training, prompts=busiest))
    rollout, update = rollout_flops(shape, policy, work), update_flops(shape, policy, work)
    one = decode_flops(shape, policy, work)
    step_seconds = busiest / prompts * (rollout / rate.rollout + update / rate.update)
    validation_seconds = work.validations * one / rate.rollout / devices
    memory = {
        "weights": float(parameters(shape) * bytes_per_weight),
        **step_memory(shape, policy, part, bytes_per_weight),
    }
    needed = sum(memory.values())
    if device is not None and needed > device.memory:
        notes.append(
            f"{needed / 1e9:.0f} GB do not fit a device of {device.memory / 1e9:.0f} GB: fewer prompts per device, smaller groups, "
            "or weights spread over several devices (docs/scaling.md)"
        )
    if device is not None:
        notes.append(weigh_drafts(batch_cost(shape, work.length, rate, device, bytes_per_weight)))
    forwards = work.step_forwards
    return Plan(
        parameters=parameters(shape),
        forwards=forwards,
        rollout_flops=rollout,
        update_flops=update,
        total_forwards=work.training.steps * forwards + work.validations * work.mean_turns,
        total_flops=work.training.steps * (rollout + update) + work.validations * one,
        memory=memory,
        step_seconds=step_seconds,
        hours=(work.training.steps * step_seconds + validation_seconds) / 3600,
        decode_flops=one,
        decode_seconds=one / rate.rollout,
        rate=rate,
        devices=devices,
        notes=tuple(notes),
    )


def batch_cost(
    shape: TransformerConfig, length: int, rate: Rate, device: Device, bytes_per_weight: int, canvases: int = DRAFT
) -> float:
    """The time of a forward of several canvases in forwards of one: products, or reading the weights once if that takes longer."""
    product = trunk_flops(shape, length) / rate.rollout
    reading = parameters(shape) * bytes_per_weight / device.bandwidth
    return max(canvases * product, reading) / max(product, reading)


def weigh_drafts(cost: float, canvases: int = DRAFT) -> str:
    """Whether drafts would pay for one problem at a time."""
    verdict = "they can pay" if cost < WORTH else "they do not pay"
    return (
        f"drafts of {canvases}, one problem at a time: a forward of {canvases} canvases takes {cost:.1f} times that of one, so "
        f"{verdict}: they must save more than {cost:.1f} times the steps (unmask bench drafts: about {WORTH:g})"
    )


def rollout_flops(shape: TransformerConfig, policy: PolicyConfig, work: Work) -> float:
    """Trunk, head and policy of one training step's rollouts."""
    training = work.training
    priced = work.forwards * work.orders * work.mean_priced + training.relative * training.prompts * work.mean_hidden
    head = priced * head_flops(shape, 1)
    scores = work.orders * work.mean_turns * policy_flops(policy, shape, work.length)
    return work.step_forwards * trunk_flops(shape, work.length) + head + scores


def update_flops(shape: TransformerConfig, policy: PolicyConfig, work: Work) -> float:
    """Forward and backward of the policy over every decision, ``mu`` times. The denoiser does not run."""
    decisions = work.orders * (work.mean_hidden - 1)
    return (
        work.training.mu * work.training.hardest * decisions * (1 + BACKWARD) * policy_flops(policy, shape, work.length)
    )


def decode_flops(shape: TransformerConfig, policy: PolicyConfig, work: Work) -> float:
    """One problem decoded by the policy."""
    per_turn = trunk_flops(shape, work.length) + policy_flops(policy, shape, work.length)
    return work.mean_turns * per_turn + work.mean_priced * head_flops(shape, 1)


def peak_rate(device: Device, utilisation: float) -> Rate:
    """A share of the vendor's peak."""
    if not 0 < utilisation <= 1:
        raise ValueError(f"utilisation must be in (0, 1], got {utilisation}")
    rate = device.peak * utilisation
    return Rate(rate, rate, f"{device.peak / 1e12:.0f} TFLOP/s × {utilisation:.0%}")


def implied_utilisation(found: Plan, seconds: float, device: Device, devices: int) -> float:
    """The share of the devices' peak at which a training step takes ``seconds``."""
    if seconds <= 0:
        raise ValueError(f"expected the seconds of a step, got {seconds}")
    return (found.rollout_flops + found.update_flops) / (seconds * devices * device.peak)


def measure_rate(
    denoiser: Denoiser,
    policy: OrderPolicy,
    canvas: Canvas,
    config: PolicyTraining,
    shape: TransformerConfig,
    clock: Callable[[], float] = time.perf_counter,
) -> Rate:
    """The rates of a real rollout and a real update on ``canvas``: the prompts of one step, since smaller batches are slower.

    The policy is not changed. It draws where a teacher would.
    """
    device = canvas.tokens.device

    def finish() -> float:
        if canvas.tokens.is_cuda:
            torch.cuda.synchronize(device)
        return clock()

    work = Work.of(canvas, denoiser.mask_id, replace(config, prompts=len(canvas.tokens), mu=1))
    seeds = torch.arange(len(canvas.tokens) * config.group, device=device)
    method = choose_method(config, policy, config.warm_start, posterior=build_posterior(config, device))
    collect(denoiser, method, canvas.rows(slice(0, 1)), seeds[: config.group])  # warm-up: memory, kernels, threads
    began, before = finish(), denoiser.forwarded
    rollout = collect(denoiser, method, canvas, seeds)
    collected = finish()
    forwards = denoiser.forwarded - before
    size = min(config.micro or config.states, config.states)
    for rows in torch.randperm(len(rollout), generator=torch.Generator().manual_seed(0)).split(size):
        loss, _ = policy_loss(method, rollout, rows.to(device))
        loss.backward()
    updated = finish()
    policy.zero_grad()
    # Equal states share a forward: the rate is of all states, so the plan assumes as much sharing as was measured.
    return Rate(
        rollout=rollout_flops(shape, policy.config, work) / (collected - began),
        update=update_flops(shape, policy.config, work) / (updated - collected),
        source=f"measured: {forwards} forwards, {len(rollout)} decisions",
    )
