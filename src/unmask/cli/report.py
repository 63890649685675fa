"""``unmask report``: results as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from unmask.cli.shell import console, quote_command, require_writable
from unmask.report import page
from unmask.report.gather import gather
from unmask.report.terminal import tables as terminal
from unmask.runs.atomic import atomic_write

PAGE = '<meta name="generator" content="unmask">'
"""Every page that this library writes has it: a page without it is not overwritten."""


@dataclass(frozen=True)
class Report:
    """Write a report as one HTML page. Tables, intervals, curves and cases; it needs nothing else to be read.

    $ unmask evaluate --denoiser sudoku-9x9-imperfect --schedulers confidence,margin,sas --json out.json
    $ unmask report out.json runs/order traces --out report.html
    $ unmask report runs/gsm8k-confidence runs/gsm8k-sas --out gsm8k.html
    """

    inputs: Positional[tuple[Path, ...]]
    """Evaluations (`unmask evaluate --json`), folders of studies, of training runs and of benchmark runs (`unmask lm-eval`), traces
    or folders of them, in any order. Benchmark runs on the same problems stand in one table, which is printed too."""
    out: Path = Path("report.html")  # The page to write.
    title: str | None = None  # Its heading; by default it names the denoisers.

    def run(self) -> None:
        require_writable(self.out, PAGE)
        inputs = gather(self.inputs)
        atomic_write(self.out, page.render(inputs, self.title, quote_command()).encode())
        for one in inputs.evaluations:
            if one.command is None:
                console.print(terminal.comparison(one.report))
        console.print(f"wrote {self.out}; open it in a browser")
