"""End tokens: what each way to treat them does to accuracy, and when the first of them is revealed.

An answer ends with an end token, and padding follows up to the length of the generation. A scheduler that reveals them first fixes
the length of the answer before its text. ``allow`` takes them as they come, ``damp`` makes them less likely while little is
revealed, ``suppress`` postpones them until nothing else is left of the block. Padding counts as an end here: it means the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.decoding.draws import row_seeds
from unmask.decoding.guidance import DenoiserWrapper, EndingDenoiser, postpone_ends, score_inner_states
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Scheduler
from unmask.evaluation.evaluate import read_marks
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.report import figures
from unmask.report.numbers import percent, percent_interval
from unmask.tasks.text_problems import TextProblemTask
from unmask.tasks.vocabulary import END, PAD
from unmask_studies.reports import BATCH, get_denoiser
from unmask_studies.study import Axes, Findings, Result, Results
from unmask_studies.tables import Table, TableRow, count_limits, points_gap
from unmask_studies.text.study import Models, TaskStudy, kind_of

FLOOR = Decoding().end_floor
"""The factor that damped end tokens start with."""
WAYS = ("allow", "damp", "suppress")


class PaddingEnds(DenoiserWrapper):
    """A denoiser whose padding is an end token, too."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        return (END, PAD)

    @property
    def pad_id(self) -> int:
        return PAD


class DampedEnds(EndingDenoiser):
    """Damped end tokens, of which padding is one that may be revealed."""

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        return self.inner.forbidden_ids


@dataclass(frozen=True)
class Ends(TaskStudy):
    """``schedulers`` and the learned policy × ways to treat end tokens, at a task's ``length`` (None: the longest)."""

    length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length is not None and self.length not in kind_of(self.task).lengths:
            raise ValueError(f"length must be one of {kind_of(self.task).lengths}, got {self.length}")

    @property
    def region(self) -> int:
        return self.length or kind_of(self.task).lengths[-1]

    def axes(self) -> Axes:
        return self.rows, WAYS

    def measure_with(self, models: Models, *key: Any) -> Result:
        name, ends = key
        problems = self.sets.problems(self.task, self.region)
        denoiser = get_denoiser(models.denoiser(self.task))
        return decode_with_ends(problems, denoiser, models.scheduler(self.task, name), ends, self.seed)

    def findings(self, results: Results) -> Findings:
        rows: list[TableRow] = []
        solved_points, first_points = [], []
        for name, ends in self.points():
            found = results[name, ends]
            exact, plain = read_marks(found["solved"]), read_marks(results[name, "allow"]["solved"])
            when = mean_interval([share for share in found["first_end"] if share is not None])
            limits = count_limits(int(exact.sum()), len(exact))
            rows.append(
                {
                    "scheduler": self.label(str(name)),
                    "end tokens": str(ends),
                    "solved %": percent_interval(*limits),
                    "against allow, paired": "" if ends == "allow" else points_gap(paired_bootstrap(exact, plain)),
                    "first end after, % of the answer": percent_interval(when.mean, when.low, when.high, 0),
                    "too short, %": percent(np.mean(found["short"])),
                    "too long, %": percent(np.mean(found["long"])),
                    "calls": f"{found['calls'] / len(exact):.1f}",
                }
            )
            title = f"{self.label(str(name))}, {ends}"
            solved_points.append(figures.share(title, limits))
            first_points.append(figures.share(title, (when.mean, when.low, when.high)))
        n = len(results[self.rows[0], "allow"]["solved"])
        title = f"{self.task}, {self.region} tokens: end tokens and padding, n = {n:,}, seed {self.seed}"
        note = (
            "First end after: the share of the text before the first end token of the finished answer that was already revealed "
            f"when the first end or padding token was. Too short or long: where the text ends. Damped by {FLOOR} at first. Bold: "
            "the paired 95 % interval excludes 0."
        )
        panels = {"solved": solved_points, "first end token revealed after": first_points}
        return Findings([Table.of(title, rows, note)], {"ends": figures.intervals(panels, "%")})


def decode_with_ends(
    task: TextProblemTask, denoiser: Any, scheduler: Scheduler, ends: str, seed: int
) -> dict[str, Any]:
    """Every problem, decoded with end tokens treated as ``ends`` says: which are solved, and when their end was fixed."""
    start = task.kind.prompt_width
    length = task.canvas([0]).tokens.shape[1] - start
    around: Any = PaddingEnds(denoiser)
    decoding = Decoding()
    if ends == "damp":
        around = DampedEnds(around, start, length, floor=FLOOR)
        scheduler = score_inner_states(scheduler, around)
    elif ends == "suppress":
        decoding = postpone_ends(decoding)
    out: dict[str, Any] = {"solved": "", "first_end": [], "short": [], "long": [], "calls": 0}
    for begin in range(0, len(task), BATCH):
        rows = range(begin, min(begin + BATCH, len(task)))
        canvas = task.canvas(rows)
        trajectory = unmask(around, scheduler, canvas.seeded(row_seeds(seed, rows)), decoding, record=False)
        right = task.verify(rows, trajectory.tokens).exact.tolist()
        out["solved"] += "".join("1" if one else "0" for one in right)
        out["calls"] += trajectory.denoiser_calls
        first = first_ends(trajectory.order, trajectory.tokens, start)
        out["first_end"] += [None if np.isnan(share) else share for share in first.tolist()]
        ours, theirs = (_find_end(tokens[:, start:]) for tokens in (trajectory.tokens, canvas.truth))
        out["short"] += (ours < theirs).int().tolist()
        out["long"] += (ours > theirs).int().tolist()
    return out


def first_ends(order: Int[Tensor, "B K"], tokens: Int[Tensor, "B L"], start: int) -> Float[np.ndarray, "B"]:
    """Which share of a text, up to its end, was revealed before its first end or padding token; NaN where none was revealed."""
    shares = np.full(len(order), np.nan)
    for row, (places, text) in enumerate(zip(order.tolist(), tokens.tolist(), strict=True)):
        revealed = [place for place in places if place >= 0]
        length = int(_find_end(tokens[row : row + 1, start:])[0])
        ending = next((k for k, place in enumerate(revealed) if text[place] in (END, PAD)), None)
        if ending is not None:
            before = sum(place < start + length for place in revealed[:ending])
            shares[row] = before / length if length else 0.0
    return shares


def _find_end(answer: Int[Tensor, "B l"]) -> Int[Tensor, "B"]:
    """The place of the first end or padding token; the length where there is none."""
    ends = torch.isin(answer, torch.tensor([END, PAD]))
    return torch.where(ends.any(1), ends.int().argmax(1), answer.shape[1])
