"""Masked training of a denoiser: on random masks (pre-training), or on masks that somebody else draws (the second stage).

Appendix "Training": ``L(θ) = −E_{x∼π, M∼q} Σ_{i∈M} log p_θ^i(x_i | x^M)``. The pattern ``M`` hides each position of the answer with
probability ``t``, one ``t ∼ U(0, 1)`` per row; what the task gives (a prompt, a puzzle's clues) is never hidden.

Where we depart from the appendix: the loss is a mean over hidden positions, not a sum, so that its scale does not depend on
``t``; ``weight="elbo"`` weighs each row by E[1/t] given how many it hides instead, which makes the loss an upper bound of
−log p(x), per position of the answer.

Every batch is a function of the seed and the step alone. A run that was killed resumes from its last checkpoint and draws what it
would have drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from unmask.decoding.draws import counter_uniform
from unmask.decoding.protocols import Canvas
from unmask.denoisers.masked_lm import MaskedLM
from unmask.denoisers.transformer import Transformer
from unmask.runs.optimizer import flatten_optimizer, restore_optimizer
from unmask.runs.run import Run

Tunable = Transformer | MaskedLM
Source = Callable[[int, int], Canvas]
"""``source(step, batch)`` gives that step's canvases, always the same ones."""


@dataclass(frozen=True)
class Masks:
    """What a step hides of its canvases, and at which of the hidden positions it asks for the truth. ``weight`` is per row.

    A weighted loss is divided by the positions of all ``answers``: everything that the canvases hide, unless this says otherwise.
    """

    hidden: Bool[Tensor, "B L"]
    scored: Bool[Tensor, "B L"]
    weight: Float[Tensor, "B 1"] | None = None
    answers: int | None = None

    def to(self, device: torch.device) -> Masks:
        weight = None if self.weight is None else self.weight.to(device)
        return Masks(self.hidden.to(device), self.scored.to(device), weight, self.answers)


Masking = Callable[[Canvas, int], Masks]
"""``masking(canvas, step)`` draws the masks of a step, always the same ones."""


@dataclass(frozen=True)
class MaskedTraining:
    """How long and how fast. ``samples`` are canvases seen; ``ema`` is the decay of the averaged weights (0: keep the last)."""

    samples: int = 20_000
    batch: int = 64
    lr: float = 2e-3
    warmup: float = 0.02
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.0
    weight: str = "hidden"
    seed: int = 0
    log_every: int = 20
    save_every: int = 200

    def __post_init__(self) -> None:
        if self.weight not in ("hidden", "elbo"):
            raise ValueError(f"weight must be 'hidden' or 'elbo', got {self.weight!r}")
        for name in ("batch", "log_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {self.seed}")
        if not 0 < self.lr < math.inf or not self.clip > 0:
            raise ValueError(f"lr and clip must be positive numbers, got lr = {self.lr}, clip = {self.clip}")
        if not (0 <= self.ema < 1 and 0 <= self.warmup < 1 and 0 <= self.weight_decay < math.inf):
            raise ValueError("ema and warmup must be in [0, 1) and weight_decay at least 0")
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
    """Pre-training's masks: random patterns, every hidden position asked for."""

    def draw(canvas: Canvas, step: int) -> Masks:
        pattern, _ = random_pattern(canvas, mask_id, seed, step)
        return Masks(pattern, pattern, elbo_weight(canvas.tokens == mask_id, pattern) if weight == "elbo" else None)

    return draw


