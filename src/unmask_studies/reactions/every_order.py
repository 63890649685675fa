"""The last tokens of reactions by every order: what any order could get right, and what an order can know without the answer.

The first part of each product is revealed as confidence reveals it, with the right tokens, until ``few`` are hidden. From there all
orders are followed (:mod:`unmask_studies.exact.reachable`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Scheduler
from unmask.evaluation.statistics import paired_bootstrap
from unmask.report.numbers import percent, percent_interval
from unmask.schedulers.heuristics import confidence
from unmask_studies.exact.reachable import reach
from unmask_studies.reactions.chemistry import judge_reaction
from unmask_studies.reactions.task import ReactionTask
from unmask_studies.tables import Table, TableRow, count_limits, label, points_gap

LIKELIEST, VALID, ANY = "likeliest", "valid", "any"
"""Rows of the table: of all orders the one that the denoiser finds best; the best of those that end in valid molecules and conserve
atoms, if one does; right if any order is."""
UNSOUND = 1e6
"""Nats that an answer loses if it is not valid or has atoms that the reactants do not have."""


def measure_every_order(task: ReactionTask, schedulers: Mapping[str, Scheduler], few: int, seed: int) -> dict[str, Any]:
    """Of each reaction: what is right by each scheduler, by the likeliest answers, by any, by a share of all orders; the counts."""
    found: list[dict[str, Any]] = []
    for row in range(len(task)):
        tokens, truth = _last_hidden(task, row, few, seed)
        reached = reach(task.denoiser, tokens, schedulers)
        right = [task.same_reaction(truth.tolist(), answer) for answer in reached.answers.tolist()]
        texts = [task.text(answer) for answer in reached.answers.tolist()]
        sound = torch.tensor([all(judge_reaction(text).values()) for text in texts])
        # A sound answer goes before all others, the likelier ones first.
        valid = int(torch.where(sound, reached.likelihood, reached.likelihood - UNSOUND).argmax())
        found.append(
            {
                **{name: right[place] for name, place in reached.chosen.items()},
                LIKELIEST: right[reached.likeliest],
                VALID: right[valid],
                ANY: any(right),
                "share": float(reached.share[torch.tensor(right)].sum()),
                "answers": len(right),
                "states": reached.denoiser_calls,
            }
        )
    return {name: [one[name] for one in found] for name in found[0]}


def _last_hidden(task: ReactionTask, row: int, few: int, seed: int) -> tuple[Int[Tensor, "L"], Int[Tensor, "L"]]:
    """The canvas in which confidence has ``few`` tokens left, and the truth."""
    canvas = task.canvas([row]).seeded(row_seeds(seed, [row]))
    order = unmask(task.denoiser, confidence, canvas, forced=True, record=False).order[0]
    truth = canvas.truth[0]
    return truth.index_fill(0, order[order >= 0][-few:], task.denoiser.mask_id), truth


def tabulate(title: str, found: Mapping[str, Any], baseline: str, schedulers: Sequence[str]) -> Table:
    """What is right where orders end in different answers, and everywhere."""
    marks = {name: np.array(found[name]) for name in (*schedulers, LIKELIEST, VALID, ANY)}
    several = np.array(found["answers"]) > 1
    names = {
        LIKELIEST: "all orders, the likeliest answer",
        VALID: "all orders, the likeliest valid answer",
        ANY: "oracle: any order",
    }
    rows: list[TableRow] = [
        {
            "scheduler": names.get(name, label(name)),
            "right %": percent_interval(*count_limits(int(one.sum()), len(one))),
            "where orders differ %": percent_interval(*count_limits(int(one[several].sum()), int(several.sum())))
            if several.any()
            else "",
            f"against {label(baseline)}, paired": ""
            if name == baseline
            else points_gap(paired_bootstrap(one, marks[baseline])),
        }
        for name, one in marks.items()
    ]
    mean = {name: float(np.mean(found[name])) for name in ("share", "answers", "states")}
    note = (
        f"Orders differ on {int(several.sum())} of {len(several)} canvases; {mean['answers']:.1f} answers and {mean['states']:.0f} "
        f"states each; of all orders {percent(mean['share'])} % end right."
    )
    return Table.of(title, rows, note)
