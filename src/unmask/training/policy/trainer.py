"""Self-Aware Scheduling: train an order policy for a frozen denoiser (Alg. grpo_order_short).

A step: sample ``G`` teacher-forced orders for each of ``P`` prompts from the current policy, price every candidate of every state
with the same forwards, turn returns into advantages, and update the policy on the recorded observations, ``mu`` times over. The
denoiser does not run again: its cost is at most one forward per trajectory step, and equal states of a batch share one.

A step is a function of the seed, its number and the weights it starts from. A killed run resumes from its last checkpoint, one that
was interrupted from the beginning of the step it was in, and ends with the same weights as an uninterrupted one. Several processes
(``accelerate launch``) share a step's prompts and add up their gradients: the step is the same up to rounding, and any number of
processes can resume a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.draws import counter_uniform
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler
from unmask.runs.atomic import write_folder
from unmask.runs.processes import ProcessGroup, start_accelerator
from unmask.runs.run import Run
from unmask.runs.tensorboard import scalar_writer
from unmask.schedulers.loading import load_scheduler
from unmask.schedulers.policy import OrderPolicy
from unmask.tasks.kinds import Judge
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.head_methods import decode_with
from unmask.training.policy.learner import Learner
from unmask.training.policy.methods import choose_method
from unmask.training.policy.rewards import AT_ONCE, share_of_noise
from unmask.training.policy.rollout import collect
from unmask.training.policy.validation import ROWS_AT_ONCE, Verify, greedy_nll, score, validate_free_running

if TYPE_CHECKING:
    from accelerate import Accelerator


NOISE_PROMPTS = 32
"""Problems in which noise is looked for."""
FEW = 0.02
"""With ``select="auto"`` the likelihood of answers selects where the start solves no larger share of the held-out problems."""


@dataclass(frozen=True)
class PolicyJob:
    """What a policy training works on.

    ``source(step, count)`` gives the canvases of a step, ``validation`` the held-out ones. ``verify`` says which validation
    answers are right, ``judge`` which rollouts are; without them, only the target is. ``teacher`` is the scheduler that
    ``config.teacher`` names. With a ``run``: log, checkpoint, resume, and write the best policy to ``policy/``. ``stop`` is called
    after every step; when it returns True the run is saved and left.
    """

    denoiser: Denoiser
    policy: OrderPolicy
    source: Callable[[int, int], Canvas]
    config: PolicyTraining
    validation: Canvas | None = None
    run: Run | None = None
    stop: Callable[[], bool] = lambda: False
    teacher: Scheduler | None = None
    accelerator: Accelerator | None = None
    verify: Verify | None = None
    judge: Judge | None = None

    def __post_init__(self) -> None:
        if bool(self.config.teacher) != (self.teacher is not None):
            got = "no teacher" if self.teacher is None else "one"
            raise ValueError(f"expected the scheduler of config.teacher = {self.config.teacher!r}, got {got}")


def train_policy(job: PolicyJob) -> Iterator[dict[str, Any]]:
    """Train in place, yielding a record per step; at the end the policy holds the weights of its best validation.

    The start is validated, too, and kept if no step is better: the first record has it as ``start_accuracy``. Of several
    processes each calls this with the same job; the first one writes.
    """
    job, chosen = _choose_relative(job)
    config, policy, run = job.config, job.policy, job.run
    processes = ProcessGroup(job.accelerator or start_accelerator(config.mixed_precision))
    policy.to(processes.accelerator.device)
    learner = Learner(policy, config, processes.accelerator.device)
    start, first = learner.restore(run, processes), chosen
    job, found = _choose_selection(job, start, processes)
    if not start:
        first = chosen | _validate_start(job, learner, processes, found)
    log = _open_log(run, start, processes)
    owned = run if processes.is_first else None
    for step in range(start, config.steps):
        if learner.has_settled:
            break
        done = step + 1
        with _save_if_interrupted(owned, step, learner.copy_state()):
            record = _whole_step(job, learner, step, processes, {} if step else first)
        leaving = processes.sum(float(job.stop())) > 0
        log(record)
        over = done == config.steps or learner.has_settled
        saving = leaving or over or done % config.save_every == 0
        if owned is not None and saving:
            learner.save(owned, done)
        with _save_if_interrupted(None if saving else owned, done, learner.state()):
            yield record
        if leaving:
            return
    _finish(job, learner, processes)


def _choose_relative(job: PolicyJob) -> tuple[PolicyJob, dict[str, float]]:
    """The job with relative rewards where the first problems show noise; a resumed run finds the same."""
    config = job.config
    if config.relative or config.relative_above == 1:
        return job, {}
    canvas = job.source(0, min(NOISE_PROMPTS, config.prompts)).to(next(job.policy.parameters()).device)
    noise = share_of_noise(job.denoiser, canvas, config.at_once or AT_ONCE)
    relative = noise > config.relative_above
    return replace(job, config=replace(config, relative=relative)), {"noise": noise, "relative": float(relative)}


def _choose_selection(job: PolicyJob, start: int, processes: ProcessGroup) -> tuple[PolicyJob, dict[str, float] | None]:
    """The job without ``select="auto"``, and how the start validates where that was measured; a resumed run has it in its log."""
    if job.config.select != "auto":
        return job, None
    if start and job.run is not None:
        logged = job.run.metrics()
        select, found = "nll" if logged and "start_nll" in logged[0] else "accuracy", None
    else:
        found = validate(_select_by(job, "accuracy"), job.policy, processes)
        select = "nll" if found.get("accuracy", 1.0) <= FEW else "accuracy"
    return _select_by(job, select), found if select == "accuracy" else None


def _select_by(job: PolicyJob, select: str) -> PolicyJob:
    return replace(job, config=replace(job.config, select=select))


@contextmanager
def _save_if_interrupted(run: Run | None, step: int, state: tuple[dict[str, Tensor], dict[str, Any]]) -> Iterator[None]:
    """Ctrl-C or SIGTERM ends a training at once: it goes on after ``step``, from this state."""
    try:
        yield
    except KeyboardInterrupt:
        if run is not None:
            run.save(step, *state)
        raise


def _whole_step(
    job: PolicyJob, learner: Learner, step: int, processes: ProcessGroup, first: dict[str, Any]
) -> dict[str, Any]:
    """Rollouts, update and, where it is due, validation. ``first`` is logged with the first step."""
    began, done, config = time.perf_counter(), step + 1, job.config
    record = _take_step(job, learner, step, processes) | first
    if done % config.validate_every == 0 or done == config.steps:
        with learner.averaged():
            record |= validate(job, job.policy, processes)
            learner.keep_if_better(score(record))
    return record | {"seconds": time.perf_counter() - began}


def _validate_start(
    job: PolicyJob, learner: Learner, processes: ProcessGroup, found: dict[str, float] | None
) -> dict[str, float]:
    """The policy before its first step, as ``found`` where it is known, and the heuristics of the race."""
    found = validate(job, job.policy, processes) if found is None else found
    first = {f"start_{name}": value for name, value in found.items()}
    if job.config.purpose == "order":  # an untrained policy is a heuristic, an untrained head nothing
        learner.best_score = score(first, "start_")
    raced = {name: score(validate(job, load_scheduler(name), processes)) for name in job.config.race}
    learner.keep_heuristic(raced)
    return first | {f"race_{name}": value for name, value in raced.items()}


def _finish(job: PolicyJob, learner: Learner, processes: ProcessGroup) -> None:
    """Leave the best weights in the policy, and in the run's folder."""
    if job.validation is None:
        job.policy.load_state_dict(learner.average, strict=False)
    else:
        learner.use_best()
    if job.run is not None and processes.is_first:
        with write_folder(job.run.folder / "policy") as aside:
            job.policy.save_pretrained(aside, config=job.policy.config)
    processes.wait()


