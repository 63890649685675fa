"""End tokens: what each way to treat them does to accuracy, and when the first of them is revealed.

An answer ends with an end token, and padding follows up to the length of the generation. Whoever reveals them first knows how long
the answer is before it is there. ``allow`` takes them as they come, ``damp`` makes them less likely while little is revealed,
``suppress`` lets them wait until nothing else is left of the block. Padding counts as an end here: it says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.decoding.guidance import Ending, PassThrough, postpone_ends, score_inner_states
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Scheduler
from unmask.evaluation.statistics import mean_interval, paired_bootstrap, wilson
from unmask.report.numbers import percent_interval
from unmask.tasks.text_problems import WrittenTask
from unmask.tasks.vocabulary import END, PAD
from unmask_studies.sets import BATCH, denoiser_named
from unmask_studies.study import Cell, Findings, Piece, Table
from unmask_studies.sudoku.orders import label
from unmask_studies.text.ground import LEARNED, Ground, Texts, kind_of, order_of

Decoding.end_floor = 0.4
"""Of damped end tokens: what is left of their probability when nothing is revealed yet."""


class PaddingEnds(PassThrough):
    """A denoiser whose padding is an end token, too."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        return (END, PAD)

    @property
    def pad_id(self) -> int:
        return PAD


@dataclass(frozen=True)
class Ends:
    """``orders`` and the learned one × what happens to end tokens, at a task's ``length`` (None: the longest)."""

    minutes: float = 0.0
    task: str = "arithmetic"
    length: int | None = None
    orders: tuple[str, ...] = ("left_to_right", "confidence", "margin", "entropy")
    sets: Texts = field(default_factory=Texts)
    runs: Path | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.length is not None and self.length not in kind_of(self.task).lengths:
            raise ValueError(f"length must be one of {kind_of(self.task).lengths}, got {self.length}")

    @property
    def region(self) -> int:
        return self.length or kind_of(self.task).lengths[-1]

    def pieces(self, folder: Path) -> list[Piece]:
        ground = Ground(self.sets, self.runs, folder, self.seed)

        def measure(order: str, ends: str) -> Mapping[str, Any]:
            problems = self.sets.problems(self.task, self.region)
            model = denoiser_named(ground.denoiser(self.task))
            return decoded(problems, model, ground.scheduler(self.task, order), ends, self.seed)

        return ground.pieces([self.task], [order_of(self.task)]) + [
            Piece(f"{order}: {ends}", lambda o=order, e=ends: measure(o, e))
            for order in (*self.orders, LEARNED)
            for ends in ("allow", "damp", "suppress")
        ]

    def findings(self, results: Mapping[str, Any]) -> Findings:
        from unmask.report import figures as drawing

        rows: list[list[Cell | str]] = []
        panels: dict[str, list[drawing.Point]] = {"solved": [], "first end token revealed after": []}
        for order in (*self.orders, LEARNED):
            plain = _exact(results[f"{order}: allow"])
            for ends in ("allow", "damp", "suppress"):
                found = results[f"{order}: {ends}"]
                exact, first = _exact(found), np.array([x for x in found["first_end"] if x is not None])
                limits = (float(exact.mean()), *wilson(int(exact.sum()), len(exact)))
                when = mean_interval(first)
                gap = paired_bootstrap(exact, plain)
                text = f"{100 * gap.mean:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]".replace("-", "−")
                rows.append(
                    [
                        label(order),
                        ends,
                        percent_interval(*limits),
                        "" if ends == "allow" else Cell(text, gap.low > 0 or gap.high < 0),
                        f"{100 * when.mean:.0f} [{100 * when.low:.0f}, {100 * when.high:.0f}]",
                        f"{100 * np.mean(found['short']):.1f}",
                        f"{100 * np.mean(found['long']):.1f}",
                        f"{found['calls'] / len(exact):.1f}",
                    ]
                )
                name = f"{label(order)}, {ends}"
                panels["solved"].append(drawing.share(name, limits))
                panels["first end token revealed after"].append(drawing.share(name, (when.mean, when.low, when.high)))
        columns = [
            "order",
            "end tokens",
            "solved %",
            "against allow, in pairs",
            "first end after, % of the answer",
            "too short, %",
            "too long, %",
            "calls",
        ]
        n = len(_exact(results[f"{LEARNED}: allow"]))
        title = f"{self.task}, {self.region} tokens: end tokens and padding, n = {n:,}, seed {self.seed}"
        note = (
            "First end after: which share of what stands before the first end token in the finished text was already revealed when "
            f"the first end or padding token was. Too short or long: where the text ends. Damped by {Decoding.end_floor} at first. Bold: the "
            "paired 95 % interval leaves out 0."
        )
        figure = drawing.intervals(panels, "%")
        return Findings([Table(title, columns, rows, note)], {"ends": figure})


