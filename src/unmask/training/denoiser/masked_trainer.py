"""Masked training of a denoiser: on random masks (pre-training), or on given ones (the second stage).

Appendix "Training": ``L(θ) = −E_{x∼π, M∼q} Σ_{i∈M} log p_θ^i(x_i | x^M)``. The pattern ``M`` hides each position of the answer with
probability ``t``, one ``t ∼ U(0, 1)`` per row; a prompt or a puzzle's clues are never hidden.

Where we depart from the appendix: the loss is a mean over hidden positions, not a sum, so that its scale does not depend on
``t``; ``weight="elbo"`` weighs each row by E[1/t] given how many it hides instead, which makes the loss an upper bound of
−log p(x), per position of the answer.

Every batch is a function of the seed and the step: a killed run resumes from its last checkpoint and draws the same ones. Several
processes share the rows of a batch and add up their gradients.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from unmask.decoding.draws import counter_uniform
from unmask.decoding.protocols import Canvas
from unmask.denoisers.masked_lm import MaskedLM
from unmask.denoisers.transformer import Transformer
from unmask.runs.config import BelowOne, Count, NonNegative, Positive, Seed, config
from unmask.runs.optimizer import dump_optimizer, load_optimizer
from unmask.runs.processes import ProcessGroup
from unmask.runs.run import Run

Tunable = Transformer | MaskedLM
Source = Callable[[int, int], Canvas]
"""``source(step, batch)`` gives the canvases of a step, a function of the seed and the step."""


@dataclass(frozen=True)
class Masks:
    """The positions that a step hides, and those of them that have a loss (``scored``). ``weight`` is per row.

    A weighted loss is divided by the number of positions of all ``answers``; by default, everything that the canvases hide.
    """

    hidden: Bool[Tensor, "B L"]
    scored: Bool[Tensor, "B L"]
    weight: Float[Tensor, "B 1"] | None = None
    answers: int | None = None

    def to(self, device: torch.device) -> Masks:
        weight = None if self.weight is None else self.weight.to(device)
        return Masks(self.hidden.to(device), self.scored.to(device), weight, self.answers)

    def part(self, rows: Int[Tensor, "b"], canvas: Canvas, mask_id: int) -> Masks:
        """Some rows, whose loss is their part of the loss of all."""
        answers = self.answers or int((self.scored if self.weight is None else canvas.tokens == mask_id).sum())
        weight = torch.ones(len(self.scored), 1) if self.weight is None else self.weight
        return Masks(self.hidden[rows], self.scored[rows], weight[rows], answers)


Masking = Callable[[Canvas, int], Masks]
"""``masking(canvas, step)`` draws the masks of a step, a function of the seed and the step."""


@config
class MaskedTraining:
    """Options of the optimisation.

    Attributes:
        samples: Canvases to train on.
        batch: Canvases per step.
        lr: The learning rate, after the warm-up; it falls along a cosine to zero.
        warmup: The share of the training in which the learning rate rises.
        weight_decay: Of AdamW.
        clip: The largest norm of a gradient.
        ema: Decay of the averaged weights (0: no average).
        weight: hidden is a mean over hidden positions; elbo weighs each row by E[1/t], which bounds −log p(x).
        seed: Seeds weights, data and masks.
        log_every: Steps between lines of the log.
        save_every: Steps between checkpoints.
    """

    samples: int = 20_000
    batch: Count = 64
    lr: Positive = 2e-3
    warmup: BelowOne = 0.02
    weight_decay: NonNegative = 0.01
    clip: Annotated[float, Field(gt=0)] = 1.0
    ema: BelowOne = 0.0
    weight: Literal["hidden", "elbo"] = "hidden"
    seed: Seed = 0
    log_every: Count = 20
    save_every: Count = 200

    def __post_init__(self) -> None:
        if self.samples < self.batch:
            raise ValueError(f"samples ({self.samples}) must be at least one batch ({self.batch})")

    @property
    def steps(self) -> int:
        return self.samples // self.batch

    def lr_at(self, step: int) -> float:
        """Linear warm-up, then a cosine to zero."""
        warmup = max(1, round(self.warmup * self.steps))
        if step < warmup:
            return self.lr * (step + 1) / warmup
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self.steps - warmup)))


def random_pattern(
    canvas: Canvas, mask_id: int, seed: int, step: int
) -> tuple[Bool[Tensor, "B L"], Float[Tensor, "B 1"]]:
    """Hide each position of the answer with probability t, one t per row, at least one position in each row."""
    answer = canvas.tokens == mask_id
    row = torch.arange(len(answer))[:, None]
    t = counter_uniform(seed, step, 0, row)
    draw = counter_uniform(seed, step, 1, row, torch.arange(answer.shape[1])[None])
    draw = draw.masked_fill(~answer, 2.0)
    least = torch.zeros_like(answer).scatter(1, draw.argmin(1, keepdim=True), True)
    return ((draw < t) | least) & answer, t


def elbo_weight(answer: Bool[Tensor, "B L"], pattern: Bool[Tensor, "B L"]) -> Float[Tensor, "B 1"]:
    """E[1/t | k] = (n + 1)/k, for k hidden of n positions.

    k is uniform over 0…n and a pattern that would hide nothing hides one position, so k = 1 comes up twice and counts half.
    Dividing by t itself would give those rows, whose t is near 0, weights without a finite mean.
    """
    n, k = answer.sum(1, keepdim=True), pattern.sum(1, keepdim=True)
    return (n + 1) / k.clamp(min=2)


def random_masks(mask_id: int, seed: int, weight: str) -> Masking:
    """Pre-training's masks: random patterns, every hidden position scored."""

    def draw(canvas: Canvas, step: int) -> Masks:
        pattern, _ = random_pattern(canvas, mask_id, seed, step)
        return Masks(pattern, pattern, elbo_weight(canvas.tokens == mask_id, pattern) if weight == "elbo" else None)

    return draw


