"""``unmask()``: the one loop that decodes, and the exact likelihood of a given order.

Paper: "Unmasking procedure" and both cases of appendix "Unmasking schedules". At step ``t`` the denoiser prices the eligible
positions of the live rows, ``i_t ∼ v(· | x̃^{(t−1)})`` is chosen by the scheduler's scores, and ``x̃_{i_t}`` becomes the denoiser's
token, or the target's under teacher forcing. Any order is one block; semi-autoregressive decoding is several; left to right is a
block per position; parallel decoding reveals a set ``B_k`` from one context.

Invariants: a row's trajectory never depends on the other rows (draws are hashes of the row's own seed); logits exist only for
positions that may be revealed; a finished row costs nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.drafts import Forwards, distinct
from unmask.decoding.draws import ORDER_NOISE
from unmask.decoding.kv_store import Place
from unmask.decoding.options import Decoding
from unmask.decoding.prepare import prepare
from unmask.decoding.pricing import constant, price
from unmask.decoding.protocols import (
    Canvas,
    Denoiser,
    Observe,
    Scheduler,
    Trajectory,
    View,
    needs_truth,
    prices_all,
    reads_states,
)
from unmask.decoding.recording import Recorder, Step
from unmask.decoding.revising import revise
from unmask.decoding.rows import LiveRows
from unmask.decoding.sampling import draw_tokens
from unmask.decoding.survey import NOT_A_NUMBER, pack, read_survey


@torch.no_grad()
def unmask(
    denoiser: Denoiser,
    scheduler: Scheduler,
    canvas: Canvas | Int[Tensor, "B L"],
    decoding: Decoding = Decoding(),  # noqa: B008
    *,
    forced: bool = False,
    record: bool = True,
    observe: Observe | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Trajectory:
    """Reveal every hidden position of ``canvas`` (or of bare tokens) and return the trajectory.

    ``forced`` reveals the target's tokens (teacher forcing). ``record`` keeps every state; ``observe`` adds tensors of its own to
    each; ``on_step`` is called after every step.
    """
    canvas = Canvas(canvas) if isinstance(canvas, Tensor) else canvas
    denoiser, scheduler, decoding = prepare(denoiser, scheduler, canvas, decoding)
    return run_loop(
        denoiser, scheduler, canvas, decoding, forced=forced, record=record, observe=observe, on_step=on_step
    )


def run_loop(
    denoiser: Denoiser,
    scheduler: Scheduler,
    canvas: Canvas,
    decoding: Decoding,
    *,
    forced: bool = False,
    record: bool = True,
    observe: Observe | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Trajectory:
    """:func:`unmask` of a denoiser and a scheduler that :func:`~unmask.decoding.prepare.prepare` has wrapped already."""
    live = LiveRows(denoiser, canvas, decoding, forced)
    recorder = Recorder(denoiser, live, decoding.order_temperature, record, observe)
    forwards = Forwards(denoiser, live, decoding.draft, decoding.share)
    pace, memory = bind(decoding.rule, denoiser), {}
    revision = bind(decoding.revision_rule, denoiser) if live.revises else None
    everything = any(prices_all(rule) for rule in (scheduler, pace, revision))
    narrow = revision is None and observe is None and not (everything or reads_states(scheduler) or reads_states(pace))

    while len(live.rows):
        # One forward, or a draft that is right, prices what the scheduler may look at.
        began = time.perf_counter()
        at = pack(live.unseen if everything else live.eligible(), live.priced)
        states = forwards.states(live, at if narrow else None)
        view = look(denoiser, live, scheduler, canvas.target, memory, (at, states), everything)
        recorder.denoiser_seconds += time.perf_counter() - began

        # The scheduler scores the positions, the temperature perturbs the scores, a revision takes back, the pace takes the best.
        scores = score_positions(scheduler, view, check=False)
        keys = perturb(scores, view, decoding.order_temperature)
        ranked = torch.where(view.eligible, keys, constant(-torch.inf, keys.device))
        revised = revise(revision, view, live)
        revealed = pace(view, ranked, make_up(view, live, revised.hidden))

        # Teacher forcing reveals the target's tokens, decoding the denoiser's.
        truth = None if canvas.target is None else live.select(canvas.target)
        if forced and truth is not None:
            chosen = torch.where(view.eligible, truth, live.tokens)
        else:
            chosen = draw_tokens(view, decoding)

        # The canvases go on, and the host waits once for what it must know of that.
        step = Step(view, scores, keys, revealed, chosen, revised)
        live.revise(revised.tokens, revised.hidden)
        live.reveal(revealed, chosen, step.chosen_logp)
        survey = read_survey(live, step, ranked, everything)
        recorder.add(step, truth, survey.most, survey.count)
        if on_step is not None:
            on_step(step)
        forwards.expect(step)
        if not all(survey.stays):
            live.retire(survey.stays)
        live.priced, live.numbers = survey.priced, survey.numbers

    return recorder.trajectory(live, forwards.rounds)


def make_up(view: View, live: LiveRows, hidden: Bool[Tensor, "b L"] | None) -> Int[Tensor, "b"]:
    """The step's quota: a budget of steps makes up for what the step has ``hidden`` again."""
    quota = live.quota() if view.quota is None else view.quota
    return quota if hidden is None or not live.budgeted else quota + hidden.sum(1)


