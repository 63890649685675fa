"""Self-Aware Scheduling: learn the order for a frozen denoiser (Alg. grpo_order_short).

A step: sample ``G`` teacher-forced orders for each of ``P`` prompts from the current policy, price every candidate of every state
with the same forwards, turn returns into advantages, and update the policy on the recorded observations, ``mu`` times over. The
denoiser never runs again: its cost is at most one forward per trajectory step, and equal states of a batch share one.

A step is a function of the seed, its number and the weights it starts from. A run that was killed resumes from its last checkpoint
and ends with the same weights as one that was not. Several processes (``accelerate launch``) share a step's prompts between them
and add up their gradients: the step is the same, but for rounding, and any number of them can resume a checkpoint.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from unmask.decoding.draws import counter_uniform
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas, Denoiser, Judge, Scheduler, Verdict
from unmask.runs.atomic import written_aside
from unmask.runs.optimizer import flatten_optimizer, restore_optimizer
from unmask.runs.processes import Together, started
from unmask.runs.run import Run
from unmask.runs.tensorboard import scalars
from unmask.schedulers.policy import OrderPolicy
from unmask.schedulers.posterior import Posterior
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.objectives import Counts, countable, policy_loss
from unmask.training.policy.rollout import Rollout, collect

if TYPE_CHECKING:
    from accelerate import Accelerator


ROWS_AT_ONCE = 64
"""Held-out problems that are decoded together, unless the recipe says otherwise."""

Verify = Callable[[Sequence[int], Tensor], Verdict]
"""A task's ``verify``: rows of the validation and their finished tokens, on the CPU."""


def train_policy(
    denoiser: Denoiser,
    policy: OrderPolicy,
    source: Callable[[int, int], Canvas],
    config: PolicyTraining,
    validation: Canvas | None = None,
    run: Run | None = None,
    stop: Callable[[], bool] = lambda: False,
    teacher: Scheduler | None = None,
    accelerator: Accelerator | None = None,
    verify: Verify | None = None,
    judge: Judge | None = None,
) -> Iterator[dict[str, Any]]:
    """Train in place, yielding a record per step; at the end the policy holds the weights of its best validation.

    Its start is validated, too, and is what remains if no step was better: the first record has it as ``start_accuracy``.

    With a run: log, checkpoint, resume, and write the best policy to ``policy/``. ``stop`` is asked after every step; when it
    answers True the run is saved and left, to be resumed. ``verify`` says which validation answers are right, and ``judge``
    which rollouts; without them, the target alone is. ``teacher`` is the scheduler that ``config.teacher`` names. Of several
    processes each calls this with the same arguments; the first one writes.
    """
    if bool(config.teacher) != (teacher is not None):
        raise ValueError(f"config.teacher is {config.teacher!r}, but a teacher was {'not ' * (teacher is None)}given")
    accelerator = accelerator or started(config.mixed_precision)
    together = Together(accelerator)
    row = together.shared(config.prompts)
    policy.to(accelerator.device)
    learner = _Learner(policy, config, accelerator.device)
    start, best, calls = learner.restore(run, together)
    validated = partial(_validated, denoiser, policy, validation, config, together, verify)
    first = {} if start else {f"start_{name}": value for name, value in validated().items()}
    best = best if start else _score(first, "start_")
    log = scalars(run.folder, start) if run is not None and together.first else lambda record: None
    for step in range(start, config.steps):
        began, before = time.perf_counter(), denoiser.forwarded
        learner.renew_reference(step)
        canvas = source(step, config.prompts).rows(row).to(accelerator.device)
        rollout = collect(
            denoiser,
            policy,
            canvas,
            config,
            _seeds(config, step, row).to(accelerator.device),
            teacher if config.taught_at(step) else None,
            learner.posterior if config.objective_at(step) == "variational" else None,
            judge,
        )
        stats = learner.update(rollout, step, together)
        calls += round(together.sum(denoiser.forwarded - before))
        record: dict[str, Any] = {"step": step + 1, **together.means(rollout.totals), **stats, "denoiser_calls": calls}
        done = step + 1
        if done == 1:
            record |= first
        if done % config.validate_every == 0 or done == config.steps:
            record |= validated()
            if _score(record) > best:
                best = _score(record)
                learner.keep()
        record["seconds"] = time.perf_counter() - began
        leaving = together.sum(float(stop())) > 0
        if run is not None and together.first:
            run.log(record)
            log(record)
            if leaving or done % config.save_every == 0 or done == config.steps:
                learner.save(run, done, best, calls)
        yield record
        if leaving:
            return
    if validation is not None:
        policy.load_state_dict(learner.best, strict=False)
    if run is not None and together.first:
        with written_aside(run.folder / "policy") as aside:
            policy.save_pretrained(aside)
    together.wait()


