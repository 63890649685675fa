"""The cost of a training step: ours, the paper's rollout-then-recompute, and rivals that roll out freely, at equal trajectories.

The paper draws a trajectory and then runs the denoiser on its states again for their likelihood: two forwards per trajectory step.
Here the rollout's own forwards price the truth. ``recomputed`` is our step followed by those second forwards, in batches and with
the whole head, as a model is called. The backbone has LLaDA's proportions, so that the denoiser dominates the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.guidance import DenoiserWrapper
from unmask.decoding.protocols import Canvas, Focus
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.trainer import PolicyJob, train_policy
from unmask_studies.bench.backbones import backbone, llada_like, policy_for
from unmask_studies.bench.measuring import Finding, ratios, time_rounds

SAS = PolicyTraining(advantage="trajectory", group=6, validate_every=10**6)
"""The paper's advantage and group; the cost of ours does not depend on the advantage."""
RIVALS = {
    "UPO": replace(SAS, reward="terminal", normalise=False, beta=0.01, reference="confidence"),
    "Jazbec et al.": replace(SAS, objective="bernoulli", reward="speed"),
}


@dataclass(frozen=True)
class Learning:
    """Canvases of ``prompt`` given and ``length`` hidden tokens."""

    width: int = 512
    layers: int = 8
    prompt: int = 64
    length: int = 32
    prompts: int = 2
    repeats: int = 3


QUICK = Learning(width=128, layers=2, prompt=8, length=8, prompts=1, repeats=2)


class Recorder(DenoiserWrapper):
    """Records the canvases that go through the denoiser."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.canvases: list[Tensor] = []

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None, focus: Focus | None = None
    ) -> Float[Tensor, "B L D"]:
        self.canvases.append(tokens)
        return super().hidden(tokens, attention, focus)

    @torch.no_grad()
    def repeat(self, rows_at_once: int = 32) -> None:
        """A second forward of all canvases since the last call."""
        for part in torch.cat(self.canvases).split(rows_at_once):
            self.inner.logits(self.inner_states(part).flatten(0, 1)).log_softmax(-1)
        self.canvases = []


def measure_learning(config: Learning) -> Iterator[Finding]:
    denoiser = backbone(llada_like(config.width, config.layers))
    arms = {"ours": SAS, "recomputed": SAS, **RIVALS}
    steps, forwarded = {}, {}
    for name, training in arms.items():
        watched = Recorder(denoiser)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            policy = policy_for(denoiser).requires_grad_(True)
        steps[name] = _step(watched, policy, training, config, again=name == "recomputed")
        forwarded[name] = watched
    times = time_rounds(steps, config.repeats)
    trajectories = config.prompts * SAS.group
    for name in arms:
        calls = forwarded[name].forwarded / (config.repeats + 1) / trajectories
        yield Finding(f"{name}: denoiser calls per trajectory", calls, "canvases", n=config.repeats + 1)
        if name != "ours":
            yield Finding.median(f"{name}: time of a training step over ours", ratios(times[name], times["ours"]), "×")


def _step(
    watched: Recorder, policy: OrderPolicy, training: PolicyTraining, config: Learning, again: bool
) -> Callable[[], None]:
    """A function that takes the next step of a training."""
    records = train_policy(
        PolicyJob(watched, policy, _canvases(watched.mask_id, config), replace(training, prompts=config.prompts))
    )

    def step() -> None:
        next(records)
        if again:
            watched.repeat()
        watched.canvases = []

    return step


def _canvases(mask_id: int, config: Learning) -> Callable[[int, int], Canvas]:
    """Random tokens, the answer hidden."""

    def draw(step: int, count: int) -> Canvas:
        generator = torch.Generator().manual_seed(step)
        target = torch.randint(mask_id, (count, config.prompt + config.length), generator=generator)
        tokens = target.clone()
        tokens[:, config.prompt :] = mask_id
        return Canvas(tokens, target)

    return draw
