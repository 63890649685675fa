"""unmask: decode masked diffusion language models in any order, and learn the order.

The public names are imported when they are first used: ``import unmask`` loads neither torch nor anything else that is slow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unmask.runs import threads as _threads  # noqa: F401  (sets an environment variable that torch reads when it is loaded)

if TYPE_CHECKING:
    from unmask.decoding.loop import trajectory_logp, unmask
    from unmask.decoding.options import Decoding
    from unmask.decoding.paces import load_pace
    from unmask.decoding.protocols import (
        Canvas,
        Denoiser,
        Pace,
        Scheduler,
        States,
        Task,
        Trajectory,
        Verdict,
        View,
        scheduler,
    )
    from unmask.denoisers.loading import load_denoiser
    from unmask.evaluation.evaluate import EvaluationOptions, Report, evaluate
    from unmask.generation.generate import Generation, generate, infill
    from unmask.generation.text_canvas import load_tokenizer
    from unmask.schedulers.loading import load_scheduler
    from unmask.training.policy.run import train

__version__ = "0.1.0"
__all__ = [
    "Canvas", "Decoding", "Denoiser", "EvaluationOptions", "Generation", "Pace", "Report", "Scheduler", "States", "Task",
    "Trajectory", "Verdict", "View", "evaluate", "generate", "infill", "load_denoiser", "load_pace",
    "load_scheduler", "load_tokenizer", "scheduler", "train", "trajectory_logp", "unmask",
]  # fmt: skip

_MODULES = {
    "unmask.decoding.loop": ("trajectory_logp", "unmask"),
    "unmask.decoding.options": ("Decoding",),
    "unmask.decoding.paces": ("load_pace",),
    "unmask.decoding.protocols": (
        *("Canvas", "Denoiser", "Pace", "Scheduler", "States", "Task", "Trajectory", "Verdict", "View", "scheduler"),
    ),
    "unmask.denoisers.loading": ("load_denoiser",),
    "unmask.evaluation.evaluate": ("EvaluationOptions", "Report", "evaluate"),
    "unmask.generation.generate": ("Generation", "generate", "infill"),
    "unmask.generation.text_canvas": ("load_tokenizer",),
    "unmask.schedulers.loading": ("load_scheduler",),
    "unmask.training.policy.run": ("train",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}: its public names are {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
