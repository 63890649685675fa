"""The command ``unmask``: which function each of its commands calls, and the small ones among them."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from unmask.cli.shell import console, require_writable, run
from unmask.denoisers.loading import list_denoisers
from unmask.runs.names import EntryPoints
from unmask.runs.presets import list_presets
from unmask.schedulers.loading import SCHEDULERS, list_policies
from unmask.tasks.sudoku import TECHNIQUES, hardest, read_csv, write_csv
from unmask.tasks.sudoku.task import SudokuTask


def data(
    out: Path | None = None,
    /,
    count: int = 1000,
    size: int = 9,
    clues: str | None = None,
    split: str = "test",
    seed: int = 0,
    check: Path | None = None,
) -> None:
    """Generate Sudoku puzzles, or check a file of them. Each has exactly one solution.

    $ unmask data puzzles.csv --count 2000 --clues rao
    $ unmask data --check puzzles.csv

    Args:
        out: The CSV file to write (puzzle, solution).
        count: How many puzzles.
        size: 4, 6 or 9.
        clues: "rao" (the histogram of the corpus in the paper), "wide" (harder), or a range such as 25-35.
        split: train, validation or test. No puzzle has a relative, under the grid's symmetries, in another split.
        seed: Which corpus.
        check: Verify this file instead: every row must have exactly one solution. Says how hard its puzzles are.
    """
    if check is not None:
        if out is not None:
            raise ValueError(f"name a file to write or one to check, not both: got {out} and --check {check}")
        file = read_csv(check)
        given = (file.puzzles > 0).sum(1)
        console.print(
            f"{check}: {len(given)} puzzles, each with one solution; clues {given.min()} to {given.max()}, mean {given.mean():.1f}"
        )
        table = Table("hardest technique needed", "puzzles", "share")
        techniques = hardest(file.puzzles, file.solutions)
        for number, name in enumerate(TECHNIQUES):
            if (amount := int((techniques == number).sum())) > 0:
                table.add_row(name, str(amount), f"{amount / len(given):.1%}")
        console.print(table)
        return
    if out is None:
        raise ValueError("name the file to write, or --check FILE to verify one")
    if out.exists():
        raise ValueError(f"{out} exists: name another file, or remove it first")
    require_writable(out)
    task = SudokuTask.generated(count, size, clues, split, seed)
    aside = out.with_name(f".{out.name}.part")
    try:
        write_csv(aside, task.puzzles, task.solutions)
        aside.rename(out)
    finally:
        aside.unlink(missing_ok=True)
    console.print(f"wrote {len(task)} puzzles ({split} split, seed {seed}) to {out}")


def presets() -> None:
    """List the presets, denoisers and schedulers by name."""
    table = Table("for", "preset", "what")
    for preset in list_presets():
        table.add_row(preset.kind, preset.name, preset.description)
    console.print(table)
    console.print(f"denoisers: {', '.join(list_denoisers())}")
    console.print(f"policies: {', '.join(list_policies())}")
    console.print(f"schedulers: {', '.join(SCHEDULERS)}")


COMMANDS = EntryPoints("unmask.commands")


def main() -> None:
    """The order of thought of masked diffusion language models."""
    run(COMMANDS, "unmask", str(main.__doc__))


if __name__ == "__main__":
    main()
