"""A run's numbers for TensorBoard, where it is installed: event files in the run's ``tensorboard/`` beside metrics.jsonl."""

from __future__ import annotations

import importlib.util
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from unmask.runs.atomic import append

Log = Callable[[Mapping[str, Any]], None]


def scalar_writer(folder: Path, start: int) -> Log:
    """A function that writes a record's numbers under its "step". Events past ``start``, of an interrupted run, are dropped.

    Written at once and here, not by TensorBoard's own thread: where the disk is full, the error is the caller's.
    """
    if importlib.util.find_spec("tensorboard") is None:
        return lambda record: None
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.summary.writer.record_writer import RecordWriter

    place = folder / "tensorboard"
    place.mkdir(exist_ok=True)
    path = place / f"events.out.tfevents.{time.time():010.0f}.{platform.node()}.{os.getpid()}.{secrets.token_hex(2)}"

    def write(*events: Any) -> None:
        content = BytesIO()
        for event in events:
            RecordWriter(content).write(event.SerializeToString())
        append(path, content.getvalue())

    began = Event(wall_time=time.time(), step=start + 1, file_version="brain.Event:2")
    write(began, Event(wall_time=time.time(), step=start + 1, session_log=SessionLog(status=SessionLog.START)))

    def log(record: Mapping[str, Any]) -> None:
        numbers = {name: value for name, value in record.items() if name != "step" and isinstance(value, int | float)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        write(Event(wall_time=time.time(), step=record["step"], summary=Summary(value=values)))

    return log
