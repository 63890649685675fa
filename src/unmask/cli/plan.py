"""``unmask plan``: what a training and a decoding will cost, before either starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table

from unmask.cli.shell import console, quote_command, require_writable, write_json
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.runs.jsonable import to_jsonable
from unmask.runs.names import did_you_mean
from unmask.runs.presets import load_preset
from unmask.schedulers.policy import build_policy
from unmask.training.cost.flops import TEXT_POLICY, shape_of
from unmask.training.cost.plan import DEVICES, implied_utilisation, measure_rate, peak_rate, plan
from unmask.training.cost.plan import Plan as Cost
from unmask.training.cost.preflight import Work
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.run import PolicyRun, sample_problems

SAMPLE = 256
"""Problems sampled to estimate the number of hidden positions."""


@dataclass(frozen=True)
class Plan:
    """Estimate what a training or a decoding will cost. Forwards, FLOPs, memory and hours; nothing is trained.

    $ unmask plan --model llada-8b --length 512 --prompts 8 --group 6 --devices 8
    $ unmask plan --preset sas-sudoku-9x9-imperfect --measure
    $ unmask plan --model llada-8b --prompts 3 --group 6 --devices 4 --recompute --observed 192
    """

    model: str = "llada-8b"
    """A shape (llada-8b, dream-7b, smdm-1b), a shipped denoiser, a folder, or its config.json. No weight is read."""
    preset: str | None = None
    """A training preset instead: its denoiser, problems and options count. Then only --steps and the device apply."""
    length: int = 512  # Positions of a canvas, prompt and answer together.
    answer: int | None = None  # Hidden positions of a canvas; without it, all of them.
    prompts: int = 3  # Prompts per training step.
    group: int = 6  # Orders per prompt.
    steps: int | None = None  # Training steps (200, or the preset's).
    budget: int | None = None  # Denoiser steps per answer, several reveals in each; without it, one reveal a step.
    devices: int = 1  # How many; each holds the whole denoiser.
    device: str = "h200"  # Of which kind: h200, h100, a100, l40s, rtx4090.
    utilisation: float = 0.4  # The share of the device's peak that forwards reach.
    measure: bool = False  # Time one real step here instead (with --preset), on the CPU, and plan for this machine.
    recompute: bool = False
    """Price states by a second pass, as the paper does, instead of with the rollout's own forwards."""
    observed: float | None = None  # Seconds that a training step took elsewhere: shows the utilisation they imply.
    json: Path | None = None  # Also write everything to this file.

    def run(self) -> None:
        if self.device not in DEVICES:
            near = did_you_mean(self.device, DEVICES)
            raise ValueError(f"no device {self.device!r}: expected one of {', '.join(DEVICES)}{near}")
        if self.measure and self.preset is None:
            raise ValueError("--measure runs a training's own modules: name the training with --preset")
        if self.json is not None:
            require_writable(self.json)
        found, work = self._plan() if self.preset is None else self._plan_preset(self.preset)
        console.print(_table(found, work, self.preset or self.model))
        for note in found.notes:
            console.print(f"note: {note}")
        content = {"command": quote_command(), "work": to_jsonable(work), **to_jsonable(found)}
        if self.observed is not None:
            implied = implied_utilisation(found, self.observed, DEVICES[self.device], self.devices)
            content["implied_utilisation"] = implied
            console.print(
                f"a step of {self.observed:g} s on {self.devices} × {self.device} means {implied:.1%} of their peak; "
                f"at {self.utilisation:.0%} it would take {self.observed * implied / self.utilisation:.0f} s"
            )
        if self.json is not None:
            write_json(self.json, content)

    def _plan(self) -> tuple[Cost, Work]:
        hidden = self.length if self.answer is None else self.answer
        decoding = Decoding(steps=self.budget)
        training = PolicyTraining(steps=self.steps or 200, prompts=self.prompts, group=self.group, decoding=decoding)
        work = Work(self.length, (hidden,), training, forwards=self._forwards)
        rate = peak_rate(DEVICES[self.device], self.utilisation)
        return plan(shape_of(self.model), TEXT_POLICY, work, rate, self.devices, DEVICES[self.device], 2), work

    def _plan_preset(self, preset: str) -> tuple[Cost, Work]:
        config = load_preset(preset, PolicyRun, "train")
        if self.steps is not None:
            config = replace(config, training=replace(config.training, steps=self.steps))
        shape = shape_of(config.denoiser)
        work = Work.of(sample_problems(config, SAMPLE), shape.mask_id, config.training)
        work = replace(work, forwards=self._forwards)
        if self.measure:
            denoiser = load_denoiser(config.denoiser)
            policy = build_policy(config.policy, denoiser, config.denoiser)
            step = sample_problems(config, config.training.prompts)
            rate, device, width = measure_rate(denoiser, policy, step, config.training, shape), None, 4
        else:
            rate, device, width = peak_rate(DEVICES[self.device], self.utilisation), DEVICES[self.device], 2
        return plan(shape, config.policy, work, rate, self.devices, device, width), work

    @property
    def _forwards(self) -> int:
        return 2 if self.recompute else 1


def _table(found: Cost, work: Work, name: str) -> Table:
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
    devices = "1 device" if found.devices == 1 else f"{found.devices} devices"
    table.caption = f"{found.parameters:,} weights; {devices}; {found.rate.source}; memory: {memory}"
    return table


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _time(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.3g} s"