def masked_loss(
    denoiser: Tunable, canvas: Canvas, masks: Masks, forbidden: tuple[int, ...] = ()
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy of the scored tokens in float32, and the share of them that are the denoiser's best.

    ``forbidden`` tokens have probability 0, as in decoding; in pre-training the denoiser learns that by itself.
    """
    if canvas.truth.device != denoiser.device:
        canvas, masks = canvas.to(denoiser.device), masks.to(denoiser.device)
    tokens = canvas.truth.masked_fill(masks.hidden, denoiser.mask_id)
    logits = denoiser.logits(denoiser.hidden(tokens, canvas.attention)[masks.scored]).float()
    if forbidden:
        logits = logits.index_fill(1, torch.tensor(forbidden, device=logits.device), -torch.inf)
    target = canvas.truth[masks.scored]
    loss = F.cross_entropy(logits, target, reduction="none")
    if masks.weight is not None:
        per_row = masks.weight.expand_as(masks.scored)[masks.scored]
        total = (loss * per_row).sum() / (masks.answers or (canvas.tokens == denoiser.mask_id).sum())
    else:
        total = loss.mean()
    return total, (logits.argmax(-1) == target).float().mean()


def share_loss(
    denoiser: Tunable, canvas: Canvas, masks: Masks, forbidden: tuple[int, ...], processes: ProcessGroup
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """This process's part of :func:`masked_loss`: over all processes the parts add up to it."""
    rows = processes.split(len(canvas.tokens))
    part = masks.part(rows, canvas, denoiser.mask_id)
    share = int(part.scored.sum()) / int(masks.scored.sum())
    if not share:
        return torch.zeros((), device=denoiser.device, requires_grad=True), torch.zeros((), device=denoiser.device)
    loss, hit = masked_loss(denoiser, canvas.rows(rows), part, forbidden)
    return loss, hit * share


def train_masked(
    denoiser: Tunable,
    source: Source,
    config: MaskedTraining,
    run: Run | None = None,
    masking: Masking | None = None,
    forbidden: tuple[int, ...] = (),
    processes: ProcessGroup | None = None,
) -> Iterator[dict[str, Any]]:
    """Train in place the weights that require gradients, yielding a record every ``log_every`` steps.

    With a run, log, checkpoint and resume. ``masking`` draws the masks; by default, at random. ``forbidden`` tokens have
    probability 0 in the loss. Of several ``processes`` each calls this; the first one writes.
    """
    masking = masking or random_masks(denoiser.mask_id, config.seed, config.weight)
    trainer = _Trainer(denoiser, config, run, processes)
    start, began = trainer.restore(), time.perf_counter()
    with ThreadPoolExecutor(1) as ahead, trainer.save_when_interrupted():
        upcoming = ahead.submit(source, start, config.batch)
        for step in range(start, config.steps):
            canvas, done = upcoming.result(), step + 1
            if done < config.steps:
                upcoming = ahead.submit(source, done, config.batch)
            masks = masking(canvas, step)
            if processes is None:
                trainer.take_step(step, *masked_loss(denoiser, canvas, masks, forbidden))
            else:
                trainer.take_step(step, *share_loss(denoiser, canvas, masks, forbidden, processes))
            record = None
            if done % config.log_every == 0 or done == config.steps:
                rate = (done - start) * config.batch / (time.perf_counter() - began)
                record = trainer.log(step, rate)
            # After its own record, which a run killed in between would lose; losses of the next record are saved with it.
            if done % config.save_every == 0 or done == config.steps:
                trainer.save(done)
            if record is not None:
                yield record
    trainer.use_average()


class _Trainer:
    """The weights that are trained, their optimizer and average, and the losses since the last record."""

    def __init__(
        self, denoiser: Tunable, config: MaskedTraining, run: Run | None, processes: ProcessGroup | None
    ) -> None:
        self.denoiser, self.config, self.run, self.processes = denoiser, config, run, processes
        self.owned = run if processes is None or processes.is_first else None
        self.trained = {name: p for name, p in denoiser.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.trained.values(), lr=config.lr, betas=(0.9, 0.99), weight_decay=config.weight_decay
        )
        self.average = {name: p.detach().clone() for name, p in self.trained.items()} if config.ema else {}
        self.losses: list[Tensor] = []
        self.hits: list[Tensor] = []
        self.done: int | None = None

    @contextmanager
    def save_when_interrupted(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM ends the training where it is; the steps before the present one are saved."""
        try:
            yield
        except KeyboardInterrupt:
            if self.done is not None:  # not in the middle of an update
                self.save(self.done)
            raise

    def take_step(self, step: int, loss: Float[Tensor, ""], hit: Float[Tensor, ""]) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        loss, hit = self._add_up(loss.detach(), hit)
        torch.nn.utils.clip_grad_norm_(self.trained.values(), self.config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr_at(step)
        self.done = None
        self.optimizer.step()
        with torch.no_grad():
            for name, tensor in self.average.items():
                tensor.lerp_(self.trained[name], 1 - min(self.config.ema, (step + 1) / (step + 10)))
        self.losses.append(loss.float())
        self.hits.append(hit)
        self.done = step + 1

    def _add_up(self, loss: Float[Tensor, ""], hit: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """The gradients of all processes in each of them, and the loss and the hits of all."""
        if self.processes is None:
            return loss, hit
        for p in self.trained.values():
            p.grad = self.processes.all_reduce(torch.zeros_like(p) if p.grad is None else p.grad)
        return self.processes.all_reduce(loss), self.processes.all_reduce(hit)

    def log(self, step: int, rate: float) -> dict[str, Any]:
        """The record of the steps since the last one."""
        record = {
            "step": step + 1,
            "samples": (step + 1) * self.config.batch,
            "loss": torch.stack(self.losses).mean().item(),
            "token_accuracy": torch.stack(self.hits).mean().item(),
            "lr": self.config.lr_at(step),
            "samples_per_second": rate,
        }
        if self.owned:
            self.owned.log(record)
        self.losses, self.hits = [], []
        return record

    @torch.no_grad()
    def use_average(self) -> None:
        for name, tensor in self.average.items():
            self.trained[name].copy_(tensor)

    def _tensors(self) -> dict[str, Tensor]:
        own = {f"model.{name}": p.detach() for name, p in self.trained.items()}
        return own | {f"average.{name}": tensor for name, tensor in self.average.items()}

    def save(self, step: int) -> None:
        if self.owned:
            tensors, state = dump_optimizer(self.optimizer)
            awaiting = [[x.item() for x in values] for values in (self.losses, self.hits)]
            self.owned.save(step, tensors | self._tensors(), {"optimizer": state, "awaiting": awaiting})

    def restore(self) -> int:
        """The step to continue from."""
        if self.run is None:
            return 0
        checkpoint = self.run.load_latest()
        if self.owned:
            self.owned.rewind(0 if checkpoint is None else checkpoint.step)  # step 0: measured before the first
        if checkpoint is None:
            return 0
        with checkpoint.restoring():
            for name, tensor in self._tensors().items():
                if name not in checkpoint.tensors:
                    raise KeyError(name.removeprefix("model."))
                tensor.copy_(checkpoint.tensors[name])
            load_optimizer(self.optimizer, checkpoint.tensors, checkpoint.state["optimizer"])
            stored = ([torch.tensor(x, device=self.denoiser.device) for x in xs] for xs in checkpoint.state["awaiting"])
            self.losses, self.hits = stored
        self.done = checkpoint.step
        return checkpoint.step
