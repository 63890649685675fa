"""The state around the requests of a run: finished samples, cost, callbacks, the processes that share them.

Several processes share requests here, not in lm-eval, to which each of them looks like the only one. lm-eval would share documents,
draw other worked examples for them than one process does, and repeat requests until all processes have as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval.api.instance import Instance

from unmask.evaluation.lm_eval.samples import SampleLog, hash_json
from unmask.evaluation.lm_eval.settings import AnswerOptions
from unmask.generation.generate import Generation
from unmask.runs.processes import ProcessGroup

OnSample = Callable[[int, int], None]
"""Called with the number of finished requests and of all, after every batch."""
OnGeneration = Callable[[Instance, AnswerOptions, Generation], bool]
"""Called with every generation and all its states; returns whether it wants the next one."""


class ScoredElsewhere(Exception):
    """The requests are answered, and another process scores the answers."""


@dataclass(frozen=True)
class Cost:
    """What the requests of a run took, remembered ones included."""

    requests: int = 0
    denoiser_calls: float = 0.0
    reveals: int = 0
    steps: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_forward(self) -> float | None:
        return self.reveals / self.denoiser_calls if self.denoiser_calls else None

    def add(self, record: dict[str, Any]) -> Cost:
        summed = ("denoiser_calls", "reveals", "steps", "seconds")
        return Cost(self.requests + 1, **{name: getattr(self, name) + record[name] for name in summed})


@dataclass
class Session:
    """``first_scores``: only the first process scores, the others raise :class:`ScoredElsewhere` when all is answered.

    While there is an ``on_generation``, requests are decoded one by one.
    """

    log: SampleLog = field(default_factory=SampleLog)
    on_sample: OnSample | None = None
    on_generation: OnGeneration | None = None
    processes: ProcessGroup | None = None
    first_scores: bool = False
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Job:
    """A request that is not finished: its index, and its key, which seeds everything random about it."""

    place: int
    key: str
    request: Instance

    @property
    def seed(self) -> int:
        return to_seed(self.key)


def to_seed(key: str) -> int:
    return int(key[:15], 16)


class Pending:
    """The requests of one call: the records of finished ones in their places, and a job for each of the others.

    ``depends`` is, per request, what else its response depends on; ``size`` sorts the jobs. Neighbours of one length are padded
    least, and no row depends on them.
    """

    def __init__(
        self,
        session: Session,
        kind: str,
        requests: Sequence[Instance],
        depends: Sequence[Any],
        size: Callable[[int], int],
    ) -> None:
        self.session, self.kind = session, kind
        self.records: list[dict[str, Any] | None] = []
        self.jobs: list[Job] = []
        repeats: dict[str, int] = {}
        for place, (request, extra) in enumerate(zip(requests, depends, strict=True)):
            same = hash_json(kind, request.task_name, request.doc_id, request.idx, request.args, extra)
            repeats[same] = repeats.get(same, -1) + 1  # a task that wants several samples of a request repeats it
            key = hash_json(same, repeats[same])
            record = session.log.get(key)
            self.records.append(record)
            if record is None:
                self.jobs.append(Job(place, key, request))
            else:
                session.cost = session.cost.add(record)
        self.jobs.sort(key=lambda job: -size(job.place))
        self.mine: Sequence[Job] = self.jobs if session.processes is None else session.processes.round_robin(self.jobs)
        self._report(len(self.records))

    def finish(self, jobs: Sequence[Job], found: Sequence[dict[str, Any]]) -> None:
        """Keep the records of a batch."""
        for job, record in zip(jobs, found, strict=True):
            named = {"key": job.key, "kind": self.kind, "task": job.request.task_name, "doc": job.request.doc_id}
            record = {**named, "idx": job.request.idx, **record}
            self.session.log.add(record)
            self._place(job, record)
        self._report(len(self.records) - (len(self.jobs) - len(self.mine)))

    def responses(self) -> list[Any]:
        """All responses, once every process has sent its records to the others. The first one writes those of the others."""
        if self.session.processes is not None:
            self._exchange(self.session.processes)
        return [record["response"] for record in self.records if record is not None]

    def _exchange(self, processes: ProcessGroup) -> None:
        log = self.session.log
        done = [record for job in self.jobs if (record := self.records[job.place]) is not None]
        gathered = {record["key"]: record for record in processes.gather_records(done)}
        for job in self.jobs:
            if self.records[job.place] is None:
                self._place(job, gathered[job.key])
                if processes.is_first:
                    log.add(gathered[job.key])
        log.remember(gathered.values())
        processes.wait()
        if not processes.is_first:
            log.hand_over()
            if self.session.first_scores:
                raise ScoredElsewhere

    def _place(self, job: Job, record: dict[str, Any]) -> None:
        self.records[job.place] = record
        self.session.cost = self.session.cost.add(record)

    def _report(self, total: int) -> None:
        """``total`` excludes the requests that another process answers."""
        if self.session.on_sample is not None:
            self.session.on_sample(sum(record is not None for record in self.records), total)
