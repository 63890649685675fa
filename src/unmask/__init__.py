"""unmask: decode masked diffusion language models in any order, and learn the order."""

import unmask.runs.threads  # before anything loads torch
from unmask.decoding.loop import trajectory_logp, unmask
from unmask.decoding.options import Decoding
from unmask.decoding.paces import load_pace
from unmask.decoding.protocols import Canvas, Denoiser, Pace, Scheduler, States, Task, Trajectory, Verdict, View
from unmask.denoisers.loading import load_denoiser
from unmask.evaluation.evaluate import Report, evaluate
from unmask.report.page import table_html
from unmask.report.traces.record import trajectory_html
from unmask.schedulers.loading import load_scheduler

__version__ = "0.1.0"
__all__ = [
    "Canvas",
    "Denoiser",
    "Pace",
    "Trajectory",
    "Decoding",
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
    "trajectory_logp",
    "unmask",
]

# What a notebook shows. Here, because the modules that define them know nothing of HTML.
Trajectory._repr_html_, Report._repr_html_ = trajectory_html, table_html  # pyright: ignore[reportAttributeAccessIssue]
