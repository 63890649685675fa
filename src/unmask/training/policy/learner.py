"""Updates of a policy on collected decisions, and the checkpoint of everything that a training step changes."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.runs.optimizer import dump_optimizer, load_optimizer
from unmask.runs.processes import ProcessGroup
from unmask.runs.run import Run
from unmask.schedulers.policy import OrderPolicy
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.decisions import Rollout
from unmask.training.policy.method import Method
from unmask.training.policy.methods import build_posterior
from unmask.training.policy.objectives import Counts, countable, policy_loss

REPLAY = "replay."
KEPT = ("best_score", "heuristic", "denoiser_calls", "stale")
"""What a checkpoint holds of a learner besides tensors."""


@dataclass(frozen=True)
class Recorded:
    """The decisions of a step: those of this process, and of those of all what is counted; its own begin at ``begin``."""

    rollout: Rollout
    counted: Float[Tensor, "S 3"]
    begin: int = 0


class Learner:
    """The policy with its optimizer, its reference, its best weights so far, and LO-ARM's posterior."""

    def __init__(self, policy: OrderPolicy, config: PolicyTraining, device: torch.device) -> None:
        self.policy, self.config = policy, config
        self.posterior = build_posterior(config, device)
        self.trained = nn.ModuleDict(
            {"policy": policy} | ({} if self.posterior is None else {"posterior": self.posterior})
        )
        self.optimizer = torch.optim.AdamW(
            self.trained.parameters(), lr=config.lr, weight_decay=config.weight_decay, betas=(0.9, 0.98), fused=True
        )
        anchored = config.beta > 0 and config.reference == "policy"
        self.reference = copy.deepcopy(policy).requires_grad_(False) if anchored else None
        weights = lambda: {name: p.detach().clone() for name, p in policy.named_parameters()}  # noqa: E731
        self.best = weights()
        self.average = weights() if config.ema else {}
        self.best_score, self.denoiser_calls = -1.0, 0
        self.heuristic = ""
        self.stale = 0
        self.earlier: list[Recorded] = []

    def update_reference(self, step: int) -> None:
        if self.reference is not None and self.config.outer and step % self.config.outer == 0:
            self.reference.load_state_dict(self.policy.state_dict())

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The policy with its averaged weights, where there are such."""
        own = {name: p.detach().clone() for name, p in self.policy.named_parameters()} if self.average else {}
        self.policy.load_state_dict(self.average, strict=False)
        yield
        self.policy.load_state_dict(own, strict=False)

    def keep_if_better(self, score: float) -> None:
        """Remember the present weights if their validation is the best so far; ``stale`` counts those since then."""
        self.stale += 1
        if score > self.best_score:
            self.best_score, self.heuristic, self.stale = score, "", 0
            for name, p in self.policy.named_parameters():
                self.best[name].copy_(p.detach())

    @property
    def has_settled(self) -> bool:
        """Has the training gone on for long enough without a better validation?"""
        return 0 < self.config.patience <= self.stale

    def keep_heuristic(self, scores: Mapping[str, float]) -> None:
        """Remember the best of these heuristics if it is better than the policy."""
        for name, score in scores.items():
            if score > self.best_score:
                self.best_score, self.heuristic = score, name

    def use_best(self) -> None:
        """The policy as it was best: with those weights, or without its network if a heuristic was better."""
        self.policy.load_state_dict(self.best, strict=False)
        if self.heuristic:
            self.policy.config = replace(self.policy.config, residual=True, base=self.heuristic)
            for parameter in self.policy.network.readout.parameters():
                nn.init.zeros_(parameter)

    def update(self, method: Method, rollout: Rollout, step: int, processes: ProcessGroup) -> dict[str, float]:
        """``mu`` passes over the decisions of all processes in shuffled minibatches, each accumulated from micro-batches; more
        where that makes fewer than ``minibatches``.

        The last pass takes a random part of them if ``mu`` is not whole. ``hardest`` of all decisions are taken at all. With
        ``replay`` a pass is over a random part of these and those of earlier steps, no longer than over these alone.
        """
        config = self.config
        newest = Recorded(rollout, *processes.all_gather(countable(rollout)))
        recorded = [newest, *self.earlier]
        counted = torch.cat([one.counted for one in recorded])
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        pool = counted[:, 2].topk(math.ceil(config.hardest * len(counted))).indices.sort().values.cpu()
        decisions = math.ceil(config.hardest * len(newest.counted))
        mu = max(config.mu, config.minibatches * config.states / max(1, decisions) if config.minibatches > 1 else 0.0)
        batches: list[Tensor] = []
        for epoch in range(math.ceil(mu)):
            taken = math.ceil(min(1.0, mu - epoch) * decisions)
            shuffled = pool[torch.randperm(len(pool), generator=generator)[:taken]]
            batches += shuffled.chunk(max(1, taken // config.states))
        history: list[dict[str, float]] = []
        for k, rows in enumerate(batches):
            for group in self.optimizer.param_groups:
                group["lr"] = config.lr_at((step + k / len(batches)) / config.steps)
            counts = Counts.of(counted[rows.to(counted.device)])
            self.optimizer.zero_grad()
            stats = self._accumulate(method, _own_rows(recorded, rows), counts, processes)
            norm = torch.nn.utils.clip_grad_norm_(self.trained.parameters(), config.clip)
            self.optimizer.step()
            self._average(step * len(batches) + k)
            history.append({**stats, "gradient": float(norm)})
        self.earlier = recorded[: config.replay]
        return {name: sum(stats[name] for stats in history) / len(history) for name in history[0]}

    @torch.no_grad()
    def _average(self, updates: int) -> None:
        """Move the average towards the present weights; at first fast, since the start is no part of it."""
        weights = dict(self.policy.named_parameters())
        for name, tensor in self.average.items():
            tensor.lerp_(weights[name], 1 - min(self.config.ema, (updates + 1) / (updates + 10)))

    def _accumulate(
        self, method: Method, mine: list[tuple[Rollout, Int[Tensor, "s"]]], counts: Counts, processes: ProcessGroup
    ) -> dict[str, float]:
        """The gradient of one minibatch, summed over processes."""
        sums = {"loss": 0.0, "clip_fraction": 0.0, "kl": 0.0}
        parts = [(rollout, part) for rollout, rows in mine for part in rows.split(self.config.micro or len(rows))]
        for rollout, rows in parts:
            with processes.accelerator.autocast():
                loss, stats = policy_loss(method, rollout, rows, self.reference, counts)
            processes.accelerator.backward(loss)
            sums = {name: sums[name] + stats[name] for name in sums}
        if processes.size == 1:
            return sums
        parameters = list(self.trained.parameters())
        flat = [p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters]
        flat = processes.all_reduce(torch.cat([*flat, flat[0].new_tensor(list(sums.values()))]))
        for p, gradient in zip(parameters, flat.split([p.numel() for p in parameters] + [len(sums)]), strict=False):
            p.grad = gradient.view_as(p).clone()
        return dict(zip(sums, flat[-len(sums) :].tolist(), strict=True))

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {name: p.detach() for name, p in self.trained.named_parameters()}
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.items()}
        if self.reference is not None:
            tensors |= {f"reference.{name}": p for name, p in self.reference.named_parameters()}
        return tensors

    def _earlier_tensors(self) -> dict[str, Tensor]:
        stored = ((number, one.rollout.tensors()) for number, one in enumerate(self.earlier))
        return {f"{REPLAY}{number}.{name}": value for number, tensors in stored for name, value in tensors.items()}

    def _restore_earlier(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Of a single process: others have none."""
        steps: dict[int, dict[str, Tensor]] = {}
        for name in (name for name in tensors if name.startswith(REPLAY)):
            number, _, rest = name.removeprefix(REPLAY).partition(".")
            steps.setdefault(int(number), {})[rest] = tensors[name].to(device)
        rollouts = [Rollout.from_tensors(steps[number]) for number in sorted(steps)]
        self.earlier = [Recorded(rollout, countable(rollout)) for rollout in rollouts]

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All that a checkpoint holds: tensors, and what JSON can."""
        tensors, state = dump_optimizer(self.optimizer)
        known = {name: getattr(self, name) for name in KEPT}
        return tensors | self._tensors() | self._earlier_tensors(), {"optimizer": state, **known}

    def copy_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """:meth:`state` as it is now. A policy is small beside one rollout of its denoiser."""
        tensors, state = self.state()
        earlier = self._earlier_tensors()  # which nothing changes
        own = {name: tensor.detach().clone() for name, tensor in tensors.items() if name not in earlier}
        return own | earlier, copy.deepcopy(state)

    def save(self, run: Run, step: int) -> None:
        run.save(step, *self.state())

    def restore(self, run: Run | None, processes: ProcessGroup) -> int:
        """The step to continue from."""
        checkpoint = run.load_latest() if run is not None else None
        processes.wait()  # no process writes before all have read
        if run is not None and processes.is_first:
            run.rewind(None if checkpoint is None else checkpoint.step)
        if checkpoint is None:
            return 0
        with torch.no_grad(), checkpoint.restoring():
            for name, tensor in self._tensors().items():
                tensor.copy_(checkpoint.tensors[name])
            load_optimizer(self.optimizer, checkpoint.tensors, checkpoint.state["optimizer"])
            self._restore_earlier(checkpoint.tensors, next(self.policy.parameters()).device)
            for name in KEPT:
                setattr(self, name, checkpoint.state[name])
        return checkpoint.step


def _own_rows(recorded: list[Recorded], rows: Int[Tensor, "s"]) -> list[tuple[Rollout, Int[Tensor, "r"]]]:
    """Of decisions, counted over all of ``recorded``, this process's rows of each rollout that has any."""
    found, first = [], 0
    for one in recorded:
        begin = first + one.begin
        mine = rows[(rows >= begin) & (rows < begin + len(one.rollout))] - begin
        if len(mine):
            found.append((one.rollout, mine.to(one.counted.device)))
        first += len(one.counted)
    return found