def masked_loss(
    denoiser: Tunable, canvas: Canvas, masks: Masks, forbidden: tuple[int, ...] = ()
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy of the tokens asked for, and the share of them that the denoiser guesses.

    ``forbidden`` tokens have probability 0, as in decoding; pre-training lets the denoiser learn that by itself.
    """
    if canvas.truth.device != denoiser.device:
        canvas, masks = canvas.to(denoiser.device), masks.to(denoiser.device)
    tokens = canvas.truth.masked_fill(masks.hidden, denoiser.mask_id)
    logits = denoiser.logits(denoiser.hidden(tokens, canvas.attention)[masks.scored])
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


def train_masked(
    denoiser: Tunable,
    source: Source,
    config: MaskedTraining,
    run: Run | None = None,
    masking: Masking | None = None,
    forbidden: tuple[int, ...] = (),
) -> Iterator[dict[str, Any]]:
    """Train in place the weights that require gradients, yielding a record every ``log_every`` steps.

    With a run, log, checkpoint and resume. ``masking`` draws what is hidden; without it, at random. ``forbidden`` tokens are
    left out of the loss.
    """
    masking = masking or random_masks(denoiser.mask_id, config.seed, config.weight)
    trained = {name: p for name, p in denoiser.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=config.lr, betas=(0.9, 0.99), weight_decay=config.weight_decay)
    average = {name: p.detach().clone() for name, p in trained.items()} if config.ema else {}
    start, (losses, hits) = _restore(denoiser, optimizer, average, run) if run else (0, ([], []))
    began = time.perf_counter()
    with ThreadPoolExecutor(1) as ahead:
        upcoming = ahead.submit(source, start, config.batch)
        for step in range(start, config.steps):
            canvas = upcoming.result()
            if step + 1 < config.steps:
                upcoming = ahead.submit(source, step + 1, config.batch)
            loss, hit = masked_loss(denoiser, canvas, masking(canvas, step), forbidden)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained.values(), config.clip)
            for group in optimizer.param_groups:
                group["lr"] = config.lr_at(step)
            optimizer.step()
            with torch.no_grad():
                for name, tensor in average.items():
                    tensor.lerp_(trained[name], 1 - min(config.ema, (step + 1) / (step + 10)))
            losses.append(loss.detach().float())
            hits.append(hit)
            done = step + 1
            record = None
            if done % config.log_every == 0 or done == config.steps:
                record = {
                    "step": done,
                    "samples": done * config.batch,
                    "loss": torch.stack(losses).mean().item(),
                    "token_accuracy": torch.stack(hits).mean().item(),
                    "lr": config.lr_at(step),
                    "samples_per_second": (done - start) * config.batch / (time.perf_counter() - began),
                }
                losses, hits = [], []
                if run:
                    run.log(record)
            # After its own record, which a run killed in between would lose; what awaits the next record is saved with it.
            if run and (done % config.save_every == 0 or done == config.steps):
                _save(denoiser, optimizer, average, run, done, [losses, hits])
            if record is not None:
                yield record
    with torch.no_grad():
        for name, tensor in average.items():
            trained[name].copy_(tensor)


def _save(
    denoiser: Tunable,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor],
    run: Run,
    step: int,
    awaiting: list[list[Tensor]],
) -> None:
    tensors, state = flatten_optimizer(optimizer)
    tensors |= {f"model.{name}": p.detach() for name, p in denoiser.named_parameters() if p.requires_grad}
    tensors |= {f"average.{name}": tensor for name, tensor in average.items()}
    run.save(step, tensors, {"optimizer": state, "awaiting": [[x.item() for x in values] for values in awaiting]})


def _restore(
    denoiser: Tunable, optimizer: torch.optim.Optimizer, average: dict[str, Tensor], run: Run
) -> tuple[int, list[list[Tensor]]]:
    checkpoint = run.load_latest()
    if checkpoint is None:
        run.rewind(0)  # what was measured before the first step stays
        return 0, [[], []]
    part = lambda prefix: {  # noqa: E731
        name.removeprefix(prefix): tensor for name, tensor in checkpoint.tensors.items() if name.startswith(prefix)
    }
    stored = part("model.")
    if lacking := [name for name, p in denoiser.named_parameters() if p.requires_grad and name not in stored]:
        raise ValueError(f"the checkpoint of {run.folder} lacks {lacking[0]}: it is of another training")
    denoiser.load_state_dict(stored, strict=False)  # what is not trained is not in it
    for name, tensor in part("average.").items():
        average[name].copy_(tensor)
    restore_optimizer(optimizer, checkpoint.tensors, checkpoint.state["optimizer"])
    run.rewind(checkpoint.step)
    awaiting = checkpoint.state.get("awaiting", [[], []])
    return checkpoint.step, [[torch.tensor(x, device=denoiser.device) for x in values] for values in awaiting]