def _take_step(job: PolicyJob, learner: Learner, step: int, processes: ProcessGroup) -> dict[str, Any]:
    """Rollouts and update; returns the record of the step."""
    config, device, before = job.config, processes.accelerator.device, job.denoiser.forwarded
    prompts, idle = share_prompts(config, processes)
    learner.update_reference(step)
    method = choose_method(config, job.policy, step, job.teacher, learner.posterior, job.judge)
    canvas = job.source(step, config.prompts).rows(prompts).to(device)
    rollout = collect(job.denoiser, method, canvas, _seeds(config, step, prompts).to(device))
    rollout = rollout.emptied() if idle else rollout
    began = time.perf_counter()
    stats = learner.update(method, rollout, step, processes)
    stats["update_seconds"] = time.perf_counter() - began
    learner.denoiser_calls += round(processes.sum(0 if idle else job.denoiser.forwarded - before))
    means = processes.mean(rollout.totals)
    return {"step": step + 1, **means, **stats, "denoiser_calls": learner.denoiser_calls}


def share_prompts(config: PolicyTraining, processes: ProcessGroup) -> tuple[Int[Tensor, "p"], bool]:
    """This process's part of a step's prompts. Where there are fewer prompts than processes, an idle one rolls out the first prompt
    too, to no effect."""
    mine = processes.split(config.prompts)
    return (mine, False) if len(mine) else (torch.zeros(1, dtype=torch.long), True)


def validate(job: PolicyJob, scheduler: Scheduler, processes: ProcessGroup) -> dict[str, float]:
    """A scheduler's ``accuracy`` on the held-out problems or, if that selects, ``nll``."""
    if job.validation is None:
        return {}
    at_once = job.config.at_once or ROWS_AT_ONCE
    if job.config.select == "nll":
        return {"nll": greedy_nll(job.denoiser, scheduler, job.validation, at_once, processes)}
    scheduler, decoding = decode_with(scheduler, job.teacher)
    return validate_free_running(job.denoiser, scheduler, job.validation, at_once, processes, job.verify, decoding)


def _open_log(run: Run | None, start: int, processes: ProcessGroup) -> Callable[[dict[str, Any]], None]:
    """Writes a record to the metrics and to TensorBoard, in the first process."""
    if run is None or not processes.is_first:
        return lambda record: None
    board = scalar_writer(run.folder, start)

    def log(record: dict[str, Any]) -> None:
        run.log(record)
        board(record)

    return log


def _seeds(config: PolicyTraining, step: int, prompts: Int[Tensor, "p"]) -> Int[Tensor, "B"]:
    """A seed for every rollout of a step, whichever process draws it."""
    row = (prompts[:, None] * config.group + torch.arange(config.group)).flatten()
    return (counter_uniform(config.seed, step, row) * 2**24).long() + step * 2**24
