"""unmask: decode masked diffusion language models in any order, and learn the order."""

from unmask.decode import path_logp, unmask
from unmask.evaluate import evaluate
from unmask.live import Regime
from unmask.protocols import Canvas, Denoiser, Pace, Path, Scheduler, States, Task, Verdict, View
from unmask.registry import load_denoiser, load_pace, load_scheduler

__version__ = "0.1.0"
__all__ = [
    "Canvas",
    "Denoiser",
    "Pace",
    "Path",
    "Regime",
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
