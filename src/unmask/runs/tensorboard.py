"""A run's numbers for TensorBoard, where it is installed: event files in the run's ``tensorboard/`` beside metrics.jsonl."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Log = Callable[[Mapping[str, Any]], None]


def scalar_writer(folder: Path, start: int) -> Log:
    """A function that writes a record's numbers under its "step". Events past ``start``, of an interrupted run, are dropped."""
    if importlib.util.find_spec("tensorboard") is None:
        return lambda record: None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)

    def log(record: Mapping[str, Any]) -> None:
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                writer.add_scalar(name, value, record["step"])
        writer.flush()

    return log
