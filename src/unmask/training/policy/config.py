"""How an order is learned: the options of a training, and which of them go together.

The defaults are Self-Aware Scheduling. The rivals are other values of the same options:

=====================================  ================================================================================
terminal-reward GRPO                   ``reward="terminal"``, ``advantage="trajectory"``
UPO (Hong et al.)                      the same with ``normalise=False``, ``beta`` > 0, ``reference="confidence"``
Jazbec et al.                          ``objective="bernoulli"``, ``reward="speed"``
adaptive order policies                ``advantage="all_action"``, ``future=0``, ``behaviour="teacher"``, ``teacher="random"``
Where-to-Unmask                        ``objective="ranking"``
LO-ARM                                 ``objective="variational"``
DCoLT / LLaDOU                         ``reward="terminal"`` with ``budget`` set: Plackett–Luce draws of several positions
=====================================  ================================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ADVANTAGES = ("trajectory", "reward_to_go", "all_action", "critic")
REWARDS = ("self_aware", "terminal", "share", "speed", "hybrid")
FREE = ("terminal", "share", "speed")
"""Rewards of free-running rollouts: the tokens are the denoiser's own."""
OBJECTIVES = ("grpo", "bernoulli", "ranking", "imitation", "variational")


@dataclass(frozen=True)
class PolicyTraining:
    """How the order is learned.

    ``prompts`` P and ``group`` G rollouts per step; ``mu`` passes over them in minibatches of ``states`` decisions, accumulated
    from ``micro`` at a time (None: all at once; what fits the cache is fastest). ``block`` and ``budget`` make rollouts
    semi-autoregressive and parallel: blocks of so many positions, so many denoiser steps for the whole answer.

    ``objective``: grpo (clipped, Eq. grpo_objective), bernoulli (a coin per position), ranking (of the truth's margin), imitation
    (of the teacher), variational (LO-ARM's posterior order). ``advantage``: trajectory (the paper's), reward_to_go, all_action
    or critic; ``future`` weighs the sampled future in all_action; ``decay`` is how much of the next step's credit a step of critic
    has, 1 for all that follows; ``normalise`` divides by the group's spread, at least ``std_floor``.

    ``reward``: self_aware (dense), terminal (0/1), share (of right tokens), speed (0/1, times the share of steps saved to the
    power ``alpha``), or hybrid (dense plus ``hybrid`` times 0/1). ``reward_floor`` bounds a single step's reward from below.
    ``relative`` compares a dense reward with what the position would cost if all others were known, log p(x_i|s) − log p(x_i|x_∖i),
    at one more forward per position and prompt: returns stay the same but for a constant, and what nobody can know (how
    something is worded) does not count against a choice.

    ``epsilon`` clips the ratio; ``beta`` weighs the KL to the ``reference``: "confidence", or "policy", the start, renewed every
    ``outer`` steps if that is not 0; ``entropy`` a bonus. ``correctness`` adds dense supervision: the score, read as a logit, is
    regressed on p_θ(x*_i | s) for every hidden position of every visited state; with ``relative`` on p_θ(x*_i | s) over
    p_θ(x*_i | x*_∖i), at most 1: how much of what can be known of it is known already.

    ``teacher`` names a scheduler that is imitated for the first ``warm_start`` steps, or that with ``behaviour="teacher"`` draws
    all rollouts. Every ``validate_every`` steps the policy decodes ``validate`` held-out problems freely; the best one is kept.
    Where no answer is ever right as a whole, ``select="nll"`` prices them instead, along the policy's greedy paths, and keeps
    the policy that makes them likeliest.

    ``at_once`` canvases are decoded together (at least the orders of one prompt): it bounds memory and changes nothing else.
    """

    steps: int = 200
    prompts: int = 64
    group: int = 1
    mu: int = 1
    states: int = 256
    micro: int | None = None
    block: int | None = None
    budget: int | None = None
    lr: float = 3e-3
    warmup: float = 0.05
    weight_decay: float = 1e-4
    clip: float = 1.0
    mixed_precision: str = "no"
    objective: str = "grpo"
    advantage: str = "all_action"
    normalise: bool = True
    reward: str = "self_aware"
    hybrid: float = 1.0
    alpha: float = 1.0
    future: float = 1.0
    decay: float = 1.0
    epsilon: float = 0.2
    beta: float = 0.0
    reference: str = "policy"
    outer: int = 0
    entropy: float = 0.0
    correctness: float = 0.0
    std_floor: float = 0.1
    reward_floor: float = -10.0
    relative: bool = False
    behaviour: str = "policy"
    teacher: str = ""
    warm_start: int = 0
    select: str = "accuracy"
    at_once: int | None = None
    validate: int = 200
    validate_every: int = 20
    save_every: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("steps", "prompts", "group", "mu", "states", "validate", "validate_every", "save_every")
        for name in (*counts, "micro", "block", "budget", "at_once"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be a positive number, got {self.lr}")
        for name, value in vars(self).items():
            if isinstance(value, float) and math.isnan(value):
                raise ValueError(f"{name} must be a number, got NaN")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {self.seed}")
        for name, known in (
            ("objective", OBJECTIVES),
            ("advantage", ADVANTAGES),
            ("reward", REWARDS),
            ("reference", ("policy", "confidence")),
            ("behaviour", ("policy", "teacher")),
            ("select", ("accuracy", "nll")),
            ("mixed_precision", ("no", "bf16")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        self._refuse_what_does_not_go_together()

    def _refuse_what_does_not_go_together(self) -> None:
        if self.prices_all and self.free:
            raise ValueError(
                "all_action prices every candidate, which a terminal reward cannot: use reward_to_go or trajectory"
            )
        alone = self.prices_all or self.advantage == "critic"
        if self.group == 1 and self.objective in ("grpo", "bernoulli", "variational") and not alone:
            name = f"advantage {self.advantage!r}" if self.objective == "grpo" else f"objective {self.objective!r}"
            raise ValueError(f"{name} compares the rollouts of a group: group must be at least 2")
        if self.advantage == "critic" and (self.free or self.objective != "grpo"):
            raise ValueError(
                "advantage 'critic' expects what the denoiser says of the truth: it goes with objective grpo and reward "
                f"self_aware or hybrid, got {self.objective!r} and {self.reward!r}"
            )
        if self.relative and (self.free or self.objective in ("ranking", "imitation")):
            raise ValueError(
                "relative rewards are dense ones: they go with reward self_aware or hybrid and an objective that is paid by them, "
                f"got {self.reward!r} and {self.objective!r}"
            )
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must be in 0 .. 1, got {self.decay}")
        dense = self.advantage == "all_action" or self.correctness or not self.free
        if self.objective == "bernoulli" and (dense or self.budget):
            raise ValueError(
                "objective 'bernoulli' draws how many it reveals: it goes with advantage trajectory or reward_to_go and reward "
                f"{', '.join(FREE)}, without budget and correctness"
            )
        if self.reward == "speed" and self.objective != "bernoulli":
            raise ValueError("reward 'speed' pays for fewer steps, which only objective 'bernoulli' can choose")
        if self.objective in ("ranking", "variational") and self.free:
            raise ValueError(f"objective {self.objective!r} needs the truth's prices: reward must be self_aware")
        taught = self.behaviour == "teacher" or self.objective == "imitation" or self.warm_start > 0
        if taught != bool(self.teacher):
            raise ValueError(
                "a teacher is needed for warm_start, imitation and behaviour='teacher', and for nothing else: "
                f"got teacher = {self.teacher!r}, warm_start = {self.warm_start}, behaviour = {self.behaviour!r}"
            )
        if self.behaviour == "teacher":
            myopic = self.prices_all and self.future == 0
            if self.objective not in ("imitation", "ranking") and not myopic:
                raise ValueError(
                    "a teacher's rollouts say nothing of the policy's own future: behaviour='teacher' goes with imitation, "
                    "ranking, or all_action with future = 0"
                )

    @property
    def free(self) -> bool:
        """Do rollouts decode freely, instead of revealing the truth?"""
        return self.reward in FREE

    @property
    def prices_all(self) -> bool:
        """Is every candidate of a state credited, whichever was drawn?"""
        return self.objective == "grpo" and self.advantage == "all_action"

    def objective_at(self, step: int) -> str:
        return "imitation" if step < self.warm_start else self.objective

    def taught_at(self, step: int) -> bool:
        """Does the teacher draw the rollouts of this step?"""
        return self.objective_at(step) == "imitation" or self.behaviour == "teacher"

    def lr_at(self, progress: float) -> float:
        """Linear warm-up, then a cosine to a tenth; ``progress`` in [0, 1]."""
        if progress < self.warmup:
            return self.lr * (0.05 + 0.95 * progress / self.warmup)
        turn = (progress - self.warmup) / max(1e-9, 1 - self.warmup)
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * turn))
