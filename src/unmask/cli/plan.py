"""``unmask plan``: what a training and a decoding will cost, before either starts."""

from __future__ import annotations

import json as json_text
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from unmask.cli.shell import console, require_writable
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.runs.atomic import atomic_write
from unmask.runs.jsonable import plain
from unmask.runs.names import did_you_mean
from unmask.runs.presets import load_preset
from unmask.training.cost.flops import TEXT_POLICY, shape_of
from unmask.training.cost.plan import DEVICES, Plan, implied_utilisation, measure_rate, peak_rate, plan
from unmask.training.cost.preflight import Work
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, build_policy, sample_problems

SAMPLE = 256
"""Problems sampled to estimate the number of hidden positions."""


def plan_command(
    model: str = "llada-8b",
    preset: str | None = None,
    length: int = 512,
    answer: int | None = None,
    prompts: int = 3,
    group: int = 6,
    steps: int | None = None,
    budget: int | None = None,
    devices: int = 1,
    device: str = "h200",
    utilisation: float = 0.4,
    measure: bool = False,
    recompute: bool = False,
    observed: float | None = None,
    json: Path | None = None,
) -> None:
    """Say what a training or a decoding will cost. Forwards, FLOPs, memory and hours; nothing is trained.

    $ unmask plan --model llada-8b --length 512 --prompts 8 --group 6 --devices 8
    $ unmask plan --preset sas-sudoku-9x9-imperfect --measure
    $ unmask plan --model llada-8b --prompts 3 --group 6 --devices 4 --recompute --observed 192

    Args:
        model: A shape (llada-8b, dream-7b, smdm-1b), a shipped denoiser, a folder, or its config.json. No weight is read.
        preset: A training preset instead: its denoiser, problems and options count. Then only --steps and the device apply.
        length: Positions of a canvas, prompt and answer together.
        answer: Hidden positions of a canvas; without it, all of them.
        prompts: Prompts per training step.
        group: Orders per prompt.
        steps: Training steps (200, or the preset's).
        budget: Denoiser steps per answer, several reveals in each; without it, one reveal a step.
        devices: How many; each holds the whole denoiser.
        device: Of which kind: h200, h100, a100, l40s, rtx4090.
        utilisation: The share of the device's peak that forwards reach.
        measure: Time one real step here instead (with --preset), on the CPU, and plan for this machine.
        recompute: Price states by a second pass, as the paper does, instead of with the rollout's own forwards.
        observed: Seconds that a training step took somewhere: shows the utilisation they imply.
        json: Also write everything to this file.
    """
    if device not in DEVICES:
        raise ValueError(f"no device {device!r}: expected one of {', '.join(DEVICES)}{did_you_mean(device, DEVICES)}")
    if measure and preset is None:
        raise ValueError("--measure runs a training's own modules: name the training with --preset")
    if json is not None:
        require_writable(json)
    if preset is None:
        shape, policy, name = shape_of(model), TEXT_POLICY, model
        hidden = length if answer is None else answer
        decoding = Decoding(steps=budget)
        training = PolicyTraining(steps=steps or 200, prompts=prompts, group=group, decoding=decoding)
        work = Work(length, (hidden,), training)
        rate = peak_rate(DEVICES[device], utilisation)
    else:
        config = load_preset(preset, PolicyRun, "train")
        if steps is not None:
            config = replace(config, training=replace(config.training, steps=steps))
        shape, policy, name = shape_of(config.denoiser), config.policy, preset
        sample = sample_problems(config, SAMPLE)
        work = Work.of(sample, shape.mask_id, config.training)
        rate = peak_rate(DEVICES[device], utilisation)
        if measure:
            denoiser = load_denoiser(config.denoiser)
            order_policy = build_policy(config.policy, denoiser, config.denoiser)
            step = sample_problems(config, config.training.prompts)
            rate = measure_rate(denoiser, order_policy, step, config.training, shape)
    work = replace(work, forwards=2 if recompute else 1)
    found = plan(shape, policy, work, rate, devices, None if measure else DEVICES[device], 4 if measure else 2)
    console.print(_table(found, work, name))
    for note in found.notes:
        console.print(f"note: {note}")
    implied = None
    if observed is not None:
        implied = implied_utilisation(found, observed, DEVICES[device], devices)
        console.print(
            f"a step of {observed:g} s on {devices} × {device} means {implied:.1%} of their peak; "
            f"at {utilisation:.0%} it would take {observed * implied / utilisation:.0f} s"
        )
    if json is not None:
        content = {"command": shlex.join(["unmask", *sys.argv[1:]]), "work": plain(work), **plain(found)}
        content |= {} if implied is None else {"implied_utilisation": implied}
        atomic_write(json, (json_text.dumps(content, indent=1) + "\n").encode())


def _table(found: Plan, work: Work, name: str) -> Table:
    training = work.training
    scale = f"{training.steps} steps of {training.prompts} prompts × {training.group} orders"
    table = Table(title=f"{name}: {scale}, canvases of {work.length}")
    for column in ("", "a training step", "the training", "decoding one problem"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("denoiser forwards", _count(found.forwards), _count(found.total_forwards), _count(work.mean_turns))
    step = found.rollout_flops + found.update_flops
    table.add_row("FLOPs", f"{step:.3g}", f"{found.total_flops:.3g}", f"{found.decode_flops:.3g}")
    table.add_row("of these the update", f"{found.update_flops / step:.1%}", "", "")
    table.add_row("time", _time(found.step_seconds), _time(3600 * found.hours), _time(found.decode_seconds))
    memory = ", ".join(f"{part} {size / 1e9:.2g}" for part, size in found.memory.items())
    table.add_row("memory of a device, GB", f"{sum(found.memory.values()) / 1e9:.2g}", "", "")
    table.caption = f"{found.parameters:,} weights; {found.devices} devices; {found.rate.source}; memory: {memory}"
    return table


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _time(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"
