"""``unmask evaluate``: several schedulers on the same problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from unmask.cli.shell import (
    FIRST,
    Inline,
    console,
    find_option,
    progress_bar,
    quote_command,
    require_new_folder,
    require_writable,
)
from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Scheduler, Task
from unmask.denoisers.placement import Placement
from unmask.evaluation.evaluate import EvaluationOptions, Report, evaluate, load_schedulers
from unmask.report import cases
from unmask.report.terminal import tables as terminal
from unmask.report.traces import record as trace
from unmask.runs.config import Count, config
from unmask.runs.processes import ProcessGroup, current_group
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.kinds import EvaluationRequest, evaluation_set, find_kind


@config
class Evaluate:
    """Compare schedulers on the same problems. Prints a table with intervals and paired comparisons.

    $ unmask evaluate --denoiser sudoku-9x9-imperfect --limit 500
    $ unmask evaluate --data puzzles.csv --schedulers confidence,margin,gt_logp --json out.json
    $ unmask evaluate --steps 20 10 --schedulers confidence,entropy --decoding.block 27
    $ unmask evaluate --denoiser sudoku-9x9-imperfect --schedulers confidence,sas --json out.json --traces traces
    $ unmask evaluate --task reaction --denoiser models/rxnmapper --data reactions.csv --hide 0.7

    A task has options of its own: `unmask evaluate --task NAME --help` shows them.
    """

    task: str = "sudoku"
    """The kind of problem: sudoku, arithmetic, ordered, code, countdown, text, antibody or reaction."""
    data: Path | None = None
    """A CSV file of puzzles, or JSON lines of Countdown problems; without it, generated ones of the test split. For text, JSON
    lines of prompts and completions, of which the length is given; a CSV file of antibodies, of which the test side counts, or of
    reactions."""
    denoiser: str = "sudoku-9x9"  # A shipped name, a folder (or the run that trained it), or a hub id.
    schedulers: tuple[str, ...] | None = None
    """Names separated by commas; options after colons, as in top_k_random:k=3; sas is the denoiser's learned policy. By default
    the heuristics that suit the task."""
    blocks: tuple[Count, ...] = ()  # Block sizes for semi-autoregressive decoding; several give several rows.
    steps: tuple[Count, ...] = ()  # Step budgets for parallel decoding; several give several rows.
    pace: tuple[str, ...] = ()
    """Rules for how many per step (threshold:p=0.9, factor, entropy_bound, kl_stable, less, dilated); several give several rows."""
    revision: tuple[str, ...] = ()
    """Rules that take revealed tokens back (t2t, t2m:p=0.9, remdm_conf, p2, doubt); several give several rows."""
    decoding: Decoding = field(default_factory=Decoding)  # What all rows have in common.
    baseline: str | None = None
    """The scheduler that the others are compared with, puzzle by puzzle; confidence by default, if it is among them."""
    limit: int = 200  # How many problems.
    placement: Annotated[Placement, Inline] = field(default_factory=Placement)  # Where the denoiser runs.
    batch: int = 64  # Canvases decoded together. It changes speed and memory, not results.
    seed: int = 0  # For generated puzzles and for random orders.
    nll: bool = True  # Also price the solution exactly along each order (costs a second decoding of what failed).
    by_difficulty: bool = False
    """Also print accuracy by difficulty: of a puzzle, by the hardest technique that it needs."""
    json: Path | None = None  # Write everything to this file.
    traces: Path | None = None
    """Also record the most informative problems, for `unmask view` and `unmask report`, into this new folder."""
    trace_cases: Count = 8
    """How many: won, lost and failed by both in turn, the learned (or the best) scheduler against the baseline."""

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Any:
        """With the options of the task that ``words`` name."""
        kind = find_kind(find_option(words, "--task") or "sudoku")
        types = get_type_hints(kind, include_extras=True)
        defaults = {name: getattr(kind, name) for name in kind.options}
        options = {name: Annotated[types[name], tyro.conf.arg(help=text)] for name, text in kind.options.items()}
        about = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__annotations__": options}
        return config(type(cls.__name__, (cls,), about | defaults))

    def _task_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in find_kind(self.task).options if hasattr(self, name)}

    def run(self) -> None:
        self._check_outputs()
        request = EvaluationRequest(self.data, self.limit, self.seed)
        found = evaluation_set(self.task, self.denoiser, request, self._task_options(), **self.placement.options)
        model, problems = found.denoiser, found.task
        about = trace.About(self.task, self.denoiser, found.label_token, found.grid, draw=found.draw)
        names = find_kind(self.task).schedulers if self.schedulers is None else self.schedulers
        schedulers = load_schedulers(names, lambda name: load_scheduler(name, model, self.denoiser))
        options = EvaluationOptions(self.denoiser, self.baseline, batch=self.batch, seed=self.seed, likelihood=self.nll)
        processes = current_group(cpu=self.placement.on_cpu)
        report = show_evaluation(problems, model, schedulers, self.decodings, options, processes)
        if not FIRST:
            return  # of several processes one writes
        console.print(terminal.comparison(report))
        console.print(f"decoded on {self.placement.describe()}")
        if self.by_difficulty:
            console.print(terminal.strata(report))
        if self.json is not None:
            report.write(self.json, command=quote_command())
        if self.traces is not None:
            recording = cases.record_cases(
                report, problems, model, schedulers, self.decodings, about, self.traces, self.trace_cases
            )
            with progress_bar("{task.description}", "traces") as progress:
                total = min(self.trace_cases, len(problems)) * len(self.decodings)
                written = list(progress.track(recording, total=total, description="recording"))
            shown = f"unmask view {self.traces}" if self.json is None else f"unmask report {self.json} {self.traces}"
            count = "1 trace" if len(written) == 1 else f"{len(written)} traces"
            console.print(f"wrote {count} to {self.traces}; see them with: {shown}", soft_wrap=True)

    @property
    def decodings(self) -> dict[str, Decoding]:
        """A row of the table each."""
        base = self.decoding
        decodings = {f"block {b}": replace(base, block=b) for b in self.blocks}
        decodings |= {f"{t} steps": replace(base, steps=t) for t in self.steps}
        decodings |= {name: replace(base, pace=name) for name in self.pace}
        decodings |= {name: replace(base, revision=name) for name in self.revision}
        return decodings or {"sequential" if base == Decoding() else base.describe(): base}

    def _check_outputs(self) -> None:
        """Before minutes of work, not after."""
        find_kind(self.task)
        if self.json is not None:
            if self.data is not None and self.json.resolve() == self.data.resolve():
                raise ValueError(f"--json would overwrite the puzzles in {self.data}: name another file")
            require_writable(self.json, '"task"')
        if self.traces is not None:
            require_new_folder(self.traces)


def show_evaluation(
    problems: Task,
    model: Any,
    schedulers: dict[str, Scheduler],
    decodings: dict[str, Decoding],
    options: EvaluationOptions,
    processes: ProcessGroup | None = None,
) -> Report:
    """Decode everything with a live line."""
    with progress_bar("{task.description}", "puzzles") as progress:
        bar = progress.add_task("decoding", total=len(problems) * len(schedulers) * len(decodings))

        def advance(scheduler: str, count: int) -> None:
            progress.update(bar, advance=count, description=scheduler)

        return evaluate(problems, model, schedulers, decodings, options, progress=advance, processes=processes)
