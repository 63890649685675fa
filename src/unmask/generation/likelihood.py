"""log p(answer | prompt) of a masked diffusion model, two ways.

``N`` rows, each a prompt and an answer of ``L`` tokens, all ids.

* ``order_likelihood``: exact, for the order that a scheduler takes. A greedy scheduler has one order for a given answer, so
  log P(x) = Σ_t log p(x_{i_t} | x̃^{(t−1)}), the loop under teacher forcing. ``greedy`` says whether decoding would give this
  answer.
* ``monte_carlo_likelihood``: LLaDA's estimate of the bound that averages over all orders,
  E_{l ∼ U{1..L}} E_{mask of l} [ L/l · Σ_{i masked} log p(x_i | the rest) ] = E_σ log p(x | σ). Unbiased; the masks are hashes
  of the row's seed, and the sizes l of one row's samples are spread evenly over 1..L, each still uniform.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from unmask.decoding.draws import counter_uniform
from unmask.decoding.guidance import GuidedDenoiser
from unmask.decoding.loop import Step, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.pricing import price
from unmask.decoding.protocols import Denoiser, Scheduler
from unmask.generation.text_canvas import TextCanvas, id_canvas

MASK_SIZE, MASK_PLACE = 21, 22
"""The purposes of the random numbers that draw masks."""


@dataclass(frozen=True)
class Scored:
    """``logp`` of each answer; ``greedy``: whether decoding gives it, None where that is not known; the cost of all rows."""

    logp: list[float]
    greedy: list[bool | None]
    denoiser_calls: int


def order_likelihood(
    denoiser: Denoiser,
    scheduler: Scheduler,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    decoding: Decoding = Decoding(),  # noqa: B008
    seeds: Sequence[int] | None = None,
) -> Scored:
    """Exact log-likelihood of each answer along the order that ``scheduler`` takes when the answer's tokens are revealed.

    Of ``decoding``, block, steps, pace, order temperature and guidance are used: the other options would not be exact.
    """
    canvas, target = _target_canvas(denoiser, prompts, answers)
    exact = Decoding(
        decoding.block,
        decoding.steps,
        decoding.pace,
        decoding.order_temperature,
        guidance=decoding.guidance,
        stop_at_end=False,
    )
    greedy = torch.ones(len(prompts), dtype=torch.bool, device=target.device)

    def compare(step: Step) -> None:
        same = (step.view.best == step.tokens) | ~step.revealed
        greedy[step.view.rows] &= same.all(1)

    rows = canvas.canvas(seeds, target)
    trajectory = unmask(denoiser, scheduler, rows, exact, forced=True, record=False, on_step=compare)
    return Scored(trajectory.total_logp.tolist(), list(greedy.tolist()), trajectory.denoiser_calls)


@torch.no_grad()
def monte_carlo_likelihood(
    denoiser: Denoiser,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    seeds: Sequence[int],
    samples: int = 128,
    guidance: float = 0.0,
    rows_at_once: int = 32,
) -> Scored:
    """The estimate of each answer from ``samples`` random masks. ``seeds`` has a number per row."""
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    calls = denoiser.forwarded
    totals = torch.zeros(len(prompts), dtype=torch.float64)
    draws = [(row, sample) for row in range(len(prompts)) for sample in range(samples)]
    for start in range(0, len(draws), rows_at_once):
        part = draws[start : start + rows_at_once]
        canvas, target = _target_canvas(denoiser, [prompts[r] for r, _ in part], [answers[r] for r, _ in part])
        model = GuidedDenoiser(denoiser, guidance, canvas.start) if guidance else denoiser
        masked = torch.zeros_like(canvas.region)
        weight = torch.zeros(len(part), dtype=torch.float64)
        for n, (row, sample) in enumerate(part):
            length = len(answers[row])
            spread = (float(counter_uniform(seeds[row], MASK_SIZE)) + sample / samples) % 1
            size = min(int(spread * length), length - 1) + 1
            keys = counter_uniform(seeds[row], MASK_PLACE, sample, torch.arange(length))
            chosen = keys.argsort(stable=True)[:size].to(masked.device)
            masked[n, canvas.start + chosen] = True
            weight[n] = length / size
        states = model.hidden(target.masked_fill(masked, denoiser.mask_id), canvas.attention)
        at = torch.nonzero(masked, as_tuple=True)
        prices = price(model.logits(states[at]), model.forbidden_ids)
        logp = prices.logp.gather(1, target[at][:, None])[:, 0].double().cpu()
        sums = torch.zeros(len(part), dtype=torch.float64).index_add(0, at[0].cpu(), logp)
        totals.index_add_(0, torch.tensor([row for row, _ in part]), sums * weight)
    unknown: list[bool | None] = [None] * len(prompts)
    return Scored((totals / samples).tolist(), unknown, denoiser.forwarded - calls)


def _target_canvas(
    denoiser: Denoiser, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]
) -> tuple[TextCanvas, torch.Tensor]:
    if any(not len(answer) for answer in answers):
        raise ValueError("expected answers of at least one token: the likelihood of nothing is 1")
    if any(denoiser.mask_id in answer for answer in answers):
        raise ValueError("an answer holds the denoiser's mask token, which has no likelihood")
    canvas = id_canvas(denoiser, prompts, [len(answer) for answer in answers])
    target = canvas.tokens.clone()
    target[canvas.region] = torch.tensor([t for answer in answers for t in answer], device=target.device)
    return canvas, target
