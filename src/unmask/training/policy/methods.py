"""A method is a sampler, a reward and an objective: :func:`choose_method` finds the ones that a configuration names.

To add a rival, write the class that differs (``samplers.py``, ``rewards.py`` or ``objectives.py``) and name it here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from unmask.decoding.protocols import Judge, Scheduler
from unmask.schedulers.policy import OrderPolicy
from unmask.schedulers.posterior import Posterior
from unmask.training.policy.config import PolicyTraining
from unmask.training.policy.objectives import Objective, build_objective
from unmask.training.policy.rewards import Reward, build_reward
from unmask.training.policy.samplers import CoinSampler, PolicySampler, PosteriorSampler, TeacherSampler


@dataclass(frozen=True)
class Method:
    """``compares_rollouts``: groups without spread carry no loss. ``relative``: rewards are relative to leave-one-out prices."""

    sampler: PolicySampler
    reward: Reward
    objective: Objective
    compares_rollouts: bool
    relative: bool


@dataclass(frozen=True)
class Helpers:
    """What some methods use besides the policy: a ``teacher`` that draws, LO-ARM's ``posterior``, a ``judge`` of answers."""

    teacher: Scheduler | None = None
    posterior: Posterior | None = None
    judge: Judge | None = None


def build_posterior(config: PolicyTraining, device: torch.device) -> Posterior | None:
    """LO-ARM's posterior with its own seed; None for other objectives."""
    if config.objective != "variational":
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return Posterior(floor=config.reward_floor).to(device)


def choose_method(config: PolicyTraining, policy: OrderPolicy, step: int = 0, helpers: Helpers | None = None) -> Method:
    """The method of a training step. Where a teacher would draw but none is given, the policy draws."""
    helpers = helpers or Helpers()
    name = config.objective_at(step)
    imitates = name == "imitation"
    sampler = PolicySampler(policy)
    if helpers.teacher is not None and (imitates or config.behaviour == "teacher"):
        sampler = TeacherSampler(policy, helpers.teacher)
    elif name == "bernoulli":
        sampler = CoinSampler(policy)
    elif name == "variational" and helpers.posterior is not None:
        sampler = PosteriorSampler(policy, helpers.posterior)
    return Method(
        sampler,
        build_reward(config, helpers.judge),
        build_objective(config, name, helpers.posterior),
        compares_rollouts=config.compares_rollouts and not imitates,
        relative=config.relative and not (imitates and config.behaviour == "policy"),
    )
