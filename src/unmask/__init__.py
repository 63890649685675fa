"""unmask: decode masked diffusion language models in any order, and learn the order."""

import unmask.threads  # before anything loads torch
from unmask.decode import path_logp, unmask
from unmask.evaluate import Report, evaluate
from unmask.live import Regime
from unmask.protocols import Canvas, Denoiser, Pace, Path, Scheduler, States, Task, Verdict, View
from unmask.registry import load_denoiser, load_pace, load_scheduler
from unmask.report.page import table_html
from unmask.report.trace import path_html

__version__ = "0.1.0"
__all__ = [
    "Canvas",
    "Denoiser",
    "Pace",
    "Path",
    "Regime",
    "Report",
    "Scheduler",
    "States",
    "Task",
    "Verdict",
    "View",
    "evaluate",
    "load_denoiser",
    "load_pace",
    "load_scheduler",
    "path_logp",
    "unmask",
]

# What a notebook shows. Here, because the modules that define them know nothing of HTML.
Path._repr_html_, Report._repr_html_ = path_html, table_html  # pyright: ignore[reportAttributeAccessIssue]
