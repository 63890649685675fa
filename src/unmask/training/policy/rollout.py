"""Rollouts: orders drawn for a batch of canvases, and the credit of every decision, from the rollout's own forwards.

``B = P·G`` rows, the ``G`` of a prompt next to each other; ``Z`` states; ``S`` decisions; ``K`` reveals of the longest row. A
decision is one draw: in a state that reveals a block, the first is from all candidates, the next from what is left of them, so
the log-probability of a block is Plackett–Luce's and R_par falls apart into its positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.draws import BERNOULLI_NOISE
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Judge, Observe, Scheduler, States, Trajectory, View, needs_truth
from unmask.schedulers.policy import OrderPolicy
from unmask.schedulers.posterior import Posterior
from unmask.training.policy import advantages as grpo
from unmask.training.policy import rewards as reward
from unmask.training.policy.config import PolicyTraining


@dataclass(frozen=True)
class Rollout:
    """The decisions of one step's rollouts, by row and reveal: where there was something to decide, and what came of it.

    ``seen`` is per state, everything else per decision; ``state`` is the decision's place in ``seen``. ``drawn`` is the set that a
    Bernoulli decision revealed. ``totals`` are numerators and denominators of what is logged (0: a plain count).
    """

    seen: dict[str, Tensor]
    state: Int[Tensor, "S"]
    eligible: Bool[Tensor, "S L"]
    chosen: Int[Tensor, "S"]
    old_logv: Float[Tensor, "S"]
    advantage: Float[Tensor, "S"]
    live: Bool[Tensor, "S"]
    reward: Float[Tensor, "S L"]
    truth_margin: Float[Tensor, "S L"]
    drawn: Bool[Tensor, "S L"]
    totals: dict[str, tuple[float, float]]

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def summary(self) -> dict[str, float]:
        return {name: above / (below or 1.0) for name, (above, below) in self.totals.items()}

    @classmethod
    def joined(cls, parts: Sequence[Rollout]) -> Rollout:
        """The rollouts of several batches of prompts as one."""
        offsets = torch.tensor([0, *(len(part.seen["hidden"]) for part in parts[:-1])]).cumsum(0).tolist()
        plain = {
            name: torch.cat([getattr(part, name) for part in parts])
            for name in ("eligible", "chosen", "old_logv", "advantage", "live", "reward", "truth_margin", "drawn")
        }
        return cls(
            seen={name: torch.cat([part.seen[name] for part in parts]) for name in parts[0].seen},
            state=torch.cat([part.state + offset for part, offset in zip(parts, offsets, strict=True)]),
            totals={
                name: (sum(part.totals[name][0] for part in parts), sum(part.totals[name][1] for part in parts))
                for name in parts[0].totals
            },
            **plain,
        )

    def observed(self, rows: Int[Tensor, "s"]) -> dict[str, Tensor]:
        """What the policy read at these decisions, with the candidates that each still had."""
        return {name: value[self.state[rows]] for name, value in self.seen.items()} | {"eligible": self.eligible[rows]}


@torch.no_grad()
def collect(
    denoiser: Denoiser,
    policy: OrderPolicy,
    canvas: Canvas,
    config: PolicyTraining,
    seeds: Int[Tensor, "B"],
    teacher: Scheduler | None = None,
    posterior: Posterior | None = None,
    judge: Judge | None = None,
) -> Rollout:
    """Draw a group of orders for each canvas and credit every decision. ``teacher``, if given, draws instead of the policy.

    ``judge`` says what is right, for rewards that ask for it; without one, only the target is.
    """
    prompts = max(1, (config.at_once or len(seeds)) // config.group)
    if prompts < len(canvas.tokens):
        parts = zip(torch.arange(len(canvas.tokens)).split(prompts), seeds.split(prompts * config.group), strict=True)
        return Rollout.joined(
            [
                _collect(denoiser, policy, canvas.rows(rows), config, own, teacher, posterior, judge)
                for rows, own in parts
            ]
        )
    return _collect(denoiser, policy, canvas, config, seeds, teacher, posterior, judge)


def _collect(
    denoiser: Denoiser,
    policy: OrderPolicy,
    canvas: Canvas,
    config: PolicyTraining,
    seeds: Int[Tensor, "B"],
    teacher: Scheduler | None,
    posterior: Posterior | None,
    judge: Judge | None,
) -> Rollout:
    """:func:`collect` of canvases that are decoded together."""
    many = canvas.repeated(config.group)
    scheduler: Scheduler = teacher or (policy if posterior is None else posterior.scheduler(policy))
    by_coin = config.objective == "bernoulli" and teacher is None
    temperature = 0.0 if teacher is not None or by_coin else policy.config.temperature
    decoding = Decoding(
        config.block,
        config.budget,
        "bernoulli" if by_coin else "top",
        order_temperature=temperature,
        share=config.group > 1,
    )
    path = unmask(
        denoiser,
        _Whole(scheduler),
        many.seeded(seeds),
        decoding,
        forced=teacher is not None or not config.free,
        observe=_observation(policy, by_coin),
    )
    states = path.states
    assert states is not None and states.target_logp is not None
    table = _Decisions.of(path, states, by_coin)
    candidate_reward = states.target_logp.clamp(min=config.reward_floor)
    if config.relative and (teacher is None or config.behaviour == "teacher"):  # who imitates is not paid
        rest = reward.leave_one_out_logp(denoiser, canvas, config.at_once or reward.AT_ONCE).clamp(
            min=config.reward_floor
        )
        candidate_reward = candidate_reward - rest.repeat_interleave(config.group, dim=0)[states.row]
    scores = states.scores if teacher is None and posterior is None else policy.score(states.observed)
    logv, drawn = _old_logv(policy, scores, states, table, by_coin)
    given = _rewards(config, path, many, states, table, candidate_reward, judge)
    if posterior is not None:
        # LO-ARM: log p(x|σ) + log v(σ) − log q(σ|x), whose mean under q bounds log P(x) from below.
        q = _draws(states.scores, table, policy.config.temperature)
        given, logv = given + logv - q, q
    rewards = reward.timeline(given, table.row, table.k, len(many.tokens))
    expected = reward.timeline(_expected(states, table, candidate_reward), table.row, table.k, len(many.tokens))
    advantage, live = grpo.advantages(
        rewards, config.group, config.advantage, config.std_floor, config.normalise, expected, config.decay
    )
    if teacher is not None or config.objective == "ranking" or config.prices_all or config.advantage == "critic":
        live = torch.ones_like(live)  # what is learned there does not compare the rollouts of a group
    decided = table.eligible.sum(1) > 1
    right = states.best[table.state, table.chosen] == many.truth[table.row, table.chosen]
    full = policy.logv(scores[table.state], {"eligible": table.eligible})
    truth_p, best_p = states.target_logp.exp(), states.confidence.exp()
    is_best = states.best == many.truth[states.row]
    margin = torch.where(is_best, states.margin, truth_p - best_p).masked_fill(~states.eligible, 0.0)
    first = _best(scores, states)[table.state] == _best(states.confidence, states)[table.state]
    rows, decisions = len(many.tokens), int(decided.sum())
    totals = {
        "return": (reward.self_aware(states).sum(), rows),
        "wrong_reveals": ((~right).sum(), rows),
        "entropy": (grpo.entropy(full)[decided].sum(), decisions),
        "agreement": (first[decided].sum(), decisions),
        "dead_groups": ((~live).sum(), rows),
        "forwards_per_step": (path.denoiser_calls, len(states)),
        "trajectory_steps": (len(states), 0),
    }
    return Rollout(
        seen=states.observed,
        state=table.state[decided],
        eligible=table.eligible[decided],
        chosen=table.chosen[decided],
        old_logv=logv[decided],
        advantage=advantage[table.row, table.k][decided],
        live=live[table.row][decided],
        reward=candidate_reward[table.state][decided],
        truth_margin=margin[table.state][decided],
        drawn=drawn[table.state][decided],
        totals={name: (float(above), float(below)) for name, (above, below) in totals.items()},
    )


@dataclass(frozen=True)
class _Decisions:
    """Where each draw of a path was made: its row, its number ``k`` in the row, its state, and what it could choose from."""

    row: Int[Tensor, "S"]
    k: Int[Tensor, "S"]
    state: Int[Tensor, "S"]
    chosen: Int[Tensor, "S"]
    eligible: Bool[Tensor, "S L"]
    last: Bool[Tensor, "S"]

    @classmethod
    def of(cls, path: Trajectory, states: States, by_coin: bool) -> _Decisions:
        """One decision per reveal; with ``by_coin`` one per state, whose coins fall together."""
        rows, steps = len(path.tokens), int(states.step.max()) + 1
        place = torch.zeros(rows, steps, dtype=torch.long, device=path.order.device)
        place[states.row, states.step] = torch.arange(len(states), device=place.device)
        if by_coin:
            order = (states.row * steps + states.step).argsort()
            row, k, state = states.row[order], states.step[order], order
            chosen, eligible = states.revealed.int().argmax(1)[order], states.eligible[order]
            return cls(row, k, state, chosen, eligible, k == path.step.amax(1)[row])
        row, k = torch.nonzero(path.order >= 0, as_tuple=True)
        state, chosen = place[row, path.step[row, k]], path.order[row, k]
        # What was drawn before in the same state is not drawn again.
        rank = path.rank[row]
        earlier = states.revealed[state] & (rank >= 0) & (rank < k[:, None])
        return cls(row, k, state, chosen, states.eligible[state] & ~earlier, k == path.reveals[row] - 1)


def _best(scores: Float[Tensor, "Z L"], states: States) -> Int[Tensor, "Z"]:
    return scores.masked_fill(~states.eligible, -torch.inf).argmax(1)


def _old_logv(
    policy: OrderPolicy, scores: Tensor, states: States, table: _Decisions, by_coin: bool
) -> tuple[Float[Tensor, "S"], Bool[Tensor, "Z L"]]:
    if not by_coin:
        return _draws(scores, table, policy.config.temperature), states.revealed
    # Where no coin fell, the best one is revealed all the same: that was not the policy's doing.
    drawn = states.eligible & (states.observed["uniform"] < scores.sigmoid())
    return grpo.bernoulli_logp(scores, drawn, states.eligible)[table.state], drawn


def _draws(scores: Float[Tensor, "Z L"], table: _Decisions, temperature: float) -> Float[Tensor, "S"]:
    logv = (scores[table.state] / temperature).masked_fill(~table.eligible, -torch.inf).log_softmax(1)
    return logv.gather(1, table.chosen[:, None])[:, 0]


def _rewards(
    config: PolicyTraining,
    path: Trajectory,
    canvas: Canvas,
    states: States,
    table: _Decisions,
    candidate_reward: Float[Tensor, "Z L"],
    judge: Judge | None,
) -> Float[Tensor, "S"]:
    """r of every decision."""
    if config.free:
        exponent = config.alpha if config.reward == "speed" else 0.0
        value = reward.terminal(path, canvas.truth, config.reward == "share", exponent, judge)
        return torch.where(table.last, value[table.row], 0.0)
    dense = candidate_reward[table.state, table.chosen]
    if config.reward != "hybrid":
        return dense
    # Teacher forcing reveals the truth: right as a whole is what it would have said at every step, put together.
    said = canvas.truth.index_put((table.row, table.chosen), states.best[table.state, table.chosen])
    right = (said == canvas.truth).all(1) if judge is None else judge(canvas.truth, said)
    return dense + config.hybrid * table.last * right.float()[table.row]


def _expected(states: States, table: _Decisions, candidate_reward: Float[Tensor, "Z L"]) -> Float[Tensor, "S"]:
    """Φ of every decision: what the denoiser says of all that is still hidden then, as if the rest of it came at once."""
    drawn = states.eligible[table.state] & ~table.eligible
    waiting = states.observed["hidden"][table.state] & ~drawn
    return candidate_reward[table.state].masked_fill(~waiting, 0.0).sum(1)


@dataclass(frozen=True)
class _Whole:
    """A scheduler for which every hidden position is priced, as the policy that learns from its rollouts wants it."""

    scheduler: Scheduler
    prices_all = True

    @property
    def needs_truth(self) -> bool:
        return needs_truth(self.scheduler)

    def __call__(self, view: View) -> Float[Tensor, "b L"]:
        return self.scheduler(view)


def _observation(policy: OrderPolicy, by_coin: bool) -> Observe:
    if not by_coin:
        return policy.observe
    return lambda view: {**policy.observe(view), "uniform": view.uniform(BERNOULLI_NOISE)}
