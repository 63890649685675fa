"""``unmask report``: results as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from unmask.cli.shell import console, quote_command, require_writable
from unmask.report import page

PAGE = '<meta name="generator" content="unmask">'
"""Every page that this library writes has it: a page without it is not overwritten."""


@dataclass(frozen=True)
class Report:
    """Write a report as one HTML page. Tables, intervals, curves and cases; it needs nothing else to be read.

    $ unmask evaluate --denoiser sudoku-9x9-imperfect --schedulers confidence,margin,sas --json out.json
    $ unmask report out.json runs/order traces --out report.html
    """

    inputs: Positional[tuple[Path, ...]]
    """Evaluations (`unmask evaluate --json`), folders of studies and of training runs, traces or folders of them, in any order."""
    out: Path = Path("report.html")  # The page to write.
    title: str | None = None  # Its heading; by default it names the denoisers.

    def run(self) -> None:
        require_writable(self.out, PAGE)
        page.write(self.inputs, self.out, self.title, quote_command())
        console.print(f"wrote {self.out}; open it in a browser")
