"""lm-eval's model class: any denoiser, any order, any decoding, in EleutherAI's evaluation harness.

    from lm_eval import simple_evaluate
    simple_evaluate(model=UnmaskLM("GSAI-ML/LLaDA-8B-Instruct", LmDecoding(length=256, block=32)), tasks=["gsm8k"])

    python -m unmask.evaluation.lm_eval.model --model unmask --model_args denoiser=…,length=256,block=32 --tasks gsm8k

A request's response is a function of the request and the settings: its seed is a hash of both, so neither the batch nor the other
requests change it. Finished requests go to a :class:`~unmask.evaluation.lm_eval.samples.SampleLog`; those that are there are not repeated.

Several processes share requests here, not in lm-eval, to which each of them looks like the only one. lm-eval would share documents,
draw other worked examples for them than one process does, and repeat requests until all processes have as many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.placement import device_options, parse_dtype
from unmask.evaluation.lm_eval.options import Opened, batch_of, cut, decoding_of, fitting, generation_of, parts
from unmask.evaluation.lm_eval.samples import SampleLog, key_of
from unmask.evaluation.lm_eval.settings import LmDecoding
from unmask.generation.generate import Generation, Watch, generate
from unmask.generation.likelihood import Scored, monte_carlo_likelihood, order_likelihood
from unmask.generation.text_canvas import load_tokenizer
from unmask.runs.processes import ProcessGroup
from unmask.schedulers.loading import load_scheduler

OnSample = Callable[[int, int], None]
OnGeneration = Callable[[Instance, LmDecoding, Generation], None]


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


class Answered(Exception):
    """The requests are answered, and it is another process that scores the answers."""


@dataclass(frozen=True)
class _Job:
    """A request that is not finished: where its answer goes, and its key, which seeds whatever is drawn for it."""

    place: int
    key: str
    request: Instance

    @property
    def seed(self) -> int:
        return int(self.key[:15], 16)


class UnmaskLM(LM):
    """A denoiser in lm-eval. ``denoiser`` and ``tokenizer`` are names, folders or objects; other arguments fill
    :class:`LmDecoding`.

    ``log`` is the file of finished samples. ``on_sample`` is told (finished, of how many) after every batch. While there is an
    ``on_generation``, requests are decoded one by one with all their states, and it is told of each. ``processes`` are the
    processes that share the requests; all get all answers, or, with ``first_scores``, all but the first :class:`Answered`.
    """

    def __init__(
        self,
        denoiser: Any,
        decoding: LmDecoding | None = None,
        *,
        tokenizer: Any = None,
        batch_size: int | str | None = 8,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        dtype: str = "float32",
        device: str | None = None,
        log: str | Path | None = None,
        on_sample: OnSample | None = None,
        on_generation: OnGeneration | None = None,
        processes: ProcessGroup | None = None,
        first_scores: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.decoding = decoding_of(decoding, options)
        self.batch = batch_of(batch_size)
        weights_dtype = parse_dtype(dtype)
        named_by = isinstance(denoiser, str | Path)
        self.name = str(denoiser) if named_by else type(denoiser).__name__
        self.denoiser = load_denoiser(denoiser, weights_dtype, **device_options(device)) if named_by else denoiser
        named = tokenizer if tokenizer is not None else denoiser
        self.tokenizer = Opened(load_tokenizer(named) if isinstance(named, str | Path) else named)
        self._tokenizer_name = str(named) if isinstance(named, str | Path) else type(named).__name__
        self.scheduler = load_scheduler(self.decoding.scheduler, self.denoiser, self.name)
        longest = getattr(getattr(self.denoiser, "config", None), "max_length", None)
        self.max_length = max_length or longest or 4096
        self.settings = {"denoiser": self.name, "dtype": dtype, "max_length": self.max_length}
        self.log = SampleLog(log)
        self.on_sample = on_sample
        self.on_generation = on_generation
        self.processes = processes
        self.first_scores = first_scores
        self.cost = Cost()

    @property
    def tokenizer_name(self) -> str:
        return self._tokenizer_name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return getattr(self.tokenizer, "chat_template", None) if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError("this tokenizer has no chat template: leave it off, or name an instruction-tuned model")
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval puts beside its results: the settings and what the run cost."""
        cost = {**asdict(self.cost), "tokens_per_forward": self.cost.tokens_per_forward}
        return {**self.settings, "decoding": asdict(self.decoding), "cost": cost}

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """A continuation for each (context, options), cut at the first of its ``until`` strings."""
        wanted = [generation_of(request.arguments[1], self.decoding) for request in requests]
        for request, (decoding, _) in zip(requests, wanted, strict=True):
            self._must_fit(len(self.tokenizer.encode(request.args[0])), decoding.length)
        answers, jobs = self._remembered("generate_until", requests, [(asdict(d), until) for d, until in wanted])
        # Neighbours of one length are padded least; which they are changes no row.
        jobs.sort(key=lambda job: -len(job.request.args[0]))
        mine = self._mine(jobs)
        groups: dict[LmDecoding, list[_Job]] = {}
        for job in mine:
            groups.setdefault(wanted[job.place][0], []).append(job)
        for decoding, group in groups.items():
            while group:
                size = self.batch if self.on_generation is None else 1
                part, group = group[:size], group[size:]
                for job, record in zip(part, self._generate(decoding, part), strict=True):
                    record["response"] = cut(record["text"], wanted[job.place][1])
                    answers[job.place] = self._finished(job, "generate_until", record)
                self._tell(answers, len(jobs) - len(mine))
        self._exchange(answers, jobs)
        return [answer["response"] for answer in answers if answer is not None]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """(log p, whether greedy decoding gives it) of each (context, continuation)."""
        pairs = [self._pair(*request.args) for request in requests]
        return [(logp, bool(greedy)) for logp, greedy in self._scored("loglikelihood", requests, [[p] for p in pairs])]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """log p of whole texts: windows of half the longest canvas, each given what precedes it."""
        windows = []
        for request in requests:
            opening = self.tokenizer.encode("")
            ids = self.tokenizer.encode(request.args[0], add_special_tokens=False)
            half = max(1, (self.max_length - len(opening)) // 2)
            whole = len(ids) + len(opening) <= self.max_length
            starts = range(0, len(ids), max(1, len(ids)) if whole else half)
            size = len(ids) if whole else half
            windows.append(
                [([*opening, *ids[max(0, start - half) : start]], ids[start : start + size]) for start in starts]
            )
        return [logp for logp, _ in self._scored("loglikelihood_rolling", requests, windows)]

    def _generate(self, decoding: LmDecoding, part: Sequence[_Job]) -> list[dict[str, Any]]:
        began = time.perf_counter()
        done = generate(
            self.denoiser,
            self.tokenizer,
            [job.request.args[0] for job in part],
            self.scheduler,
            decoding.loop(),
            length=decoding.length,
            seeds=[job.seed for job in part],
            watch=Watch(record=self.on_generation is not None),
        )
        if self.on_generation is not None:
            self.on_generation(part[0].request, decoding, done)
        seconds = (time.perf_counter() - began) / len(part)
        reveals = done.trajectory.reveals.tolist()
        steps = [int(row.max()) + 1 if n else 0 for row, n in zip(done.trajectory.step, reveals, strict=True)]
        each = done.trajectory.denoiser_calls / max(
            1, sum(steps)
        )  # 1, or 2 under guidance, or what a scheduler tries ahead
        return [
            {"text": text, "reveals": n, "steps": s, "denoiser_calls": round(each * s, 3), "seconds": round(seconds, 4)}
            for text, n, s in zip(done.texts, reveals, steps, strict=True)
        ]

    def _scored(
        self, kind: str, requests: list[Instance], windows: list[list[tuple[list[int], list[int]]]]
    ) -> list[tuple[float, bool | None]]:
        """The sum over its windows of each request."""
        answers, jobs = self._remembered(kind, requests, [asdict(self.decoding)] * len(requests))
        jobs.sort(key=lambda job: -sum(len(ids) for pair in windows[job.place] for ids in pair))
        mine = self._mine(jobs)
        for part in parts(mine, self.batch):
            began = time.perf_counter()
            flat = [
                (n, window, fitting(prompt, answer, self.max_length), answer)
                for n, job in enumerate(part)
                for window, (prompt, answer) in enumerate(windows[job.place])
                if answer
            ]
            totals, greedy, calls = [0.0] * len(part), [True for _ in part], 0
            looked = self.decoding.likelihood == "path" or self.decoding.greedy
            for some in parts(flat, self.batch):
                seeds = [int(key_of(part[n].key, window)[:15], 16) for n, window, _, _ in some]
                scored = self._score([prompt for _, _, prompt, _ in some], [answer for *_, answer in some], seeds)
                calls += scored.denoiser_calls
                for (n, *_), logp, same in zip(some, scored.logp, scored.greedy, strict=True):
                    totals[n] += logp
                    greedy[n] = greedy[n] and bool(same)
            lengths = [sum(len(answer) for _, answer in windows[job.place]) for job in part]
            seconds = (time.perf_counter() - began) / len(part)
            for n, job in enumerate(part):
                share = calls * lengths[n] / max(1, sum(lengths))
                record = {"response": [totals[n], greedy[n] and looked], "reveals": lengths[n], "steps": lengths[n]}
                record |= {"denoiser_calls": round(share, 3), "seconds": round(seconds, 4)}
                answers[job.place] = self._finished(job, kind, record)
            self._tell(answers, len(jobs) - len(mine))
        self._exchange(answers, jobs)
        return [tuple(answer["response"]) for answer in answers if answer is not None]

    def _score(self, prompts: list[list[int]], answers: list[list[int]], seeds: list[int]) -> Scored:
        d = self.decoding
        scored = None
        if d.likelihood == "monte_carlo":
            scored = monte_carlo_likelihood(self.denoiser, prompts, answers, seeds, d.samples, d.guidance, self.batch)
            if not d.greedy:
                return scored
        # A step budget is one of a length: rows of different lengths are scored by themselves.
        logp, calls = [0.0] * len(prompts), 0
        greedy: list[bool | None] = [None] * len(prompts)
        alike: dict[int, list[int]] = {}
        for n, answer in enumerate(answers):
            alike.setdefault(len(answer) if d.steps is not None else 0, []).append(n)
        for length, rows in alike.items():
            decoding = replace(d.loop(), steps=d.steps_for(length))
            exact = order_likelihood(
                self.denoiser,
                self.scheduler,
                [prompts[n] for n in rows],
                [answers[n] for n in rows],
                decoding,
                [seeds[n] for n in rows],
            )
            calls += exact.denoiser_calls
            for n, value, same in zip(rows, exact.logp, exact.greedy, strict=True):
                logp[n], greedy[n] = value, same
        if scored is None:
            return Scored(logp, greedy, calls)
        return replace(scored, greedy=greedy, denoiser_calls=scored.denoiser_calls + calls)

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The ids of both, split where the context's own tokens end; spaces at its end belong to the continuation."""
        stripped = context.rstrip()
        context, continuation = stripped, context[len(stripped) :] + continuation
        if not context:
            return self.tokenizer.encode(""), self.tokenizer.encode(continuation, add_special_tokens=False)
        before = self.tokenizer.encode(context)
        opening = len(before) - len(self.tokenizer.encode(context, add_special_tokens=False))
        whole = [*before[:opening], *self.tokenizer.encode(context + continuation, add_special_tokens=False)]
        return whole[: len(before)], whole[len(before) :]

    def _remembered(
        self, kind: str, requests: list[Instance], extras: list[Any]
    ) -> tuple[list[dict[str, Any] | None], list[_Job]]:
        """The records of finished requests in their places, and the rest as jobs."""
        answers: list[dict[str, Any] | None] = []
        jobs, seen = [], {}
        for place, (request, extra) in enumerate(zip(requests, extras, strict=True)):
            asked = key_of(kind, request.task_name, request.doc_id, request.idx, request.args, self.settings, extra)
            seen[asked] = seen.get(asked, -1) + 1  # a task that wants several samples of a request repeats it
            key = key_of(asked, seen[asked])
            answers.append(self.log.get(key))
            if answers[-1] is None:
                jobs.append(_Job(place, key, request))
            else:
                self._count(answers[-1])
        self._tell(answers)
        return answers, jobs

    def _mine(self, jobs: list[_Job]) -> Sequence[_Job]:
        """This process's part of jobs that all processes have in the same order."""
        return jobs if self.processes is None else self.processes.round_robin(jobs)

    def _exchange(self, answers: list[dict[str, Any] | None], jobs: Sequence[_Job]) -> None:
        """Every process's records to all; the first one writes down those of the others."""
        if self.processes is None:
            return
        done = [answer for job in jobs if (answer := answers[job.place]) is not None]
        everybody = {record["key"]: record for record in self.processes.gather_records(done)}
        for job in jobs:
            if answers[job.place] is None:
                answers[job.place] = record = everybody[job.key]
                self._count(record)
                if self.processes.is_first:
                    self.log.add(record)
        self.log.remember(everybody.values())
        self.processes.wait()
        if not self.processes.is_first:
            self.log.hand_over()
            if self.first_scores:
                raise Answered

    def _finished(self, job: _Job, kind: str, record: dict[str, Any]) -> dict[str, Any]:
        named = {"key": job.key, "kind": kind, "task": job.request.task_name, "doc": job.request.doc_id}
        record = {**named, "idx": job.request.idx, **record}
        self.log.add(record)
        self._count(record)
        return record

    def _count(self, record: dict[str, Any]) -> None:
        cost = self.cost
        self.cost = Cost(
            cost.requests + 1,
            cost.denoiser_calls + record["denoiser_calls"],
            cost.reveals + record["reveals"],
            cost.steps + record["steps"],
            cost.seconds + record["seconds"],
        )

    def _tell(self, answers: Sequence[Any], elsewhere: int = 0) -> None:
        """How many are finished of those that do not wait for another process."""
        if self.on_sample is not None:
            self.on_sample(sum(answer is not None for answer in answers), len(answers) - elsewhere)

    def _must_fit(self, prompt: int, length: int) -> None:
        if prompt + length > self.max_length:
            raise ValueError(
                f"a prompt of {prompt} tokens and {length} to generate exceed the longest canvas, {self.max_length}: "
                "use fewer shots or a smaller length"
            )


register_model("unmask")(UnmaskLM)  # a decorator would hide the class from type checkers


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
