"""Reactions: what each scheduler completes with rxnmapper and rxnfp, where it fails first, and what its oracle owes to the answer.

The denoisers were trained on patents and have probably seen these reactions; the orders have not: policies are trained on ``train``
and all numbers are of ``data``, which shares no product with it.

A *gap* is what is hidden: ``random:0.7``, ``span:0.5``, ``fragment``, ``product``, ``reactant``. ``drawn:0.7`` hides as
``random:0.7`` does, but the truth is an answer that the denoiser itself has drawn. Its probabilities are then the right ones, and
nothing that can be computed without the answer says more about it: the lead of an oracle there is knowledge of the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from unmask.decoding.draws import row_seeds
from unmask.decoding.loop import unmask
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Scheduler, Trajectory
from unmask.denoisers.hub import digest
from unmask.denoisers.loading import describe_source
from unmask.evaluation.statistics import paired_bootstrap
from unmask.report import figures
from unmask.report.numbers import percent, percent_interval
from unmask.report.tables import is_oracle
from unmask.schedulers.loading import describe_policy, load_scheduler
from unmask.training.policy.run import PolicyRun
from unmask_studies.reactions.every_order import measure_every_order, tabulate
from unmask_studies.reactions.hiding import Part
from unmask_studies.reactions.smiles import tokenize
from unmask_studies.reactions.task import ReactionData, ReactionTask
from unmask_studies.reports import get_denoiser
from unmask_studies.study import Axes, Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import LEARNED, Table, TableRow, count_limits, label, points_gap
from unmask_studies.training_runs import ensure_run, load_recipe

BATCH = 64
PART = 250
"""Reactions of a piece: what a killed study loses at most, and what studies of other limits can reuse."""
DRAWN = "drawn"
EVERY_ORDER = "every order"
MOST_FEW = 10
WHOLE_GAP = "random:0.7"
"""What is hidden of the reactions whose last tokens are completed by every order."""
SEEN = "The denoisers have probably seen these reactions, the orders have not."


@dataclass(frozen=True)
class Reactions(GridStudy):
    """``models`` in the folder ``denoiser``, as ``unmask models NAME --out FOLDER/NAME`` writes them.

    ``data`` and ``train``: CSV files of reactions; without ``train`` no order is learned. The policy of each model is trained with
    the preset ``sas-MODEL`` (``steps`` shortens it), or found in ``runs``, and used for every gap.

    Of the first ``every_order`` reactions the last ``few`` hidden tokens are also completed by every order (0: none).
    """

    denoiser: str = "models"
    models: tuple[str, ...] = ("rxnmapper", "rxnfp")
    data: Path | None = None
    train: Path | None = None
    gaps: tuple[str, ...] = ("random:0.5", "random:0.7", "random:0.9", "span:0.5", "fragment", "drawn:0.7")
    schedulers: tuple[str, ...] = ("random", "left_to_right", "confidence", "margin", "entropy", "gt_logp")
    baseline: str = "confidence"
    runs: Path | None = None
    steps: int | None = None
    limit: int = 1500
    every_order: int = 60
    few: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.every_order < 0 or not 1 <= self.few <= MOST_FEW:
            raise ValueError(
                f"expected every_order of 0 or more and few in 1 .. {MOST_FEW}, got {self.every_order} and {self.few}"
            )
        if self.limit < 2:
            raise ValueError(f"limit must be at least 2, got {self.limit}")
        if self.baseline not in self.schedulers:
            raise ValueError(
                f"the baseline {self.baseline!r} is not among the schedulers: {', '.join(self.schedulers)}"
            )
        for gap in self.gaps:
            parse_gap(gap, ReactionData())

    @property
    def rows(self) -> tuple[str, ...]:
        return self.schedulers if self.train is None else (*self.schedulers, LEARNED)

    @property
    def blind(self) -> tuple[str, ...]:
        """Schedulers that follow the order of every decoding without the answer and without a draw."""
        return tuple(name for name in self.rows if not is_oracle(name) and name != "random")

    @property
    def parts(self) -> range:
        """The first reaction of each piece."""
        return range(0, self.limit, PART)

    def axes(self) -> Axes:
        return self.models, self.gaps, self.parts, self.rows

    def points(self) -> Iterator[Key]:
        yield from super().points()
        if self.every_order:
            yield from ((model, f"last {self.few}", 0, EVERY_ORDER) for model in self.models)

    def grid(self) -> list[Key]:
        if self.data is None:
            raise ValueError("the study needs reactions: name a CSV file (reactants, product) with --data")
        for model in self.models:
            if not Path(place := self._denoiser(model)).is_dir():
                raise ValueError(f"there is no {place}: run unmask models {model} --out {place} first")
        return super().grid()

    def measure(self, key: Key, folder: Path) -> Result:
        model, gap, first, scheduler = str(key[0]), str(key[1]), int(key[2] or 0), str(key[3])
        name = self._denoiser(model)
        denoiser = get_denoiser(name)
        every = scheduler == EVERY_ORDER
        data = parse_gap(WHOLE_GAP if every else gap, ReactionData(file=str(self.data), seed=self.seed))
        task = data.problems(denoiser, name).held_out(self.every_order if every else self.limit, "all")
        if every:
            orders = {one: self._load(one, model, folder) for one in self.blind}
            return measure_every_order(task, orders, self.few, self.seed)
        rows = range(first, min(first + PART, len(task)))
        return measure_reactions(task, self._load(scheduler, model, folder), self.seed, rows, gap.startswith(DRAWN))

    def identity(self, key: Key) -> Result | None:
        model, gap, first, scheduler = key
        # A run that is found in a folder may have been trained by another recipe.
        if scheduler == EVERY_ORDER or self.data is None or (scheduler == LEARNED and self.runs is not None):
            return None
        name = self._denoiser(str(model))
        learned = {"recipe": self._recipe(str(model)), "train": digest([self.train])} if self.train else {}
        return {
            "denoiser": describe_source(name),
            "data": digest([self.data]),
            "gap": gap,
            "rows": [first, min(int(first or 0) + PART, self.limit)],
            "scheduler": scheduler,
            "policy": learned if scheduler == LEARNED else describe_policy(str(scheduler), name),
            "seed": self.seed,
        }

    def _load(self, scheduler: str, model: str, folder: Path) -> Scheduler:
        name = self._denoiser(model)
        chosen = self._train(model, folder) if scheduler == LEARNED else scheduler
        return load_scheduler(chosen, get_denoiser(name), name)

    def _recipe(self, model: str) -> PolicyRun:
        recipe = load_recipe(f"sas-{model}", None, self.steps, self._denoiser(model))
        return replace(recipe, data=replace(cast(ReactionData, recipe.data), file=str(self.train)))

    def _train(self, model: str, folder: Path) -> str:
        return str(ensure_run(f"sas-{model}", self._recipe(model), folder, self.runs))

    def findings(self, results: Results) -> Findings:
        tables, panels = [], {}
        for model in self.models:
            for gap in self.gaps:
                found = {
                    name: join_pieces([results[model, gap, part, name] for part in self.parts]) for name in self.rows
                }
                n = len(found[self.baseline]["exact"])
                title = f"{model}, {describe_gap(gap)}, n = {n:,}, seed {self.seed}"
                tables += [
                    self._table(title, model, found),
                    _failures(f"First wrong reveals: {title}", found[self.baseline]),
                ]
                panels[f"{model}\n{describe_gap(gap)}"] = [
                    figures.share(label(name), _limits(one["exact"])) for name, one in found.items()
                ]
            if self.every_order:
                few = results[model, f"last {self.few}", 0, EVERY_ORDER]
                title = (
                    f"{model}, the last {self.few} tokens by every order, n = {len(few['answers'])}, seed {self.seed}"
                )
                tables.append(tabulate(title, few, self.baseline, self.blind))
        return Findings(tables, {"reactions": figures.intervals(panels, "right, %")})

    def _table(self, title: str, model: str, found: dict[str, Any]) -> Table:
        """Errors removed are of the best scheduler that neither is learned nor knows the answer."""
        exact = {name: np.array(one["exact"]) for name, one in found.items()}
        learned = [name for name in self.rows if name == LEARNED or describe_policy(name, self._denoiser(model))]
        heuristics = [name for name in self.rows if not is_oracle(name) and name not in learned]
        best = max(heuristics, key=lambda name: exact[name].mean())
        rows: list[TableRow] = []
        for name, one in found.items():
            against = points_gap(paired_bootstrap(exact[name], exact[self.baseline]))
            removed = 1 - (1 - exact[name].mean()) / max(1e-9, 1 - exact[best].mean())
            rows.append(
                {
                    "scheduler": label(name),
                    "right %": percent_interval(*_limits(one["exact"])),
                    "same tokens %": percent(np.mean(one["identical"])),
                    "valid %": percent(np.mean(one["valid"])),
                    "atoms conserved %": percent(np.mean(one["conserved"])),
                    "calls": f"{one['calls'] / len(exact[name]):.1f}",
                    f"against {label(self.baseline)}, paired": "" if name == self.baseline else against,
                    f"errors of {label(best)} removed %": "" if name in heuristics else percent(removed),
                }
            )
        note = "Right: the same molecules, however written. Bold: the paired 95 % interval excludes 0."
        return Table.of(title, rows, f"{note} {SEEN}")

    def _denoiser(self, model: str) -> str:
        return str(Path(self.denoiser) / model)


def parse_gap(gap: str, data: ReactionData) -> ReactionData:
    """The data that hide ``part`` or ``part:share``."""
    part, colon, share = gap.partition(":")
    try:
        part = cast(Part, "random" if part == DRAWN else part)
        return replace(data, part=part, hide=float(share) if colon else data.hide)
    except ValueError as error:
        raise ValueError(f"gap {gap!r}: {error}; expected one such as random:0.7, span:0.5 or fragment") from None


def describe_gap(gap: str) -> str:
    part, _, share = gap.partition(":")
    words = {
        "random": "random tokens of the product hidden",
        "span": "of the product hidden as a span",
        "fragment": "a fragment of the product hidden",
        "product": "the product hidden",
        "reactant": "a reactant hidden",
        DRAWN: "random tokens hidden, the truth drawn from the denoiser",
    }
    return f"{float(share):.0%} {words[part]}" if share else words[part]


def measure_reactions(
    task: ReactionTask,
    scheduler: Scheduler,
    seed: int,
    chosen: Sequence[int],
    drawn: bool = False,
    decoding: Decoding = Decoding(),  # noqa: B008
) -> dict[str, Any]:
    """Of each ``chosen`` reaction: right, the same tokens, valid, atoms conserved; of each wrong one, its first wrong reveal.

    With ``drawn``, the truth of each reaction is one answer of the denoiser in a random order, and right are its tokens alone.
    """
    by_length = sorted(chosen, key=lambda row: len(tokenize(task.reactions[row].smiles)))  # little padding
    found: dict[int, dict[str, Any]] = {}
    calls = 0
    for start in range(0, len(by_length), BATCH):
        rows = by_length[start : start + BATCH]
        canvas = task.canvas(rows).seeded(row_seeds(seed, rows))
        if drawn:
            canvas = replace(canvas, target=_draw_answers(task, canvas))
        trajectory = unmask(task.denoiser, scheduler, canvas, decoding, record=False)
        calls += trajectory.denoiser_calls
        for nth, (row, one) in enumerate(zip(rows, task.assess(rows, trajectory.tokens), strict=True)):
            identical = bool((trajectory.tokens[nth] == canvas.truth[nth]).all())
            right = identical if drawn else one["equivalent"]
            found[row] = {**one, "identical": identical, "exact": right}
            found[row]["wrong"] = None if identical else _first_wrong(task, trajectory, canvas, nth)
    columns = ("exact", "identical", "valid", "conserved", "wrong")
    return {name: [found[row][name] for row in chosen] for name in columns} | {"calls": calls}


def join_pieces(parts: Sequence[Any]) -> dict[str, Any]:
    """The results of several pieces as one."""
    lists = {name: [x for part in parts for x in part[name]] for name in parts[0] if name != "calls"}
    return lists | {"calls": sum(part["calls"] for part in parts)}


def _draw_answers(task: ReactionTask, canvas: Canvas) -> torch.Tensor:
    decoding = Decoding(token_temperature=1.0)
    return unmask(task.denoiser, load_scheduler("random"), canvas.without_target(), decoding, record=False).tokens


def _first_wrong(task: ReactionTask, trajectory: Trajectory, canvas: Canvas, row: int) -> dict[str, Any]:
    """Which token it should have been, which it was, with what probability, when (0 first, 1 last); is it right as the last?"""
    order = [position for position in trajectory.order[row].tolist() if position >= 0]
    truth, tokens = canvas.truth[row].tolist(), trajectory.tokens[row].tolist()
    k = next(k for k, position in enumerate(order) if truth[position] != tokens[position])
    texts = [task.text([ids[order[k]]]) for ids in (truth, tokens)]
    # With all other tokens right: what even the last place in an order would not mend.
    alone = canvas.rows(torch.tensor([row]))
    alone = replace(alone, tokens=alone.truth.index_fill(1, torch.tensor([order[k]]), task.denoiser.mask_id))
    last = unmask(task.denoiser, load_scheduler("confidence"), alone, record=False).tokens
    return {
        "truth": texts[0],
        "got": texts[1],
        "p": round(float(trajectory.logp[row, k].exp()), 6),
        "when": round(k / max(1, len(order) - 1), 4),
        "last": bool((last == alone.truth).all()),
    }


def token_class(token: str) -> str:
    """What a token of SMILES writes."""
    if token in ("(", ")"):
        return "branch"
    if token.isdigit() or token.startswith("%"):
        return "ring bond"
    if token.startswith("["):
        return "atom in brackets"
    if token[:1].isalpha():
        return "aromatic atom" if token[0].islower() else "carbon" if token == "C" else "other atom"
    return "bond or dot"


def _failures(title: str, result: Any) -> Table:
    """The first wrong reveals of one scheduler by what should have been there."""
    wrong = [one for one in result["wrong"] if one is not None]
    groups: dict[str, list[Any]] = {}
    for one in wrong:
        groups.setdefault(token_class(one["truth"]), []).append(one)
    largest = sorted(groups.items(), key=lambda group: -len(group[1]))
    rows = [_failure_row(name, group, len(wrong)) for name, group in [*largest, ("all", wrong)] if group]
    note = (
        "p: the model's probability of the wrong token when it was revealed. When: 0 is the first reveal, 1 the last. "
        "Right as the last: with all other tokens right, the model's likeliest token is the truth; elsewhere no order mends it."
    )
    return Table.of(title, rows, note)


def _failure_row(name: str, wrong: Sequence[Any], total: int) -> TableRow:
    swaps = Counter(f"{one['truth']} → {one['got']}" for one in wrong).most_common(3)
    return {
        "the truth is": name,
        "share %": percent_interval(*count_limits(len(wrong), total)),
        "mean p": f"{np.mean([one['p'] for one in wrong]):.2f}",
        "when": f"{np.mean([one['when'] for one in wrong]):.2f}",
        "right as the last %": percent(float(np.mean([one["last"] for one in wrong]))),
        "most often": ", ".join(f"{swap} ({count})" for swap, count in swaps),
    }


def _limits(marks: Sequence[bool]) -> tuple[float, float, float]:
    return count_limits(sum(marks), len(marks))
