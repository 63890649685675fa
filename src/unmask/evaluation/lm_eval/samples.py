"""Finished samples, a JSON line each: what a killed evaluation need not repeat.

A record is found again by its key, a hash of everything that its response depends on. A torn last line, as a killed process leaves
it, is cut off before the next record is written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from unmask.runs.atomic import append, sync
from unmask.runs.processes import ProcessGroup


def hash_json(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


class SampleLog:
    """The records of one file, by key; without a path, in memory only. A path belongs to one process at a time."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.records: dict[str, dict[str, Any]] = {}
        if self.path is not None and self.path.exists():
            content = self.path.read_bytes()
            lines = [line for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
            self.remember(record for line in lines if (record := _parse(line)) is not None)
            whole = sum(map(len, lines))
            if whole < len(content):
                os.truncate(self.path, whole)

    def remember(self, records: Iterable[dict[str, Any]]) -> None:
        """Know records that are on disk already."""
        self.records |= {record["key"]: record for record in records}

    def hand_over(self) -> None:
        """Remove the file, whose records another process has written; they stay known here."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def get(self, key: str) -> dict[str, Any] | None:
        return self.records.get(key)

    def add(self, record: dict[str, Any]) -> None:
        """Keep ``record``, which has a "key"; on disk when this returns, as far as other processes can see."""
        self.records[record["key"]] = record
        if self.path is None:
            return
        append(self.path, json.dumps(record).encode() + b"\n")


def collect_samples(folder: Path) -> SampleLog:
    """The samples of a run. The files that its other processes left when they ended too early are moved in."""
    log = SampleLog(folder / "samples.jsonl")
    for part in sorted(folder.glob("samples-*.jsonl")):
        for key, record in SampleLog(part).records.items():
            if log.get(key) is None:
                log.add(record)
        if log.records:
            sync(folder / "samples.jsonl")
        part.unlink()
    return log


def share_samples(folder: Path, processes: ProcessGroup) -> SampleLog:
    """The samples of a run that several processes continue: all know all of them, each writes into a file of its own.

    The first process writes into the run's; the others' records come to it when their shares are done.
    """
    log = collect_samples(folder) if processes.is_first else SampleLog()
    known = processes.gather_records(list(log.records.values()))
    if not processes.is_first:
        log = SampleLog(folder / f"samples-{processes.accelerator.process_index}.jsonl")
    log.remember(known)
    return log


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("key"), str) else None