def _validated(
    denoiser: Denoiser,
    policy: OrderPolicy,
    validation: Canvas | None,
    config: PolicyTraining,
    together: Together,
    verify: Verify | None,
) -> dict[str, float]:
    """What the held-out problems say of the policy: ``accuracy`` or, if that is what selects, ``nll``."""
    if validation is None:
        return {}
    at_once = config.at_once or ROWS_AT_ONCE
    if config.select == "nll":
        return {"nll": path_nll(denoiser, policy, validation, at_once, together)}
    return {"accuracy": free_running_accuracy(denoiser, policy, validation, at_once, together, verify)}


def _score(record: Mapping[str, Any], prefix: str = "") -> float:
    """The higher the better: accuracy, or the likelihood of a token; −1 where nothing was validated."""
    if isinstance(nll := record.get(f"{prefix}nll"), float):
        return math.exp(-nll)
    return accuracy if isinstance(accuracy := record.get(f"{prefix}accuracy"), float) else -1.0


def best_step(metrics: Sequence[Mapping[str, Any]]) -> int | None:
    """The step after which the policy was the one that is kept; 0 is its start, None where nothing was validated.

    Metrics may be damaged: what is no record of a step is passed over.
    """
    records = [record for record in metrics if isinstance(record.get("step"), int)]
    scores = [(0, _score(record, "start_")) for record in records[:1]] + [(r["step"], _score(r)) for r in records]
    best = max((score for _, score in scores), default=-1.0)
    return None if best < 0 else next(step for step, score in scores if score == best)


def free_running_accuracy(
    denoiser: Denoiser,
    scheduler: Scheduler,
    canvas: Canvas,
    rows_at_once: int = ROWS_AT_ONCE,
    together: Together | None = None,
    verify: Verify | None = None,
) -> float:
    """The share of held-out problems solved by greedy free-running decoding: right as ``verify`` says, or as the target is."""
    right = 0
    for rows, part in _parts(canvas, rows_at_once, together):
        tokens = unmask(denoiser, scheduler, part, record=False).tokens
        right += int((_as_wanted(tokens, part) if verify is None else verify(rows.tolist(), tokens.cpu()).exact).sum())
    return (right if together is None else together.sum(right)) / len(canvas.tokens)


def path_nll(
    denoiser: Denoiser,
    scheduler: Scheduler,
    canvas: Canvas,
    rows_at_once: int = ROWS_AT_ONCE,
    together: Together | None = None,
) -> float:
    """−log p(x | σ) of held-out problems per revealed token, in nats, for the scheduler's greedy order σ."""
    logp, tokens = 0.0, 0
    for _, part in _parts(canvas, rows_at_once, together):
        path = unmask(denoiser, scheduler, part, forced=True, record=False)
        logp, tokens = logp + float(path.total_logp.double().sum()), tokens + int(path.reveals.sum())
    if together is not None:
        logp, tokens = together.sum(logp), together.sum(tokens)
    return -logp / tokens


def _parts(canvas: Canvas, rows_at_once: int, together: Together | None) -> Iterator[tuple[Int[Tensor, "b"], Canvas]]:
    """This process's part of the canvases, so many at once, and which they are."""
    mine = torch.arange(len(canvas.tokens)) if together is None else together.share(len(canvas.tokens))
    for rows in mine.split(rows_at_once):
        part = canvas.rows(rows)
        yield rows, part if together is None else part.to(together.accelerator.device)


def _as_wanted(tokens: Int[Tensor, "B L"], canvas: Canvas) -> Bool[Tensor, "B"]:
    """Is every token the target's, but for what was never to be revealed?"""
    left_out = torch.zeros_like(tokens, dtype=torch.bool) if canvas.candidates is None else ~canvas.candidates
    return ((tokens == canvas.target) | (left_out & (canvas.tokens == tokens))).all(1)


def _seeds(config: PolicyTraining, step: int, prompts: Int[Tensor, "p"]) -> Int[Tensor, "B"]:
    """A number of its own for every rollout of a step, whichever process draws it."""
    row = (prompts[:, None] * config.group + torch.arange(config.group)).flatten()
    return (counter_uniform(config.seed, step, row) * 2**24).long() + step * 2**24


