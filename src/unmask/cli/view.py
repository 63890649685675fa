"""``unmask view``: the viewer of recorded decodings, as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from unmask.cli.report import PAGE
from unmask.cli.shell import console, require_writable
from unmask.report.gather import gather
from unmask.report.traces.format import Trace
from unmask.report.viewer import page as viewer
from unmask.runs.atomic import atomic_write


@dataclass(frozen=True)
class View:
    """Write the viewer, which plays orders step by step. One HTML file, two orders side by side; no server and no network.

    $ unmask view traces --out orders.html
    $ unmask view traces/0001.json other/0001.json --out orders.html
    """

    traces: Positional[tuple[Path, ...]]
    """Trace files, or folders of them (see `unmask trace`). Traces of the same problem can be compared."""
    out: Path = Path("orders.html")  # The page to write.
    title: str = viewer.TITLE  # Its heading.

    def run(self) -> None:
        found = _read_traces(self.traces)
        require_writable(self.out, PAGE)
        atomic_write(self.out, viewer.page(found, self.title).encode())
        count = "1 trace" if len(found) == 1 else f"{len(found)} traces"
        console.print(f"wrote {count} to {self.out}; open it in a browser")


def _read_traces(paths: tuple[Path, ...]) -> list[Trace]:
    if not paths:
        raise ValueError("there is nothing to view: name trace files, or a folder of them (see unmask trace)")
    found = gather(paths)
    if found.evaluations or found.trainings or not found.traces:
        raise ValueError(f"expected traces, got something else among {', '.join(map(str, paths))}: see unmask report")
    return found.traces
