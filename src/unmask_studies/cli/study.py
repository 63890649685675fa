"""``unmask study``: questions that are answered by a table, each by one command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from unmask.cli.shell import console, find_option, progress_bar, quote_command, with_config
from unmask.runs.processes import current_group
from unmask_studies.catalogue import list_studies, load_study
from unmask_studies.study import Done, Findings, conclude, run_study
from unmask_studies.tables import Cell

PATIENCE = timedelta(days=2)
"""How long a process of a shared study waits for the others to finish their shares."""


@dataclass(frozen=True)
class Study:
    """Answer a question by a table. Every table and figure of the paper, at our scale, and what the paper does not ask.

    $ unmask study
    $ unmask study sudoku --quick
    $ unmask study sudoku --data rao_5000.csv --out runs/study/sudoku
    $ unmask study ablations --runs runs --no-train
    $ accelerate launch --num_processes 4 -m unmask study llada --denoiser GSAI-ML/LLaDA-8B-Instruct --resume

    A study consists of pieces. Each is kept when it is complete: a study that was killed continues with --resume. Besides these
    options a study has its own, the fields of its preset: `unmask study NAME --help` shows them.
    """

    name: Positional[str] = "list"  # Which study; `list`, or nothing, lists them.
    out: Path | None = None
    """The study's folder: configuration, pieces, study.json, tables.md, figures. By default runs/study/NAME."""
    quick: bool = False  # A small version, for a look: its numbers are not results.
    resume: bool = False  # Continue a study that was interrupted. Without it an existing folder is refused.
    preset: Path | None = None  # Your own TOML file, in place of the study's preset.
    generated: bool = True  # Generated puzzles, too. With --no-generated only those of --data.
    limit: int | None = None  # How many puzzles of each set, in place of the preset's numbers.
    reuse: tuple[Path, ...] = ()
    """Folders of other studies: what they have measured already, on the same puzzles, is not measured again."""

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Any:
        """With the fields of the study that ``words`` name as further options."""
        first = words[0] if words and not words[0].startswith("-") else "list"
        name = next((word for word in words if word in list_studies()), first)
        if name == "list":
            return cls
        preset = find_option(words, "--preset")
        return with_config(cls, load_study(name, "--quick" in words, None if preset is None else Path(preset)))

    def run(self) -> None:
        if self.name == "list":
            console.print(_listing())
            return
        if self.name not in list_studies():
            load_study(self.name)  # refuses the name
        (declared,) = (one for one in fields(self) if one.name == "config")
        study = self._change_sets(getattr(self, "config"), declared.default)  # noqa: B009
        folder = self.out or Path("runs") / "study" / (f"{self.name}-quick" if self.quick else self.name)
        processes = current_group(PATIENCE, study.on_cpu) if study.shared else None
        for table in tables(Findings(study.plan())):
            console.print(table)
        for _ in _show(run_study(study, folder, self.resume, self.reuse, processes)):
            pass
        if processes is not None and not processes.is_first:
            return  # the first process has the results
        findings = conclude(study, folder, self.name, quote_command())
        for table in tables(findings):
            console.print(table)
        files = ("study.json", "tables.md", *(f"{figure}.svg" for figure in findings.figures))
        console.print(f"everything is in {folder}: {', '.join(files)}")

    def _change_sets(self, study: Any, preset: Any) -> Any:
        """The study with the number and the seed of its puzzles."""
        if not hasattr(study, "sets"):
            if self.limit is not None or not self.generated:
                raise ValueError(
                    f"the study {self.name} has its own puzzles: it takes neither --limit nor --no-generated"
                )
            return study
        changes = {} if study.seed == preset.seed else {"seed": study.seed}
        changes |= {} if self.limit is None else {"limit": self.limit, "generated": self.limit}
        changes |= {} if self.generated else {"generated": 0}
        return replace(study, sets=replace(study.sets, **changes))


def tables(findings: Findings) -> list[Table]:
    """The tables as the terminal shows them. What is strong is bold and has a star, for terminals without bold."""
    shown = []
    for table in findings.tables:
        out = Table(title=table.title, caption=table.note or None, title_justify="left", caption_justify="left")
        for nth, column in enumerate(table.columns):
            out.add_column(column, justify="right" if nth else "left")
        for row in table.rows:
            cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
            out.add_row(*(Text(cell.text + " *" * cell.strong, "bold" if cell.strong else "") for cell in cells))
        shown.append(out)
    return shown


def _listing() -> Table:
    table = Table("study", "what", "minutes on one core", "with --quick")
    for entry in list_studies().values():
        table.add_row(entry.name, entry.description, f"{entry.minutes:.0f}", f"{entry.quick_minutes:.0f}")
    return table


def _show(pieces: Iterator[Done]) -> Iterator[Done]:
    """A bar on a terminal; in a log a line per piece."""
    with progress_bar("{task.description}", "pieces") as progress:
        bar = progress.add_task("starting", total=None)
        for done in pieces:
            progress.update(bar, completed=done.nth, total=done.total, description=done.name)
            if not console.is_terminal:
                how = "was there" if done.seconds is None else f"{done.seconds:.0f} s"
                console.print(f"{done.nth} of {done.total}: {done.name} ({how})")
            yield done
