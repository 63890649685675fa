"""Options of a policy training, and which of them go together.

The defaults are Self-Aware Scheduling. The rivals are other values of the same options:

=====================================  ================================================================================
terminal-reward GRPO                   ``reward="terminal"``, ``advantage="trajectory"``
UPO (Hong et al.)                      the same with ``normalise=False``, ``beta`` > 0, ``reference="confidence"``
Jazbec et al.                          ``objective="bernoulli"``, ``reward="speed"``
adaptive order policies                ``advantage="all_action"``, ``future=0``, ``behaviour="teacher"``, ``teacher="random"``
Where-to-Unmask                        ``objective="ranking"``
LO-ARM                                 ``objective="variational"``
DCoLT / LLaDOU                         ``reward="terminal"`` with ``decoding.steps``: Plackett–Luce draws of several positions
=====================================  ================================================================================

:mod:`~unmask.training.policy.methods` turns these values into the objects that draw, reward and learn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from unmask.decoding.options import Decoding
from unmask.runs.names import did_you_mean
from unmask.schedulers.features import BASES

FREE = ("terminal", "share", "speed")
"""Rewards of free-running rollouts: the tokens are the denoiser's own."""
HEADS = ("doubt", "pace")
"""Objectives of heads, which answer a question about each token instead of ordering them."""
CHOICES = {
    "objective": ("grpo", "regression", "tokens", "bernoulli", "ranking", "imitation", "variational", *HEADS),
    "advantage": ("trajectory", "reward_to_go", "all_action", "critic"),
    "reward": ("self_aware", "hybrid", *FREE),
    "reference": ("policy", "confidence"),
    "behaviour": ("policy", "teacher"),
    "select": ("accuracy", "nll", "auto"),
    "label": ("price", "right", "tokens"),
    "mixed_precision": ("no", "bf16"),
}
COUNTS = (
    "steps",
    "prompts",
    "group",
    "minibatches",
    "states",
    "micro",
    "at_once",
    "validate",
    "validate_every",
    "save_every",
)


