"""Other ways to learn an order of reactions: seeds of the recipe that ships, rivals at as many calls, several tokens per step.

Every training sends about as many canvases through the frozen denoiser, its ``calls``, validation aside; equal states of a
group are one of them, so that methods with groups take more steps. A rival's preset says what it changes in ``base``, which is
made for boards; the same changes are made to ``general``, the general policy on reactions, since the kind ``opinion`` learns by
the objective ``tokens`` alone. An opinion also runs a copy of the denoiser, on every state that it is updated on and in every
step of a decoding; the tables count these canvases apart.

The denoiser has probably seen these reactions; the orders have not: they are trained on ``train``, all numbers are of ``data``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas
from unmask.denoisers.hub import digest
from unmask.denoisers.loading import describe_source
from unmask.evaluation.statistics import mean_interval, paired_bootstrap
from unmask.report import figures
from unmask.report.numbers import percent, percent_interval
from unmask.runs.presets import list_presets
from unmask.runs.run import Run
from unmask.schedulers.loading import describe_policy, load_scheduler
from unmask.schedulers.policy import build_policy
from unmask.tasks.kinds import DEFAULT_PRESET
from unmask.training.policy.methods import build_posterior, choose_method
from unmask.training.policy.rollout import collect
from unmask.training.policy.run import PolicyRun
from unmask.training.policy.validation import best_step
from unmask_studies.reactions.study import SEEN, describe_gap, join_pieces, measure_reactions
from unmask_studies.reactions.task import ReactionData, ReactionProblems
from unmask_studies.reports import get_denoiser
from unmask_studies.study import Findings, GridStudy, Key, Result, Results
from unmask_studies.tables import Cell, Limits, Table, TableRow, count_limits, label, points_gap
from unmask_studies.training_runs import ensure_run, find_run, load_recipe, read_history, run_name, transfer_options

PART = 100
"""Reactions of a piece."""
REFERENCE = "confidence"
ONE = "one per step"
GENERAL = "The default recipe's general policy: the price of the truth in the states that its own greedy orders visit"
COINS = "coins"
PARALLEL = "-parallel"
"""Ends the name of a training whose rollouts reveal several tokens per step."""
SHARED = ("prompts", "at_once", "select", "validate", "save_every")
"""Options of a training that the default recipe takes from the general one."""


@dataclass(frozen=True)
class Rivals(GridStudy):
    """Orders for ``denoiser``, learned from ``train`` and measured on ``data``, CSV files of reactions, 70 % of the product hidden.

    ``recipe`` is the preset of the order ``shipped``, trained again with each of ``seeds`` and measured on ``seed_limit``
    reactions; ``rivals`` are presets, on ``limit``. At ``budgets`` steps the orders of ``parallel`` are measured: a preset's name
    ends in ``-parallel`` where its rollouts take ``parallel_steps`` steps. ``runs`` is a folder of finished trainings, called as
    here. ``steps`` shortens every training, for a look.
    """

    denoiser: str = "models/rxnmapper"
    data: Path | None = None
    train: Path | None = None
    recipe: str = "sas-rxnmapper"
    shipped: str = "sas"
    seeds: tuple[int, ...] = (1, 2)
    general: str = "sas-rxnmapper-general"
    base: str = "ablation-all-action"
    rivals: tuple[str, ...] = ("default", "sas-rxnmapper-general")
    budgets: tuple[int, ...] = (12, 6)
    parallel: tuple[str, ...] = (REFERENCE, "sas")
    parallel_steps: int = 6
    calls: int = 4800
    steps: int | None = None
    runs: Path | None = None
    limit: int = 300
    seed_limit: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.limit, self.seed_limit) < 2 or min(self.calls, self.parallel_steps, *self.budgets) < 1:
            raise ValueError(
                f"expected limits of 2 or more, calls and steps of 1 or more, got {self.limit}, {self.seed_limit}, {self.calls}, "
                f"{self.parallel_steps}, {self.budgets}"
            )
        if self.budgets and REFERENCE not in self.parallel:
            raise ValueError(f"parallel must have {REFERENCE}, with which the others are compared, got {self.parallel}")

    @property
    def again(self) -> tuple[str, ...]:
        return tuple(run_name(self.recipe, seed) for seed in self.seeds)

    @property
    def coins(self) -> tuple[str, ...]:
        """The rivals that also have a pace of their own."""
        return tuple(name for name in self.rivals if self.load_recipe(name).training.objective == "bernoulli")

    def rows(self) -> Iterator[tuple[str, str, int]]:
        """Method, decoding and number of reactions of everything that is measured."""
        most = max(self.seed_limit if self.seeds else 0, self.limit if self.rivals else 0)
        if most:
            yield from ((name, ONE, most) for name in (REFERENCE, self.shipped))
        yield from ((name, ONE, self.seed_limit) for name in self.again)
        yield from ((name, ONE, self.limit) for name in self.rivals)
        yield from ((name, COINS, self.limit) for name in self.coins)
        yield from ((name, f"{steps} steps", self.limit) for steps in self.budgets for name in self.parallel)

    def points(self) -> Iterator[Key]:
        for method, how, limit in self.rows():
            yield from ((method, how, first) for first in range(0, limit, PART))

    def grid(self) -> list[Key]:
        if self.data is None or self.train is None:
            raise ValueError("the study needs reactions: name CSV files (reactants, product) with --data and --train")
        if not Path(self.denoiser).is_dir():
            name = Path(self.denoiser).name
            raise ValueError(f"there is no {self.denoiser}: run unmask models {name} --out {self.denoiser} first")
        return super().grid()

    def measure(self, key: Key, folder: Path) -> Result:
        method, how, first = str(key[0]), str(key[1]), int(key[2] or 0)
        denoiser = get_denoiser(self.denoiser)
        problems = load_problems(ReactionData(file=str(self.data), seed=self.seed), self.denoiser)
        task = problems.held_out(self._limit(method, how), "all")
        run = None if method in (REFERENCE, self.shipped) else self.ensure(method, folder)
        history = {} if run is None else describe_run(run)
        if how != COINS and history.get("kept") == 0:
            return {"as": REFERENCE, "history": history}  # the weights of the start, whose order is that of confidence
        scheduler = load_scheduler(method if run is None else str(run), denoiser, self.denoiser)
        rows = range(first, min(first + PART, len(task)))
        return {**measure_reactions(task, scheduler, self.seed, rows, decoding=decoding_of(how)), "history": history}

    def identity(self, key: Key) -> Result | None:
        method, how, first = str(key[0]), str(key[1]), int(key[2] or 0)
        if self.data is None or self.train is None:
            return None
        found = method if method in (REFERENCE, self.shipped) else find_run(method, self.runs)
        return {
            "denoiser": describe_source(self.denoiser),
            "data": digest([self.data]),
            "rows": [first, min(first + PART, self._limit(method, how))],
            "scheduler": method,
            "decoding": how,
            "policy": self._learned(method) if found is None else describe_policy(str(found), self.denoiser),
            "seed": self.seed,
        }

    def _learned(self, method: str) -> Result:
        """What a training depends on."""
        recipe = self.load_recipe(method)
        anywhere = replace(recipe, denoiser="", data=replace(cast(ReactionData, recipe.data), file=""))
        lengths = {"calls": self.calls, "steps": self.steps}
        return {"recipe": anywhere, "train": digest([cast(Path, self.train)]), **lengths}

    def _limit(self, method: str, how: str) -> int:
        return next(limit for name, decoding, limit in self.rows() if (name, decoding) == (method, how))

    def ensure(self, method: str, folder: Path) -> Path:
        """The finished training of that name, found or run now."""
        found = find_run(method, self.runs) or find_run(method, folder / "runs")
        return found or ensure_run(method, self.equalize(self.load_recipe(method)), folder)

    def load_recipe(self, method: str) -> PolicyRun:
        """The training of a method, as long as its preset says."""
        name, _, seed = method.removesuffix(PARALLEL).partition("@")
        general = load_recipe(self.general, denoiser=self.denoiser)
        if name == self.recipe:
            found = load_recipe(name, int(seed) if seed else None, denoiser=self.denoiser)
        elif name == DEFAULT_PRESET:
            own = load_recipe(name)
            shared = {option: getattr(general.training, option) for option in SHARED}
            found = replace(general, policy=own.policy, training=replace(own.training, race=(), **shared))
        elif name == self.general:
            found = general
        else:
            found = transfer_options(load_recipe(name), load_recipe(self.base), general)
            orders = general.training.prompts * general.training.group
            found = replace(found, training=replace(found.training, prompts=max(1, orders // found.training.group)))
        training = found.training
        if method.endswith(PARALLEL):
            training = replace(training, decoding=replace(training.decoding, steps=self.parallel_steps))
        data = replace(cast(ReactionData, found.data), file=str(self.train))
        return replace(found, data=data, training=training)

    def equalize(self, config: PolicyRun) -> PolicyRun:
        """As many steps as take about ``calls`` calls, validated before the first and after the last."""
        steps = self.steps or count_steps(config, self.calls)
        return replace(config, training=replace(config.training, steps=steps, validate_every=steps))

    def findings(self, results: Results) -> Findings:
        where = f"{Path(self.denoiser).name}, {describe_gap('random:0.7')}"
        found = Found(self, results)
        tables, panels = [], {}
        if self.seeds:
            rows = [*found.seeds()]
            title = f"{where}: seeds of {self.recipe}, n = {self.seed_limit:,}, seed {self.seed}"
            tables.append(Table.of(title, rows, f"The interval of a mean is Student's over seeds. {SEEN}"))
        if self.rivals:
            title = f"{where}: other methods at about {self.calls:,} calls, n = {self.limit:,}, seed {self.seed}"
            tables.append(Table.of(title, [*found.rivals()], f"{CALLS} {SEEN}"))
            names = (REFERENCE, *self.rivals, self.shipped)
            panels["one token per step"] = [
                figures.share(label(name), found.limits(name, ONE, self.limit)) for name in names
            ]
        if self.budgets:
            title = f"{where}: orders for several tokens per step, n = {self.limit:,}, seed {self.seed}"
            tables.append(Table.of(title, [*found.budgets()], f"{CALLS} {SEEN}"))
            for steps in self.budgets:
                panels[f"{steps} steps"] = [
                    figures.share(label(name), found.limits(name, f"{steps} steps", self.limit))
                    for name in self.parallel
                ]
        return Findings(tables, {"reaction-rivals": figures.intervals(panels, "right, %")} if panels else {})


CALLS = (
    "Calls are canvases through the frozen denoiser, per reaction, or in the training, validation aside; an opinion's copy sees as "
    "many in decoding, and those of the last column in training, with gradients. Kept: the weights of the end or, where they were "
    "not better on held-out training reactions, of the start, which is confidence. Bold: the paired 95 % interval excludes 0."
)


@dataclass(frozen=True)
class Found:
    """The results of a study as rows of its tables."""

    study: Rivals
    results: Results

    def one(self, method: str, how: str, limit: int) -> dict[str, Any]:
        """The first ``limit`` reactions; calls are per reaction."""
        firsts = range(0, limit, PART)
        history = self.results[method, how, 0]["history"]
        pieces = [self.results[self.results[method, how, first].get("as", method), how, first] for first in firsts]
        joined = join_pieces([{name: x for name, x in piece.items() if name != "history"} for piece in pieces])
        short = {name: x[:limit] if isinstance(x, list) else x for name, x in joined.items()}
        return short | {"history": history, "calls": joined["calls"] / len(joined["exact"])}

    def marks(self, method: str, how: str, limit: int) -> Float[np.ndarray, "n"]:
        return np.array(self.one(method, how, limit)["exact"], dtype=float)

    def limits(self, method: str, how: str, limit: int) -> Limits:
        marks = self.marks(method, how, limit)
        return count_limits(int(marks.sum()), len(marks))

    def against(self, method: str, how: str, other: str, limit: int, like: str = "") -> Cell | str:
        """The paired difference to ``other``, decoded as ``like`` says or in the same way; nothing of confidence or of itself."""
        if method == REFERENCE or (method, how) == (other, like or how):
            return ""
        return points_gap(paired_bootstrap(self.marks(method, how, limit), self.marks(other, like or how, limit)))

    def seeds(self) -> Iterator[TableRow]:
        n, shipped = self.study.seed_limit, self.study.shipped
        runs = (shipped, *self.study.again)
        base = self.marks(REFERENCE, ONE, n)
        for method in (REFERENCE, *runs):
            yield {
                "order": f"{label(method)}, as shipped" if method == shipped else method,
                "right %": percent_interval(*self.limits(method, ONE, n)),
                "against confidence, paired": self.against(method, ONE, REFERENCE, n),
                "errors of confidence removed %": ""
                if method == REFERENCE
                else removed(self.marks(method, ONE, n), base),
                "against the shipped one, paired": self.against(method, ONE, shipped, n),
                **training_cells(self.one(method, ONE, n)["history"]),
            }
        share = np.mean([self.marks(method, ONE, n) for method in runs], axis=0)
        mean = mean_interval([float(self.marks(method, ONE, n).mean()) for method in runs])
        yield {
            "order": f"mean of {len(runs)} seeds",
            "right %": percent_interval(mean.mean, max(0.0, mean.low), min(1.0, mean.high)),
            "against confidence, paired": points_gap(paired_bootstrap(share, base)),
            "errors of confidence removed %": removed(share, base),
            "against the shipped one, paired": "",
            **training_cells({}),
        }

    def rivals(self) -> Iterator[TableRow]:
        study, n = self.study, self.study.limit
        about = {preset.name: preset.description.partition(". ")[0].rstrip(".") for preset in list_presets("train")}
        about |= {REFERENCE: "where all begin", study.shipped: about[study.recipe], DEFAULT_PRESET: GENERAL}
        rows = [(name, ONE) for name in (REFERENCE, study.shipped, *study.rivals)]
        for method, how in [*rows, *((name, COINS) for name in study.coins)]:
            one = self.one(method, how, n)
            yield {
                "method": label(method) if how == ONE else f"{method}, its own coins",
                "what": about[method],
                "right %": percent_interval(*self.limits(method, how, n)),
                "against confidence, paired": self.against(method, how, REFERENCE, n, ONE),
                f"against {label(study.shipped)}, paired": self.against(method, how, study.shipped, n, ONE),
                "valid %": percent(np.mean(one["valid"])),
                "calls": f"{one['calls']:.1f}",
                **training_cells(one["history"]),
            }

    def budgets(self) -> Iterator[TableRow]:
        study, n = self.study, self.study.limit
        for steps in study.budgets:
            how = f"{steps} steps"
            for method in study.parallel:
                one = self.one(method, how, n)
                others = [study.shipped] if study.shipped in study.parallel else []
                yield {
                    "steps": str(steps),
                    "order": label(method),
                    "right %": percent_interval(*self.limits(method, how, n)),
                    "against confidence, paired": self.against(method, how, REFERENCE, n),
                    **{f"against {label(other)}, paired": self.against(method, how, other, n) for other in others},
                    "calls": f"{one['calls']:.1f}",
                    **training_cells(one["history"]),
                }


@cache
def load_problems(data: ReactionData, denoiser: str) -> ReactionProblems:
    return data.problems(get_denoiser(denoiser), denoiser)


def decoding_of(how: str) -> Decoding:
    if how == COINS:
        return Decoding(pace="bernoulli")
    return Decoding() if how == ONE else Decoding(steps=int(how.removesuffix(" steps")))


def removed(marks: Float[np.ndarray, "n"], base: Float[np.ndarray, "n"]) -> str:
    """The share of the errors of ``base`` that there are fewer of."""
    return percent(1 - (1 - marks.mean()) / max(1e-9, 1 - base.mean()))


def training_cells(history: Any) -> TableRow:
    """What a training kept and cost; nothing of an order that was not trained here."""
    kept = {"kept": "" if not history else "end" if history["kept"] else "start"}
    counts = {"training calls": "calls", "through the copy": "copied"}
    return kept | {column: f"{history[name]:,}" if history.get(name) else "" for column, name in counts.items()}


def describe_run(run: Path) -> dict[str, Any]:
    """What a training cost, and the step whose weights were kept: 0 is the start."""
    history, records = read_history(run), Run(run).metrics()
    states = sum(record["trajectory_steps"] for record in records)
    copied = round(states) if history["objective"] == "tokens" else 0
    return {**history, "copied": copied, "kept": best_step(records)}


def count_steps(config: PolicyRun, calls: int) -> int:
    """The training steps that take about ``calls`` calls: one for each reveal, but for groups and coins, which are tried out."""
    source = load_problems(cast(ReactionData, config.data), config.denoiser)
    training = config.training
    each = 1.0
    if training.group > 1 or training.objective == "bernoulli":
        each = _calls_of_first(config, source) / _reveals(config, source(0, training.prompts))
    spent, steps = 0.0, 0
    while spent < calls:
        spent += each * (latest := _reveals(config, source(steps, training.prompts)))
        steps += 1
    return max(1, steps - 1 if spent - calls > each * latest / 2 else steps)


def _reveals(config: PolicyRun, canvas: Canvas) -> int:
    """Steps of one rollout of each canvas, if each step reveals what the decoding says."""
    region = canvas.region
    assert region is not None
    most = config.training.decoding.steps or region.shape[1]
    return int(region.sum(1).clamp(max=most).sum())


def _calls_of_first(config: PolicyRun, source: ReactionProblems) -> int:
    """Canvases that the rollouts of the first training step forward."""
    training, denoiser = config.training, get_denoiser(config.denoiser)
    torch.manual_seed(training.seed)
    policy = build_policy(config.policy, denoiser, config.denoiser)
    teacher = load_scheduler(training.teacher, denoiser, config.denoiser) if training.teacher else None
    posterior = build_posterior(training, torch.device("cpu"))
    method = choose_method(training, policy, 0, teacher, posterior, source.judge)
    before = denoiser.forwarded
    collect(denoiser, method, source(0, training.prompts), torch.arange(training.prompts * training.group))
    return denoiser.forwarded - before