def bind(rule: Any, denoiser: Denoiser) -> Any:
    """A pace or a revision for this denoiser: one that has a method ``bind`` depends on it."""
    return rule.bind(denoiser) if hasattr(rule, "bind") else rule


def look(
    denoiser: Denoiser,
    live: LiveRows,
    scheduler: Scheduler,
    reference: Int[Tensor, "B L"] | None,
    memory: dict[Any, Any],
    forwarded: tuple[Place, Float[Tensor, "b L D"]] | None = None,
    everything: bool = False,
) -> View:
    """What ``scheduler`` may look at: ``prices_all`` and ``needs_truth`` say how much that is.

    ``forwarded`` are the positions to price and the live rows' states; without them the rows are forwarded here. ``everything``
    prices all hidden positions whatever the scheduler says.
    """
    if needs_truth(scheduler) and reference is None:
        raise ValueError("this scheduler is an oracle: it needs the truth; give the canvas a target")
    eligible = live.eligible()
    alone = forwarded is None  # no survey follows: broken logits are looked for at once
    unseen, whole = live.unseen, everything or prices_all(scheduler)
    if forwarded is None:
        forwarded = pack(unseen if whole else eligible, live.priced), Forwards(denoiser, live).states(live)
    (row, position), states = forwarded
    return View(
        denoiser=denoiser,
        tokens=live.tokens,
        attention=live.attention,
        hidden=unseen,
        eligible=eligible,
        index=live.index,
        place=live.place,
        rows=live.rows,
        step=live.step,
        total=live.total,
        states=states,
        at=(row, position),
        prices=price(
            denoiser.logits(states[row, position]), denoiser.forbidden_ids, check=alone, compiled=live.compiled
        ),
        seeds=live.seeds,
        reference=live.select(reference) if needs_truth(scheduler) and reference is not None else None,
        memory=memory,
        quota=live.quota(),
        most=live.most,
        whole=whole,
    )


def score_positions(scheduler: Scheduler, view: View, *, check: bool = True) -> Float[Tensor, "b L"]:
    """The scheduler's scores in float32, of the right shape. With ``check`` none of them is NaN, for which the host waits."""
    scores = scheduler(view)
    if scores.shape != view.eligible.shape:
        raise ValueError(
            f"a scheduler must return scores of shape {tuple(view.eligible.shape)}, got {tuple(scores.shape)}"
        )
    scores = scores.float()
    if check and bool(torch.isnan(scores[view.eligible]).any()):
        raise ValueError(NOT_A_NUMBER)
    # A finite floor keeps a position that scores −inf rankable above those that are not eligible at all, and finite still
    # when it is divided by a small temperature.
    return scores.clamp(min=-1e30, max=1e30)


def perturb(scores: Float[Tensor, "b L"], view: View, temperature: float) -> Float[Tensor, "b L"]:
    """Keys whose largest is a draw from softmax(scores/τ), by the Gumbel trick; at τ = 0 the scores themselves."""
    return scores if temperature == 0 else scores / temperature + view.gumbel(ORDER_NOISE)


@torch.no_grad()
def trajectory_logp(
    denoiser: Denoiser,
    target: Int[Tensor, "B L"],
    order: Int[Tensor, "B K"],
    step: Int[Tensor, "B K"] | None = None,
    *,
    attention: Bool[Tensor, "B L"] | None = None,
    rows_at_once: int = 256,
) -> Float[Tensor, "B K"]:
    """log p of each reveal of a given order, ``p_θ(x | σ) = Π_t p_θ^{i_t}(x_{i_t} | x̃^{(t−1)}(σ))``, its states batched together.

    ``order`` is padded with −1. Without ``step`` each reveal is a step of its own; with it, reveals of one step are priced in
    the same state (``p_θ(x | β)``). Equal states, of one row or several, are one forward.
    """
    batch, reveals = order.shape
    live = order >= 0
    step = torch.arange(reveals, device=order.device).expand_as(order) if step is None else step
    when = torch.full_like(target, -1)
    row, k = torch.nonzero(live, as_tuple=True)
    if len(row) and int(torch.bincount(row * target.shape[1] + order[live]).max()) > 1:
        raise ValueError(
            "an order must not name a position twice: a trajectory with revisions is no permutation and has no log p(x | σ)"
        )
    when[row, order[live]] = step[live]
    # The state of reveal k hides what is revealed at its step or later.
    canvases = torch.where(when[row] >= step[live][:, None], denoiser.mask_id, target[row])
    first, place = distinct(canvases, None if attention is None else attention[row])
    logp = target.new_zeros(batch, reveals, dtype=torch.float32)
    by_state = place.argsort(stable=True)
    ends = torch.bincount(place, minlength=len(first)).cumsum(0)
    for start in range(0, len(first), rows_at_once):
        stop = min(start + rows_at_once, len(first))
        part = first[start:stop]
        states = denoiser.hidden(canvases[part], None if attention is None else attention[row[part]])
        reveal = by_state[(int(ends[start - 1]) if start else 0) : int(ends[stop - 1])]
        position = order[row[reveal], k[reveal]]
        prices = price(denoiser.logits(states[place[reveal] - start, position]), denoiser.forbidden_ids)
        logp[row[reveal], k[reveal]] = prices.logp.gather(1, target[row[reveal], position][:, None])[:, 0]
    return logp
