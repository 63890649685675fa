"""``unmask study``: questions that are answered by a table, each by one command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from unmask.cli.shell import console, progress_bar
from unmask_studies.catalogue import list_studies, load_study
from unmask_studies.study import Done, Findings, conclude, run_study
from unmask_studies.tables import Cell


def study_command(
    name: str = "list",
    /,
    out: Path | None = None,
    quick: bool = False,
    resume: bool = False,
    preset: Path | None = None,
    data: tuple[Path, ...] = (),
    generated: bool = True,
    limit: int | None = None,
    reuse: tuple[Path, ...] = (),
    runs: Path | None = None,
    train: bool = True,
    denoiser: str | None = None,
    schedulers: str | None = None,
    seed: int | None = None,
) -> None:
    """Answer a question by a table. Every table and figure of the paper, at our scale, and what the paper does not ask.

    $ unmask study
    $ unmask study sudoku --quick
    $ unmask study sudoku --data rao_5000.csv --out runs/study/sudoku
    $ unmask study ablations --runs runs --no-train

    A study is made of pieces. Each is kept when it is complete: one that was killed goes on with --resume.

    Args:
        name: Which study; `list`, or nothing, lists them.
        out: The study's folder: configuration, pieces, study.json, tables.md, figures. By default runs/study/NAME.
        quick: A small version, for a look: its numbers are not results.
        resume: Go on with a study that was interrupted. Without it an existing folder is refused.
        preset: Your own TOML file, in place of the study's preset.
        data: CSV files of puzzles, beside the generated ones; JSON lines (countdown); antibodies (antibody); a text (characters).
        generated: Generated puzzles, too. With --no-generated only those of --data.
        limit: How many puzzles of each set, in place of the preset's numbers.
        reuse: Folders of other studies: what they have measured already, on the same puzzles, is not measured again.
        runs: A folder of finished runs, each called after its preset or preset@seed, for studies that train.
        train: Train what is missing among the runs. With --no-train it is omitted (ablations).
        denoiser: Another denoiser than the preset's, for studies of one denoiser.
        schedulers: Other schedulers than the preset's, separated by commas.
        seed: Which generated puzzles, and the seed of random schedulers.
    """
    if name == "list":
        console.print(_listing())
        return
    study = load_study(name, quick, preset)
    chosen = (
        None
        if schedulers is None
        else tuple(dict.fromkeys(word.strip() for word in schedulers.split(",") if word.strip()))
    )
    study = _changed(
        name, study, data=data or None, runs=runs, train=None if train else False, denoiser=denoiser, schedulers=chosen
    )
    if seed is not None:
        study = replace(study, seed=seed)
    sets = {} if seed is None else {"seed": seed}
    sets |= {} if limit is None else {"limit": limit, "generated": limit}
    sets |= {} if generated else {"generated": 0}
    if _has(study, "sets"):
        study = replace(study, sets=replace(study.sets, **sets))
    elif limit is not None or not generated:
        raise ValueError(f"the study {name} has its own puzzles: it takes neither --limit nor --no-generated")
    folder = out or Path("runs") / "study" / (f"{name}-quick" if quick else name)
    for _ in _shown(run_study(study, folder, resume, reuse)):
        pass
    findings = conclude(study, folder, name, shlex.join(["unmask", *sys.argv[1:]]))
    for table in tables(findings):
        console.print(table)
    drawn = ", ".join(f"{figure}.svg" for figure in findings.figures)
    console.print(f"everything is in {folder}: study.json, tables.md, {drawn}")


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


def _shown(pieces: Iterator[Done]) -> Iterator[Done]:
    """A bar on a terminal; in a log a line per piece."""
    with progress_bar("{task.description}", "pieces") as progress:
        bar = progress.add_task("starting", total=None)
        for done in pieces:
            progress.update(bar, completed=done.nth, total=done.total, description=done.name)
            if not console.is_terminal:
                how = "was there" if done.seconds is None else f"{done.seconds:.0f} s"
                console.print(f"{done.nth} of {done.total}: {done.name} ({how})")
            yield done


def _has(study: Any, name: str) -> bool:
    return name in {field.name for field in fields(study)}


def _changed(name: str, study: Any, **options: Any) -> Any:
    """The study with the options that were given; one that it does not have is refused."""
    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if not _has(study, key):
            able = [
                entry.name for entry in list_studies().values() if key in {f.name for f in fields(entry.load_class())}
            ]
            option = "no-train" if key == "train" else key
            raise ValueError(f"the study {name} has no use for --{option}: {', '.join(able)} have")
    return replace(study, **given)
