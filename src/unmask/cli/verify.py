"""``unmask verify``: the theorems of the paper, checked exactly."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from rich.table import Table

from unmask.cli.shell import Inline, console, require_writable, write_json
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.placement import Placement
from unmask.tasks.sudoku.task import SudokuTask
from unmask.theory.claims import claims


@dataclass(frozen=True)
class Verify:
    """Check every theorem of the paper, exactly. On a real small denoiser and on enumerable tables.

    $ unmask verify --json claims.json
    """

    denoiser: str = "sudoku-4x4"  # A denoiser of 4x4 boards.
    puzzles: int = 3  # How many boards; each is enumerated with all its orders.
    clues: int = 8  # Given cells of a board: with 8 there are 256 states.
    seed: int = 1  # Which boards, and which random tables.
    placement: Annotated[Placement, Inline] = field(default_factory=Placement)  # Where the denoiser runs.
    json: Path | None = None  # Also write the rows to this file.

    def run(self) -> None:
        if self.json is not None:
            require_writable(self.json)
        problems = SudokuTask.generate(self.puzzles, 4, f"{self.clues}-{self.clues}", "test", self.seed)
        denoiser = load_denoiser(self.denoiser, **self.placement.options)
        rows = claims(denoiser, problems.canvas(range(self.puzzles)).to(denoiser.device), seed=self.seed)
        title = f"{self.denoiser}, {self.puzzles} boards with {16 - self.clues} blanks"
        table = Table("claim", "left", "", "right", "holds", "note", title=title)
        for row in rows:
            holds = "yes" if row.holds else "NO"
            table.add_row(row.claim, f"{row.left:.6f}", row.relation, f"{row.right:.6f}", holds, row.note)
        console.print(table)
        if self.json is not None:
            write_json(self.json, {"denoiser": self.denoiser, "rows": [asdict(row) for row in rows]})
        failed = [row.claim for row in rows if not row.holds]
        console.print(f"{len(rows) - len(failed)} of {len(rows)} hold; the denoiser ran on {self.placement.describe()}")
        if failed:
            raise ValueError(f"{len(failed)} claims do not hold: {'; '.join(failed)}")
