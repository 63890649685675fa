"""``unmask react``: complete a reaction that is typed in, and show the alternatives."""

from __future__ import annotations

import json as json_text
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from rich.table import Table
from tyro.conf import Positional

from unmask.cli.report import PAGE
from unmask.cli.shell import Inline, console, require_writable
from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser, Scheduler
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import load_schedulers
from unmask.generation.text_canvas import load_tokenizer
from unmask.report.numbers import percent
from unmask.report.traces import record as traces
from unmask.report.traces.format import Trace, TracedTrajectory
from unmask.report.viewer import page as viewer
from unmask.runs.atomic import atomic_write
from unmask.runs.config import Count, Seed, config
from unmask.schedulers.loading import load_scheduler
from unmask_studies.reactions.chemistry import canonicalize, describe_judgement, judge_reaction
from unmask_studies.reactions.drawing import draw_tokens
from unmask_studies.reactions.smiles import ARROW, expand_range
from unmask_studies.reactions.task import label_tokens, open_canvas

MOST_ANSWERS = 10
"""Drawn answers that the table shows."""


@config
class React:
    """Complete a reaction. `?` stands for an open token of its SMILES, `?7` for seven next to each other, `?5..9` for five to nine.

    $ unmask models rxnmapper --out models/rxnmapper
    $ unmask react "CC(=O)O.OCc1ccccc1>>CC(=O)O?9" --denoiser models/rxnmapper
    $ unmask react "CC(=O)O.OCc1ccccc1>>CC(=O)O?7..11" --denoiser models/rxnmapper --draws 50 --out reaction.html

    Prints the tokens in the order of their reveals, each with the model's alternatives; of several lengths, those of the likeliest
    per token among the valid answers that conserve atoms. The page replays all of them, with the molecules.
    """

    reaction: Positional[str]  # reactants>>product, molecules joined by dots, with ? where something is open.
    denoiser: str  # A model of reactions: a folder that `unmask models rxnmapper` or `rxnfp` has written.
    schedulers: tuple[str, ...] = ("confidence",)  # Names separated by commas; the first one's answer is printed.
    decoding: Annotated[Decoding, Inline] = field(default_factory=Decoding)  # How to decode.
    alternatives: Count = 3  # How many tokens to show of each open place.
    draws: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Also draw so many whole answers (tokens at temperature 1), and count how often each comes up."""
    seed: Seed = 0  # For draws and random orders.
    out: Path | None = None  # Write the page that replays the decodings to this file.
    json: bool = False  # Print JSON instead of tables.

    def run(self) -> None:
        if self.out is not None:
            require_writable(self.out, PAGE)
        model, tokenizer = load_denoiser(self.denoiser), load_tokenizer(self.denoiser)
        schedulers = load_schedulers(self.schedulers, lambda name: load_scheduler(name, model, self.denoiser))
        label = label_tokens(tokenizer)
        about = traces.About(
            "reaction", self.denoiser, label, decoding=self.decoding.describe(), draw=draw_tokens(label)
        )
        canvases = {
            text: open_canvas(model, tokenizer, text).seeded(row_seeds(self.seed, [0]))
            for text in expand_range(self.reaction)
        }
        found: dict[str, Trace] = {}
        for text, canvas in canvases.items():
            recorded = traces.record(
                model, schedulers, canvas, about, self.decoding, problems=[text], alternatives=self.alternatives
            )
            found[text] = recorded[0]
        best = max(found, key=lambda text: _rank(found[text]))
        drawn = self._draw_answers(model, next(iter(schedulers.values())), canvases[best], label)
        if self.out is not None:
            page = viewer.page(list(found.values()), "Reaction", start=list(found).index(best))
            atomic_write(self.out, page.encode())
        if self.json:
            record = {"reaction": best, "denoiser": self.denoiser, "draws": drawn}
            record["answers"] = [_record(found[best], one) for one in found[best].trajectories]
            record["lengths"] = [_record(trace, trace.trajectories[0]) for trace in found.values()]
            sys.stdout.write(json_text.dumps(record) + "\n")
            return
        if len(found) > 1:
            console.print(_lengths(list(found.values())))
        _show(found[best], drawn)
        if self.out is not None:
            console.print(f"wrote {self.out}; open it in a browser")

    def _draw_answers(
        self, model: Denoiser, scheduler: Scheduler, canvas: Canvas, label: Callable[[int], str]
    ) -> list[dict[str, Any]]:
        """Whole answers, the most frequent first; other ways to write the same molecules are the same answer."""
        if not self.draws:
            return []
        many = canvas.repeated(self.draws).seeded(row_seeds(self.seed, range(self.draws)))
        decoding = replace(self.decoding, token_temperature=self.decoding.token_temperature or 1.0)
        tokens = unmask(model, scheduler, many, decoding, record=False).tokens
        counts = Counter(_canonical("".join(map(label, row))) for row in tokens.tolist())
        return [{"answer": text, "count": count, **judge_reaction(text)} for text, count in counts.most_common()]


def _show(trace: Trace, drawn: list[dict[str, Any]]) -> None:
    for trajectory in trace.trajectories:
        console.print(_summary(trace, trajectory), soft_wrap=True)
    console.print(_reveals(trace, trace.trajectories[0]))
    if drawn:
        console.print(_answers(drawn))


def _canonical(reaction: str) -> str:
    return ARROW.join(canonicalize(side) or side for side in reaction.split(ARROW))


def _record(trace: Trace, trajectory: TracedTrajectory) -> dict[str, Any]:
    answer = "".join(trace.labels[token] for token in trajectory.tokens)
    return {
        "scheduler": trajectory.scheduler,
        "answer": answer,
        **judge_reaction(answer),
        "logp": None if trajectory.total_logp is None else round(trajectory.total_logp, 6),
        "denoiser_calls": trajectory.denoiser_calls,
        "reveals": [_reveal(trace, trajectory, k) for k in range(len(trajectory.order))],
    }


def _reveal(trace: Trace, trajectory: TracedTrajectory, k: int) -> dict[str, Any]:
    """One reveal: its place among the tokens of the reaction, from 1, and the likeliest tokens there at that step."""
    position, step = trajectory.order[k], trajectory.step[k]
    before = sum(bool(trace.labels[token]) for token in trajectory.tokens[:position])
    candidates = trajectory.candidates
    assert candidates is not None
    row = candidates.at(step).start + int(candidates.eligible[step, :position].sum())
    likely = zip(candidates.token[row].tolist(), candidates.probability[row].tolist(), strict=True)
    return {
        "step": step + 1,
        "place": before + 1,
        "token": trace.labels[trajectory.tokens[position]],
        "alternatives": {trace.labels[token]: round(p, 6) for token, p in likely},
    }


def _rank(trace: Trace) -> tuple[bool, bool, float]:
    """Valid before invalid, conserved atoms before others, then log p per open token: a longer answer has a lower sum."""
    record = _record(trace, trace.trajectories[0])
    return record["valid"], record["conserved"], record["logp"] / max(1, len(record["reveals"]))


def _lengths(found: list[Trace]) -> Table:
    table = Table("open tokens", "answer", "valid", "atoms conserved", "log p per token", title="lengths")
    for trace in found:
        record = _record(trace, trace.trajectories[0])
        valid, conserved, logp = _rank(trace)
        words = ("yes" if mark else "no" for mark in (valid, conserved))
        table.add_row(str(len(record["reveals"])), record["answer"], *words, f"{logp:.3f}")
    return table


def _summary(trace: Trace, trajectory: TracedTrajectory) -> str:
    record = _record(trace, trajectory)
    verdict = describe_judgement(record["valid"], record["conserved"])
    return f"{trajectory.scheduler}: {record['answer']} ({verdict}; log p {record['logp']:.2f})"


def _reveals(trace: Trace, trajectory: TracedTrajectory) -> Table:
    table = Table("step", "place", "token", "the model's alternatives", title=f"the order of {trajectory.scheduler}")
    for reveal in _record(trace, trajectory)["reveals"]:
        shares = "  ".join(f"{token} {percent(p)} %" for token, p in reveal["alternatives"].items())
        table.add_row(str(reveal["step"]), str(reveal["place"]), reveal["token"], shares)
    return table


def _answers(drawn: list[dict[str, Any]]) -> Table:
    table = Table("drawn", "answer", "valid", "atoms conserved", title="whole answers")
    for one in drawn[:MOST_ANSWERS]:
        table.add_row(
            str(one["count"]), one["answer"], *("yes" if one[key] else "no" for key in ("valid", "conserved"))
        )
    return table