@dataclass(frozen=True)
class PolicyTraining:
    """How a policy is trained.

    Attributes:
        steps: Training steps.
        prompts: Problems per step.
        group: Orders drawn for each problem.
        mu: Passes over the decisions of a step; 0.5 takes a random half of them.
        minibatches: At least about so many a step: more passes than ``mu`` where a step has few decisions.
        replay: Steps before this one whose decisions passes are also over: as many are taken as without, a random part of all of
            them. A forward of the denoiser then serves several steps, and ratios to what the policy was then are clipped.
        hardest: The share of the decisions that passes are over: those at which the policy was likeliest to be wrong.
        states: Decisions per minibatch.
        micro: Gradients are accumulated from so many decisions at a time; all at once if None. What fits the cache is fastest.
        decoding: The block and the steps of the rollouts, for semi-autoregressive and parallel decoding.
        lr: The learning rate, after the warm-up; it falls along a cosine to a tenth.
        warmup: The share of the training in which the learning rate rises.
        weight_decay: Of AdamW.
        ema: Decay of the averaged weights, which are validated and kept (0: no average).
        clip: The largest norm of a gradient.
        mixed_precision: no, or bf16 for the policy's forwards where the device has it.
        objective: grpo (clipped, Eq. grpo_objective); regression (the score, read as a logit, is fitted to p(x*_i | s) at every
            hidden position of every visited state, so that the greedy policy reveals what it expects to be right); tokens (a policy
            of kind opinion learns the true tokens of the hidden positions); bernoulli (a coin per position); ranking (by the margin
            of the truth); imitation (of the teacher); variational (LO-ARM's posterior); or a head's, by cross-entropy on the
            teacher's free-running decodings: doubt (is a revealed token wrong?), pace (is the likeliest token final?).
        settled: Below 1, with objective pace, a token also counts as final if it is at least so many times as likely as the one
            that is revealed in its place: of several ways to write the same, which one comes is not worth waiting for.
        rollout_temperature: Replaces the policy's temperature while orders are drawn, for objectives that do not weigh the draw. A
            low one visits the states that greedy decoding visits, where the wrong decisions are.
        advantage: trajectory (the paper's), reward_to_go, all_action or critic.
        normalise: Divide advantages by the standard deviation of their group.
        reward: self_aware (dense), terminal (0/1), share (of correct tokens), speed (0/1 times a power of the share of steps
            saved), or hybrid (dense plus 0/1).
        hybrid: Weight of the 0/1 part of reward hybrid.
        alpha: The power in reward speed.
        future: Weight of the sampled future in advantage all_action.
        decay: Discount of later steps in advantage critic.
        epsilon: The ratio of probabilities is clipped at 1 ± epsilon.
        beta: Weight of the KL divergence to the reference.
        reference: confidence, or policy, the initial policy.
        outer: Steps after which the reference is updated (0: never).
        entropy: Weight of an entropy bonus.
        correctness: Weight of the regression that is added to another objective.
        label: What the regression fits scores to: price, p(x*_i | s), with relative min(1, p(x*_i | s) / p(x*_i | x*_∖i)); right, 1
            where the truth is the likeliest token, else 0; or tokens, for policies with a vector for every token: the score that
            *each* token of a position would have as the likeliest one, to whether it is the truth.
        std_floor: The least standard deviation that normalise divides by.
        reward_floor: The least reward of a position.
        relative: Subtract log p(x_i | x_∖i) from a dense reward, at one more forward per position and prompt. Returns change by a
            constant, and tokens that no context determines do not count against a position.
        relative_above: Choose relative before the first step, where more than this share of the tokens is less likely than not
            although everything else is known (1: never choose).
        behaviour: Rollouts are drawn by the policy, or by the teacher.
        teacher: A scheduler to imitate or to draw rollouts with.
        warm_start: Steps of imitation at the beginning.
        select: Keep the policy with the best validation accuracy, or the best nll: the likelihood of the answers along its greedy
            orders, for tasks where no answer is ever exactly right; auto finds out before the first step which of the two it is.
        race: Heuristics that are validated before the first step. If no step is better than the best of them, that one is kept:
            the policy without its network.
        at_once: Canvases decoded together, at least the orders of one prompt. It bounds memory and changes nothing else.
        validate: Held-out problems to decode.
        validate_every: Steps between validations.
        patience: The training ends after so many validations in a row that are not better than the best one (0: never).
        save_every: Steps between checkpoints.
        seed: Seeds weights, orders and minibatches.
    """

    steps: int = 200
    prompts: int = 64
    group: int = 1
    mu: int | float = 1
    minibatches: int = 1
    replay: int = 0
    hardest: float = 1.0
    states: int = 256
    micro: int | None = None
    decoding: Decoding = Decoding()  # noqa: RUF009
    lr: float = 3e-3
    warmup: float = 0.05
    weight_decay: float = 1e-4
    ema: float = 0.0
    clip: float = 1.0
    mixed_precision: str = "no"
    objective: str = "grpo"
    settled: float = 1.0
    rollout_temperature: float | None = None
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
    label: str = "price"
    std_floor: float = 0.1
    reward_floor: float = -10.0
    relative: bool = False
    relative_above: float = 1.0
    behaviour: str = "policy"
    teacher: str = ""
    warm_start: int = 0
    select: str = "accuracy"
    race: tuple[str, ...] = ()
    at_once: int | None = None
    validate: int = 200
    validate_every: int = 20
    patience: int = 0
    save_every: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name, value in vars(self).items():
            if isinstance(value, float) and math.isnan(value):
                raise ValueError(f"{name} must be a number, got NaN")
        for name, right, expected in (
            ("lr", 0 < self.lr < math.inf, "a positive number"),
            ("mu", 0 < self.mu < math.inf, "a positive number of passes"),
            ("replay", self.replay >= 0, "0 or more steps"),
            ("patience", self.patience >= 0, "0 or more validations"),
            ("hardest", 0 < self.hardest <= 1, "a share in (0, 1]"),
            ("ema", 0 <= self.ema < 1, "in [0, 1)"),
            ("decay", 0 <= self.decay <= 1, "in 0 .. 1"),
            ("relative_above", 0 <= self.relative_above <= 1, "a share in 0 .. 1"),
            ("rollout_temperature", 0 <= (self.rollout_temperature or 0.0) < math.inf, "a number, 0 or more"),
            ("seed", 0 <= self.seed < 2**31, "in 0 .. 2**31 - 1"),
        ):
            if not right:
                raise ValueError(f"{name} must be {expected}, got {getattr(self, name)}")
        chosen = [(name, getattr(self, name), known) for name, known in CHOICES.items()]
        for name, value, known in (*chosen, *(("race", name, tuple(BASES)) for name in self.race)):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}{did_you_mean(value, known)}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        for excluded, message in (*self._reward_rules(), *self._label_rules(), *self._rollout_rules()):
            if excluded:
                raise ValueError(message)

    def _reward_rules(self) -> Iterator[tuple[bool, str]]:
        """Whether an objective, a reward and an advantage exclude each other, and what to use instead."""
        got = f"got objective {self.objective!r}, reward {self.reward!r}, advantage {self.advantage!r}"
        yield (
            self.prices_all and self.free,
            "all_action prices every candidate, which a terminal reward cannot: use reward_to_go or trajectory",
        )
        yield (
            self.group == 1 and self.compares_rollouts,
            f"the rollouts of a group are compared: group must be at least 2, {got}",
        )
        yield (
            self.advantage == "critic" and (self.free or self.objective != "grpo"),
            f"advantage critic predicts the truth's price: use objective grpo and reward self_aware or hybrid, {got}",
        )
        yield (
            self.relative and (self.free or self.objective in ("tokens", "ranking", "imitation")),
            f"relative rewards are dense: use reward self_aware or hybrid and an objective with rewards, {got}",
        )
        yield (
            self.reward == "speed" and self.objective != "bernoulli",
            f"reward speed pays for fewer steps, which only objective bernoulli can choose, {got}",
        )
        yield (
            self.objective in ("regression", "tokens", "ranking", "variational") and self.free,
            f"objective {self.objective} learns from the truth: reward must be self_aware, {got}",
        )

    def _label_rules(self) -> Iterator[tuple[bool, str]]:
        """The same of what scores are fitted to."""
        got = f"got objective {self.objective!r}, label {self.label!r}"
        yield (
            self.label == "right" and (self.relative or not self.regression_weight),
            f"label right is of the regression, without relative prices: use objective regression or correctness, {got}",
        )
        yield (
            not 0 < self.settled <= 1 or (self.settled < 1 and self.objective != "pace"),
            f"settled is a share in (0, 1], below 1 with objective pace alone, got {self.settled}, {got}",
        )
        yield (
            self.label == "tokens" and (self.relative or self.objective != "regression"),
            f"label tokens is of the regression, without relative prices: use objective regression, {got}",
        )
        yield (
            self.objective == "regression" and self.correctness > 0,
            f"objective regression is what correctness adds to another one: leave correctness at 0, {got}",
        )

    def _rollout_rules(self) -> Iterator[tuple[bool, str]]:
        """The same of the options that say how orders are drawn."""
        coins = self.objective == "bernoulli"
        yield (
            coins and bool(self.advantage == "all_action" or self.correctness or not self.free or self.decoding.steps),
            "objective bernoulli draws how many it reveals: use advantage trajectory or reward_to_go and reward "
            f"{', '.join(FREE)}, without decoding.steps and correctness",
        )
        uses_teacher = self.behaviour == "teacher" or self.objective in ("imitation", *HEADS) or self.warm_start > 0
        yield (
            uses_teacher != bool(self.teacher),
            "a teacher is for warm_start, imitation, heads and behaviour='teacher' and required by them, "
            f"got teacher {self.teacher!r}, warm_start {self.warm_start}, behaviour {self.behaviour!r}",
        )
        off_policy = self.objective in ("regression", "tokens", "imitation", "ranking") or (
            self.prices_all and self.future == 0
        )
        yield (
            self.replay > 0 and (self.warm_start > 0 or self.objective == "variational"),
            "decisions of earlier steps were drawn by another policy: replay goes with one method for all steps (warm_start = 0) "
            f"and objectives other than variational, got warm_start {self.warm_start}, objective {self.objective!r}",
        )
        yield (
            self.behaviour == "teacher" and not off_policy,
            "a teacher's rollouts do not show the policy's own future: behaviour='teacher' goes with regression, "
            "tokens, imitation, ranking, or all_action with future = 0",
        )
        yield (
            self.rollout_temperature is not None and not off_policy,
            f"objective {self.objective} weighs the draw by the policy's own temperature: rollout_temperature goes with "
            "regression, tokens, ranking, or all_action with future = 0",
        )
        yield (
            self.decoding != _rollout_options(self.decoding),
            "rollouts use block, steps, stop_at_end, share and compile of decoding: leave its other options at their defaults",
        )

    @property
    def free(self) -> bool:
        """Do rollouts reveal the denoiser's own tokens instead of the truth?"""
        return self.reward in FREE

    @property
    def prices_all(self) -> bool:
        """Does the objective credit every candidate of a state, not only the one drawn?"""
        return self.objective == "grpo" and self.advantage == "all_action"

    @property
    def compares_rollouts(self) -> bool:
        """Does a decision's advantage depend on the other rollouts of its group?"""
        judged = self.objective not in ("regression", "tokens", "ranking", "imitation", *HEADS)
        return judged and not self.prices_all and self.advantage != "critic"

    @property
    def regression_weight(self) -> float:
        """Of the cross-entropy between scores and the truth's prices."""
        return 1.0 if self.objective == "regression" else self.correctness

    @property
    def purpose(self) -> str:
        """What is learned: an order, or a head."""
        return self.objective if self.objective in HEADS else "order"

    def objective_at(self, step: int) -> str:
        return "imitation" if step < self.warm_start else self.objective

    def lr_at(self, progress: float) -> float:
        """Linear warm-up, then a cosine to a tenth; ``progress`` in [0, 1]."""
        if progress < self.warmup:
            return self.lr * (0.05 + 0.95 * progress / self.warmup)
        annealed = (progress - self.warmup) / max(1e-9, 1 - self.warmup)
        return self.lr * (0.55 + 0.45 * math.cos(math.pi * annealed))


def _rollout_options(decoding: Decoding) -> Decoding:
    """The options of ``decoding`` that a rollout uses; the others at their defaults."""
    used = ("block", "steps", "stop_at_end", "share", "compile")
    return Decoding(**{name: getattr(decoding, name) for name in used})