def decoded(task: WrittenTask, denoiser: Any, scheduler: Scheduler, ends: str, seed: int) -> dict[str, Any]:
    """Every problem, decoded with its end tokens treated so: what came out right, and when it was said where it ends."""
    start = task.kind.prompt_width
    length = task.canvas([0]).tokens.shape[1] - start
    around: Any = PaddingEnds(denoiser)
    decoding = Decoding()
    if ends == "damp":
        around = _Damped(around, start, length, floor=Decoding.end_floor)
        scheduler = score_inner_states(scheduler, around)
    elif ends == "suppress":
        decoding = postpone_ends(decoding)
    out: dict[str, Any] = {"solved": "", "first_end": [], "short": [], "long": [], "calls": 0}
    for begin in range(0, len(task), BATCH):
        rows = range(begin, min(begin + BATCH, len(task)))
        canvas = task.canvas(rows)
        seeds = torch.tensor([seed * 2**32 + row for row in rows])
        path = unmask(around, scheduler, canvas.seeded(seeds), decoding, record=False)
        out["solved"] += "".join("1" if right else "0" for right in task.verify(rows, path.tokens).exact.tolist())
        out["calls"] += path.denoiser_calls
        first = first_ends(path.order, path.tokens, start)
        out["first_end"] += [None if np.isnan(share) else share for share in first.tolist()]
        ours, theirs = (_end(tokens[:, start:]) for tokens in (path.tokens, canvas.truth))
        out["short"] += (ours < theirs).int().tolist()
        out["long"] += (ours > theirs).int().tolist()
    return out


def first_ends(order: Int[Tensor, "B K"], tokens: Int[Tensor, "B L"], start: int) -> Float[np.ndarray, "B"]:
    """Which share of a text, up to where it ends, stood when its first end or padding token was revealed; NaN where none was."""
    shares = np.full(len(order), np.nan)
    for row, (places, text) in enumerate(zip(order.tolist(), tokens.tolist(), strict=True)):
        revealed = [place for place in places if place >= 0]
        length = int(_end(tokens[row : row + 1, start:])[0])
        ending = next((k for k, place in enumerate(revealed) if text[place] in (END, PAD)), None)
        if ending is not None:
            before = sum(place < start + length for place in revealed[:ending])
            shares[row] = before / length if length else 0.0
    return shares


class _Damped(Ending):
    """Damped end tokens, of which padding is one that may be revealed."""

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        return self.inner.forbidden_ids


def _end(answer: Int[Tensor, "B l"]) -> Int[Tensor, "B"]:
    """Where the first end or padding token stands; the length where there is none."""
    ends = torch.isin(answer, torch.tensor([END, PAD]))
    return torch.where(ends.any(1), ends.int().argmax(1), answer.shape[1])


def _exact(found: Mapping[str, Any]) -> Bool[np.ndarray, "n"]:
    return np.array([mark == "1" for mark in found["solved"]])