class _Learner:
    """The policy and what learns with it: the optimizer, the reference, the best weights so far, LO-ARM's posterior."""

    def __init__(self, policy: OrderPolicy, config: PolicyTraining, device: torch.device) -> None:
        self.policy, self.config = policy, config
        self.posterior = None
        if config.objective == "variational":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(config.seed)
                self.posterior = Posterior(floor=config.reward_floor).to(device)
        self.trained = nn.ModuleDict(
            {"policy": policy} | ({} if self.posterior is None else {"posterior": self.posterior})
        )
        self.optimizer = torch.optim.AdamW(
            self.trained.parameters(), lr=config.lr, weight_decay=config.weight_decay, betas=(0.9, 0.98)
        )
        anchored = config.beta > 0 and config.reference == "policy"
        self.reference = copy.deepcopy(policy).requires_grad_(False) if anchored else None
        self.best = {name: p.detach().clone() for name, p in policy.named_parameters()}

    def renew_reference(self, step: int) -> None:
        if self.reference is not None and self.config.outer and step % self.config.outer == 0:
            self.reference.load_state_dict(self.policy.state_dict())

    def keep(self) -> None:
        for name, p in self.policy.named_parameters():
            self.best[name].copy_(p.detach())

    def update(self, rollout: Rollout, step: int, together: Together) -> dict[str, float]:
        """``mu`` passes over the decisions of all processes in shuffled minibatches, each accumulated from micro-batches."""
        config, objective = self.config, self.config.objective_at(step)
        counted, begin = together.concatenated(countable(rollout))
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        batches = max(1, len(counted) // config.states)
        collected: list[dict[str, float]] = []
        for turn in range(config.mu):
            for k, rows in enumerate(torch.randperm(len(counted), generator=generator).chunk(batches)):
                share = (turn * batches + k) / (config.mu * batches)
                for group in self.optimizer.param_groups:
                    group["lr"] = config.lr_at((step + share) / config.steps)
                counts = Counts.of(counted[rows.to(counted.device)])
                mine = rows[(rows >= begin) & (rows < begin + len(rollout))] - begin
                self.optimizer.zero_grad()
                stats = self._accumulate(rollout, mine.to(counted.device), objective, counts, together)
                norm = torch.nn.utils.clip_grad_norm_(self.trained.parameters(), config.clip)
                self.optimizer.step()
                collected.append({**stats, "gradient": float(norm)})
        return {name: sum(stats[name] for stats in collected) / len(collected) for name in collected[0]}

    def _accumulate(
        self, rollout: Rollout, mine: Int[Tensor, "s"], objective: str, counts: Counts, together: Together
    ) -> dict[str, float]:
        """The gradient of one minibatch, from this process's part of it and the others'."""
        sums = {"loss": 0.0, "clip_fraction": 0.0, "kl": 0.0}
        for rows in mine.split(self.config.micro or max(1, len(mine))):
            if not len(rows):
                continue
            with together.accelerator.autocast():
                loss, stats = policy_loss(
                    self.policy, rollout, rows, self.config, self.reference, counts, objective, self.posterior
                )
            together.accelerator.backward(loss)
            sums = {name: sums[name] + stats[name] for name in sums}
        if together.processes == 1:
            return sums
        parameters = list(self.trained.parameters())
        flat = [p.new_zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in parameters]
        flat = together.add(torch.cat([*flat, flat[0].new_tensor(list(sums.values()))]))
        for p, gradient in zip(parameters, flat.split([p.numel() for p in parameters] + [len(sums)]), strict=False):
            p.grad = gradient.view_as(p).clone()
        return dict(zip(sums, flat[-len(sums) :].tolist(), strict=True))

    def _parts(self) -> dict[str, Tensor]:
        parts = {name: p.detach() for name, p in self.trained.named_parameters()}
        parts |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        if self.reference is not None:
            parts |= {f"reference.{name}": p for name, p in self.reference.named_parameters()}
        return parts

    def save(self, run: Run, step: int, best_accuracy: float, calls: int) -> None:
        tensors, state = flatten_optimizer(self.optimizer)
        run.save(step, tensors | self._parts(), {"optimizer": state, "best_accuracy": best_accuracy, "calls": calls})

    def restore(self, run: Run | None, together: Together) -> tuple[int, float, int]:
        """The step to go on from, the best accuracy and the denoiser calls so far."""
        checkpoint = run.load_latest() if run is not None else None
        together.wait()  # nobody writes before everybody has read
        if run is not None and together.first:
            run.rewind(None if checkpoint is None else checkpoint.step)
        if checkpoint is None:
            return 0, -1.0, 0
        with torch.no_grad():
            for name, tensor in self._parts().items():
                tensor.copy_(checkpoint.tensors[name])
        restore_optimizer(self.optimizer, checkpoint.tensors, checkpoint.state["optimizer"])
        return checkpoint.step, checkpoint.state["best_accuracy"], checkpoint.state["calls"]
