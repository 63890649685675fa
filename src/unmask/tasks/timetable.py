"""Timetables as JSON, from sentences about jobs that wait for each other: structured output whose values are not independent.

A prompt, and its answer::

    paint takes 2, after wire;dig takes 3, from Mon;wire takes 4, after dig;

    [{"job":"paint","after":"wire","days":2,"start":"MON","end":"Wednesday","weekend":false},
     {"job":"dig","after":null,"days":3,"start":"Monday","end":"Thu","weekend":false},
     {"job":"wire","after":"dig","days":4,"start":"Thursday","end":"Mon","weekend":false}]

A job starts on the day on which the job before it ends; ``weekend`` says whether it ends on one. Jobs stand in any order, and the
first one always waits for a later one: left to right has to guess. A day may be written in three ways, as in records of many hands:
confidence therefore prefers ``weekend``, which is mostly false, to the days that it follows from.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from unmask.tasks.linked_numbers import choose_source
from unmask.tasks.text_problems import Problem, TextProblemKind
from unmask.tasks.vocabulary import Vocabulary

JOBS = ("dig", "wire", "paint", "clean")
LEAST_JOBS = 3
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
LONGEST = 6
"""Days that a job takes at most."""


def _notations(day: str) -> tuple[str, str, str]:
    return day[:3], day, day[:3].upper()


_KEYS = ('{"job":', ',"after":', ',"days":', ',"start":', ',"end":', ',"weekend":', "}")
_DAY = {notation: number for number, day in enumerate(DAYS) for notation in _notations(day)}
VOCABULARY = Vocabulary(
    (
        *JOBS,
        " takes ",
        ", after ",
        ", from ",
        ";",
        *(day[:3] for day in DAYS),
        *map(str, range(1, LONGEST + 1)),
        "[",
        *_KEYS,
        ",\n ",
        "]",
        *(f'"{job}"' for job in JOBS),
        "null",
        *(f'"{notation}"' for notation in _DAY),
        "false",
        "true",
    )
)


@dataclass(frozen=True)
class Timetable(TextProblemKind):
    """Jobs that wait for each other, three or four of them."""

    vocabulary: ClassVar[Vocabulary] = VOCABULARY
    prompt_width: ClassVar[int] = 6 * len(JOBS)
    lengths: ClassVar[tuple[int, ...]] = (14 * len(JOBS) + 4,)
    preset: ClassVar[str | None] = "sas-timetable"

    kind: Literal["timetable"] = "timetable"

    def problem(self, index: int) -> Problem:
        rng = random.Random(f"{self.kind} {self.seed} {index}")
        names = rng.sample(JOBS, rng.randint(LEAST_JOBS, len(JOBS)))
        jobs: dict[str, dict[str, Any]] = {}
        for name in [*rng.sample(names[1:], len(names) - 1), names[0]]:
            before = choose_source(rng, list(jobs)) if jobs else None
            start = jobs[before]["end"] if before else rng.randrange(len(DAYS))
            days = rng.randint(1, LONGEST)
            jobs[name] = {"job": name, "after": before, "days": days, "start": start, "end": (start + days) % len(DAYS)}
        prompt, rows = "", []
        for name in names:
            job = jobs[name]
            since = f"after {job['after']}" if job["after"] else f"from {DAYS[job['start']][:3]}"
            prompt += f"{name} takes {job['days']}, {since};"
            written = {key: rng.choice(_notations(DAYS[job[key]])) for key in ("start", "end")}
            rows.append(json.dumps(job | written | {"weekend": job["end"] >= 5}, separators=(",", ":")))
        return Problem(prompt, f"[{(',' + chr(10) + ' ').join(rows)}]", f"{_steps(jobs)} steps", _form(jobs))

    @staticmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """Right: the records of the answer, days in any notation. The share counts their values."""
        expected, got = _read(problem.answer), _read(text)
        if got is None or expected is None or len(got) != len(expected):
            return False, 0.0
        pairs = list(zip(expected, got, strict=True))
        right = sum(theirs.get(key) == value for ours, theirs in pairs for key, value in ours.items())
        return got == expected, right / sum(len(ours) for ours in expected)


def _read(text: str) -> list[dict[str, Any]] | None:
    """The records of a timetable with days as numbers; None if it is not one."""
    try:
        records = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        return None
    return [{key: _value(key, value) for key, value in record.items()} for record in records]


def _value(key: str, value: Any) -> Any:
    """A day as a number, anything else as it would be written: ``true`` is not 1."""
    is_day = key in ("start", "end") and isinstance(value, str) and value in _DAY
    return _DAY[value] if is_day else json.dumps(value)


def _steps(jobs: Mapping[str, Mapping[str, Any]]) -> int:
    """The length of the longest chain of jobs."""

    def depth(name: str | None) -> int:
        return 0 if name is None else 1 + depth(jobs[name]["after"])

    return max(map(depth, jobs))


def _form(jobs: Mapping[str, Mapping[str, Any]]) -> str:
    """Equal for problems that differ in names, in the order of jobs and in notation only."""

    def whole(name: str) -> str:
        after = sorted(whole(other) for other in jobs if jobs[other]["after"] == name)
        return f"{jobs[name]['days']}({','.join(after)})"

    root = next(name for name in jobs if jobs[name]["after"] is None)
    return f"{jobs[root]['start']} {whole(root)}"
