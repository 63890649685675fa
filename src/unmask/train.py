"""Self-Aware Scheduling: learn the order for a frozen denoiser (Alg. grpo_order_short).

A step: sample ``G`` teacher-forced orders for each of ``P`` prompts from the current policy, price every candidate of every state
with the same forwards, turn returns into advantages, and update the policy on the recorded observations, ``mu`` times over. The
denoiser never runs again: its cost is at most one forward per trajectory step, and equal states of a batch share one.

A step is a function of the seed, its number and the weights it starts from. A run that was killed resumes from its last checkpoint
and ends with the same weights as one that was not.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from unmask import grpo, reward
from unmask.decode import unmask
from unmask.live import Regime
from unmask.policies.policy import OrderPolicy
from unmask.protocols import Canvas, Denoiser, counter_uniform
from unmask.runs import Run, flatten_optimizer, restore_optimizer

REWARDS = ("self_aware", "terminal", "share", "hybrid")


@dataclass(frozen=True)
class PolicyTraining:
    """How the order is learned.

    ``prompts`` P and ``group`` G rollouts per step; ``mu`` passes over them in minibatches of ``states``. ``advantage``: trajectory
    (the paper's), reward_to_go or all_action; ``future`` weighs the sampled future in all_action. ``reward``: self_aware (dense),
    terminal (0/1), share, or hybrid (their sum, ``hybrid`` the weight of the terminal part). ``epsilon`` clips the ratio; ``beta``
    is the KL to the reference policy, renewed every ``outer`` steps (0: the start); ``entropy`` a bonus. ``correctness`` adds dense
    supervision: the score, read as a logit, is regressed on p_θ(x*_i | s) for every hidden position of every visited state.
    ``reward_floor`` bounds a single step's reward from below. ``validate_every`` steps the policy decodes ``validate`` held-out
    problems freely; the best one is kept.
    """

    steps: int = 200
    prompts: int = 64
    group: int = 1
    mu: int = 1
    states: int = 256
    lr: float = 3e-3
    warmup: float = 0.05
    weight_decay: float = 1e-4
    clip: float = 1.0
    advantage: str = "all_action"
    reward: str = "self_aware"
    hybrid: float = 1.0
    future: float = 1.0
    epsilon: float = 0.2
    beta: float = 0.0
    outer: int = 0
    entropy: float = 0.0
    correctness: float = 0.0
    std_floor: float = 0.1
    reward_floor: float = -10.0
    validate: int = 200
    validate_every: int = 20
    save_every: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "prompts", "group", "mu", "states", "validate", "validate_every", "save_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be a positive number, got {self.lr}")
        if self.advantage not in grpo.ADVANTAGES:
            raise ValueError(f"advantage must be one of {', '.join(grpo.ADVANTAGES)}, got {self.advantage!r}")
        if self.reward not in REWARDS:
            raise ValueError(f"reward must be one of {', '.join(REWARDS)}, got {self.reward!r}")
        if self.advantage == "all_action" and self.reward in ("terminal", "share"):
            raise ValueError(
                "all_action prices every candidate, which a terminal reward cannot: use reward_to_go or trajectory"
            )
        if self.group == 1 and self.advantage != "all_action":
            raise ValueError(f"advantage {self.advantage!r} compares the rollouts of a group: group must be at least 2")

    def lr_at(self, progress: float) -> float:
        """Linear warm-up, then a cosine to a tenth; ``progress`` in [0, 1]."""
        if progress < self.warmup:
            return self.lr * (0.05 + 0.95 * progress / self.warmup)
        turn = (progress - self.warmup) / max(1e-9, 1 - self.warmup)
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * turn))


@dataclass(frozen=True)
class Rollout:
    """The decisions of one step's rollouts, flat ``[S]``: states in which there was something to decide, and what came of it."""

    seen: dict[str, Tensor]
    chosen: Int[Tensor, "S"]
    old_logv: Float[Tensor, "S"]
    advantage: Float[Tensor, "S"]
    candidate_reward: Float[Tensor, "S L"]
    live: Bool[Tensor, "S"]
    summary: dict[str, float]

    def __len__(self) -> int:
        return len(self.chosen)


@torch.no_grad()
def collect(
    denoiser: Denoiser, policy: OrderPolicy, canvas: Canvas, config: PolicyTraining, seeds: Int[Tensor, "B"]
) -> Rollout:
    """Sample a group of orders for each canvas and credit every decision."""
    tokens, target, region, attention, candidates = (
        None if x is None else x.repeat_interleave(config.group, dim=0)
        for x in (canvas.tokens, canvas.target, canvas.region, canvas.attention, canvas.candidates)
    )
    assert tokens is not None and target is not None
    free = config.reward in ("terminal", "share")
    path = unmask(
        denoiser,
        policy,
        tokens,
        Regime(order_temperature=policy.config.temperature),
        target=None if free else target,
        reference=target,
        region=region,
        attention=attention,
        candidates=candidates,
        seeds=seeds,
        observe=policy.observe,
        share=config.group > 1,
    )
    states = path.states
    assert states is not None and states.target_logp is not None
    candidate_reward = states.target_logp.clamp(min=config.reward_floor)
    if free:
        values = reward.terminal(path, target, tokens == denoiser.mask_id, share=config.reward == "share")
    else:
        values = candidate_reward.masked_fill(~states.revealed, 0.0).sum(1)
        if config.reward == "hybrid":
            # Teacher forcing reveals the truth: right as a whole means that the likeliest token was right at every step.
            wrong = (states.revealed & (states.best != target[states.row])).any(1).float()
            missed = reward.timeline(wrong, states.row, states.step, len(tokens)).sum(1)
            last = path.step.amax(1)[states.row] == states.step
            values = values + config.hybrid * last * (missed == 0).float()[states.row]
    table = reward.timeline(values, states.row, states.step, len(tokens))
    credit, live = grpo.advantages(table, config.group, config.advantage, config.std_floor)
    if config.advantage == "all_action":
        live = torch.ones_like(live)
    decided = states.eligible.sum(1) > 1
    chosen = states.revealed.int().argmax(1)
    logv = policy.logv(states.scores, states.observed)
    right = states.revealed & (states.best == target[states.row])
    summary = {
        "return": reward.self_aware(states).sum().item() / len(tokens),
        "wrong_reveals": (len(states) - right.any(1).sum().item()) / len(tokens),
        "entropy": grpo.entropy(logv)[decided].mean().item(),
        "agreement": (states.scores.argmax(1) == states.confidence.argmax(1))[decided].float().mean().item(),
        "dead_groups": 1 - live.float().mean().item(),
        "forwards_per_step": path.denoiser_calls / len(states),
        "trajectory_steps": float(len(states)),
    }
    return Rollout(
        seen={name: value[decided] for name, value in states.observed.items()},
        chosen=chosen[decided],
        old_logv=logv.gather(1, chosen[:, None])[decided, 0],
        advantage=credit[states.row, states.step][decided],
        candidate_reward=candidate_reward[decided],
        live=live[states.row][decided],
        summary=summary,
    )


def policy_loss(
    policy: OrderPolicy, rollout: Rollout, rows: Int[Tensor, "s"], config: PolicyTraining, reference: OrderPolicy | None
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """The loss of a minibatch of decisions, −J_GRPO (Eq. grpo_objective) and its companions."""
    seen = {name: value[rows] for name, value in rollout.seen.items()}
    scores = policy.score(seen)
    logv = policy.logv(scores, seen)
    taken = logv.gather(1, rollout.chosen[rows][:, None])[:, 0]
    weight = rollout.live[rows].float()
    objective, clipped = grpo.clipped_objective(taken, rollout.old_logv[rows], rollout.advantage[rows], config.epsilon)
    if config.advantage == "all_action":
        objective = config.future * objective + grpo.expected_reward(logv, rollout.candidate_reward[rows])
    loss = -(objective * weight).sum() / weight.sum().clamp(min=1)
    if config.entropy:
        loss = loss - config.entropy * grpo.entropy(logv).mean()
    if reference is not None and config.beta:
        with torch.no_grad():
            anchor = reference.logv(reference.score(seen), seen)
        loss = loss + config.beta * grpo.categorical_kl(logv, anchor).mean()
    if config.correctness:
        hidden = seen["hidden"]
        truth = rollout.candidate_reward[rows][hidden].exp()
        loss = loss + config.correctness * F.binary_cross_entropy_with_logits(scores[hidden], truth)
    return loss, {"loss": loss.item(), "clip_fraction": clipped.mean().item()}


def train_policy(
    denoiser: Denoiser,
    policy: OrderPolicy,
    source: Callable[[int, int], Canvas],
    config: PolicyTraining,
    validation: Canvas | None = None,
    run: Run | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[dict[str, Any]]:
    """Train in place, yielding a record per step; at the end the policy holds the weights of its best validation.

    With a run: log, checkpoint, resume, and write the best policy to ``policy/``. ``stop`` is asked after every step; when it
    answers True the run is saved and left, to be resumed.
    """
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=config.lr, weight_decay=config.weight_decay, betas=(0.9, 0.98)
    )
    reference = copy.deepcopy(policy).requires_grad_(False) if config.beta else None
    best = {name: p.detach().clone() for name, p in policy.named_parameters()}
    trainer = _Trainer(policy, optimizer, reference, best)
    start, best_accuracy, calls = trainer.restore(run)
    for step in range(start, config.steps):
        began, before = time.perf_counter(), denoiser.forwarded
        if reference is not None and config.outer and step % config.outer == 0:
            reference.load_state_dict(policy.state_dict())
        seeds = (
            counter_uniform(config.seed, step, torch.arange(config.prompts * config.group)) * 2**24
        ).long() + step * 2**24
        rollout = collect(denoiser, policy, source(step, config.prompts), config, seeds)
        stats = _update(policy, optimizer, rollout, config, reference, step)
        calls += denoiser.forwarded - before
        record: dict[str, Any] = {"step": step + 1, **rollout.summary, **stats, "denoiser_calls": calls}
        done = step + 1
        if validation is not None and (done % config.validate_every == 0 or done == config.steps):
            record["accuracy"] = free_running_accuracy(denoiser, policy, validation)
            if record["accuracy"] > best_accuracy:
                best_accuracy = record["accuracy"]
                for name, p in policy.named_parameters():
                    best[name].copy_(p.detach())
        record["seconds"] = time.perf_counter() - began
        leaving = stop()
        if run is not None:
            run.log(record)
            if leaving or done % config.save_every == 0 or done == config.steps:
                trainer.save(run, done, best_accuracy, calls)
        yield record
        if leaving:
            return
    if validation is not None:
        policy.load_state_dict(best, strict=False)
    if run is not None:
        policy.save_pretrained(run.folder / "policy")


def free_running_accuracy(denoiser: Denoiser, policy: OrderPolicy, canvas: Canvas, rows_at_once: int = 64) -> float:
    """The share of held-out problems solved by greedy free-running decoding."""
    right = 0
    for start in range(0, len(canvas.tokens), rows_at_once):
        part = slice(start, start + rows_at_once)
        region, attention, candidates = (
            None if x is None else x[part] for x in (canvas.region, canvas.attention, canvas.candidates)
        )
        path = unmask(
            denoiser,
            policy,
            canvas.tokens[part],
            region=region,
            attention=attention,
            candidates=candidates,
            record=False,
        )
        right += int((path.tokens == canvas.target[part]).all(1).sum())
    return right / len(canvas.tokens)


def _update(
    policy: OrderPolicy,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    config: PolicyTraining,
    reference: OrderPolicy | None,
    step: int,
) -> dict[str, float]:
    """``mu`` passes over the decisions in shuffled minibatches."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    batches = max(1, len(rollout) // config.states)
    collected: list[dict[str, float]] = []
    for turn in range(config.mu):
        for k, rows in enumerate(torch.randperm(len(rollout), generator=generator).chunk(batches)):
            share = (turn * batches + k) / (config.mu * batches)
            for group in optimizer.param_groups:
                group["lr"] = config.lr_at((step + share) / config.steps)
            loss, stats = policy_loss(policy, rollout, rows, config, reference)
            optimizer.zero_grad()
            loss.backward()
            stats["gradient"] = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), config.clip))
            optimizer.step()
            collected.append(stats)
    return {name: sum(stats[name] for stats in collected) / len(collected) for name in collected[0]}


@dataclass(frozen=True)
class _Trainer:
    """What a checkpoint holds."""

    policy: OrderPolicy
    optimizer: torch.optim.Optimizer
    reference: OrderPolicy | None
    best: dict[str, Tensor]

    def _parts(self) -> dict[str, Tensor]:
        parts = {f"policy.{name}": p.detach() for name, p in self.policy.named_parameters()}
        parts |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        if self.reference is not None:
            parts |= {f"reference.{name}": p for name, p in self.reference.named_parameters()}
        return parts

    def save(self, run: Run, step: int, best_accuracy: float, calls: int) -> None:
        tensors, state = flatten_optimizer(self.optimizer)
        run.save(step, tensors | self._parts(), {"optimizer": state, "best_accuracy": best_accuracy, "calls": calls})

    def restore(self, run: Run | None) -> tuple[int, float, int]:
        checkpoint = run.load_latest() if run is not None else None
        if run is None or checkpoint is None:
            if run is not None:
                run.rewind(None)
            return 0, -1.0, 0
        with torch.no_grad():
            for name, tensor in self._parts().items():
                tensor.copy_(checkpoint.tensors[name])
        restore_optimizer(self.optimizer, checkpoint.tensors, checkpoint.state["optimizer"])
        run.rewind(checkpoint.step)
        return checkpoint.step, checkpoint.state["best_accuracy"], checkpoint.state["calls"]
