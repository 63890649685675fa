"""lm-eval's model class: any denoiser, scheduler and decoding in EleutherAI's evaluation harness.

    from lm_eval import simple_evaluate
    options = AnswerOptions(length=256, decoding=Decoding(block=32))
    simple_evaluate(model=UnmaskLM("GSAI-ML/LLaDA-8B-Instruct", options), tasks=["gsm8k"])

    python -m unmask.evaluation.lm_eval.model --model unmask --model_args denoiser=…,length=256,block=32 --tasks gsm8k

A request's response is a function of the request and the settings: its seed is a hash of both, so neither the batch nor the other
requests change it. Finished requests go to a :class:`SampleLog`; those that are there are not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.config.evaluate_config import EvaluatorConfig

from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.placement import device_options, parse_dtype
from unmask.evaluation.lm_eval.requests import (
    ChatTokenizer,
    Window,
    cut,
    fit_prompt,
    parse_batch_size,
    parse_generation,
    parse_model_args,
)
from unmask.evaluation.lm_eval.samples import hash_json
from unmask.evaluation.lm_eval.session import Cost, Job, Pending, Session, to_seed
from unmask.evaluation.lm_eval.settings import AnswerOptions
from unmask.generation.generate import Watch, generate
from unmask.generation.likelihood import Scored, monte_carlo_likelihood, order_likelihood
from unmask.generation.text_canvas import apply_template, load_tokenizer
from unmask.schedulers.loading import load_scheduler


class UnmaskLM(LM):
    """A denoiser in lm-eval. ``denoiser`` and ``tokenizer`` are names, folders or objects.

    Without ``options``, ``model_args`` make them: the fields of :class:`AnswerOptions` and of :class:`Decoding` in one flat list.
    """

    def __init__(
        self,
        denoiser: Any,
        options: AnswerOptions | None = None,
        *,
        tokenizer: Any = None,
        batch_size: int | str | None = 8,
        max_length: int | None = None,
        dtype: str = "float32",
        device: str | None = None,
        session: Session | None = None,
        **model_args: Any,
    ) -> None:
        super().__init__()
        model_args.pop("max_batch_size", None)  # lm-eval's bound of automatic batch sizes
        if options is not None and model_args:
            raise ValueError(
                f"expected options or model arguments, got both: move {', '.join(model_args)} into options"
            )
        self.options = parse_model_args(model_args) if options is None else options
        self.batch = parse_batch_size(batch_size)
        tokenizer = denoiser if tokenizer is None else tokenizer
        self.name, self._tokenizer_name = _name(denoiser), _name(tokenizer)
        if isinstance(denoiser, str | Path):
            denoiser = load_denoiser(denoiser, parse_dtype(dtype), **device_options(device or "auto"))
        if isinstance(tokenizer, str | Path):
            tokenizer = load_tokenizer(tokenizer)
        self.denoiser, self.tokenizer = denoiser, ChatTokenizer(tokenizer)
        self.scheduler = load_scheduler(self.options.scheduler, self.denoiser, self.name)
        longest = getattr(getattr(self.denoiser, "config", None), "max_length", None)
        self.max_length = max_length or longest or 4096
        self.settings = {"denoiser": self.name, "dtype": dtype, "max_length": self.max_length}
        self.session = session or Session()

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> UnmaskLM:
        """lm-eval's way from its command: the device that it names if its user names none means the best one."""
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if given.get("device") == EvaluatorConfig().device:
            del given["device"]
        return cls(**arg_dict, **given)

    @property
    def cost(self) -> Cost:
        return self.session.cost

    @property
    def tokenizer_name(self) -> str:
        return self._tokenizer_name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return getattr(self.tokenizer, "chat_template", None) if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if not getattr(self.tokenizer, "chat_template", None):
            raise ValueError("this tokenizer has no chat template: leave it off, or name an instruction-tuned model")
        return apply_template(
            self.tokenizer,
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def get_model_info(self) -> dict[str, Any]:
        """The settings and the cost of the run, which lm-eval puts beside its results."""
        cost = {**asdict(self.cost), "tokens_per_forward": self.cost.tokens_per_forward}
        return {**self.settings, "answers": asdict(self.options), "cost": cost}

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """A continuation for each (context, options), cut at the first of its ``until`` strings."""
        wanted = [parse_generation(request.arguments[1], self.options) for request in requests]
        for request, (options, _) in zip(requests, wanted, strict=True):
            self._require_fit(len(self.tokenizer.encode(request.args[0])), options.length)
        depends = [(self.settings, asdict(options), until) for options, until in wanted]
        pending = Pending(self.session, "generate_until", requests, depends, lambda place: len(requests[place].args[0]))
        groups: dict[AnswerOptions, list[Job]] = {}
        for job in pending.mine:
            groups.setdefault(wanted[job.place][0], []).append(job)
        for options, jobs in groups.items():
            while jobs:
                size = self.batch if self.session.on_generation is None else 1
                part, jobs = jobs[:size], jobs[size:]
                records = self._generate(options, part)
                for job, record in zip(part, records, strict=True):
                    record["response"] = cut(record["text"], wanted[job.place][1])
                pending.finish(part, records)
        return pending.responses()

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """(log p, whether greedy decoding gives it) of each (context, continuation)."""
        windows = [[self.tokenizer.encode_pair(*request.args)] for request in requests]
        return self._score_requests("loglikelihood", requests, windows)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """log p of whole texts: windows of half the longest canvas, each given what precedes it."""
        windows = [self.tokenizer.encode_windows(request.args[0], self.max_length) for request in requests]
        return [logp for logp, _ in self._score_requests("loglikelihood_rolling", requests, windows)]

    def _generate(self, options: AnswerOptions, jobs: Sequence[Job]) -> list[dict[str, Any]]:
        began = time.perf_counter()
        watching = self.session.on_generation
        done = generate(
            self.denoiser,
            self.tokenizer,
            [job.request.args[0] for job in jobs],
            self.scheduler,
            options.decoding,
            length=options.length,
            seeds=[job.seed for job in jobs],
            watch=Watch(record=watching is not None),
        )
        if watching is not None and not watching(jobs[0].request, options, done):
            self.session.on_generation = None
        seconds = (time.perf_counter() - began) / len(jobs)
        reveals = done.trajectory.reveals.tolist()
        steps = [int(row.max()) + 1 if n else 0 for row, n in zip(done.trajectory.step, reveals, strict=True)]
        # 1 per step of a row, or 2 under guidance, or more with a scheduler that looks ahead
        calls = done.trajectory.denoiser_calls / max(1, sum(steps))
        return [
            {"text": text, **_cost(n, s, calls * s, seconds)}
            for text, n, s in zip(done.texts, reveals, steps, strict=True)
        ]

    def _score_requests(
        self, kind: str, requests: list[Instance], windows: list[list[Window]]
    ) -> list[tuple[float, bool]]:
        """(log p, greedy) of each request, summed over its windows."""
        sizes = [sum(len(prompt) + len(answer) for prompt, answer in each) for each in windows]
        depends = [(self.settings, asdict(self.options))] * len(requests)
        pending = Pending(self.session, kind, requests, depends, sizes.__getitem__)
        for jobs in _split(pending.mine, self.batch):
            pending.finish(jobs, self._score_jobs(jobs, [windows[job.place] for job in jobs]))
        return [(logp, bool(greedy)) for logp, greedy in pending.responses()]

    def _score_jobs(self, jobs: Sequence[Job], windows: list[list[Window]]) -> list[dict[str, Any]]:
        began = time.perf_counter()
        totals, greedy, calls = [0.0] * len(jobs), [True] * len(jobs), 0
        for some in _split(_flatten(windows), self.batch):
            prompts = [fit_prompt(prompt, answer, self.max_length) for _, _, prompt, answer in some]
            seeds = [to_seed(hash_json(jobs[n].key, nth)) for n, nth, _, _ in some]
            scored = self._score(prompts, [answer for *_, answer in some], seeds)
            calls += scored.denoiser_calls
            for (n, *_), logp, same in zip(some, scored.logp, scored.greedy, strict=True):
                totals[n] += logp
                greedy[n] = greedy[n] and bool(same)
        decoded = self.options.likelihood == "path" or self.options.greedy
        lengths = [sum(len(answer) for _, answer in each) for each in windows]
        seconds, per_token = (time.perf_counter() - began) / len(jobs), calls / max(1, sum(lengths))
        return [
            {"response": [logp, same and decoded], **_cost(n, n, per_token * n, seconds)}
            for logp, same, n in zip(totals, greedy, lengths, strict=True)
        ]

    def _score(self, prompts: list[list[int]], answers: list[list[int]], seeds: list[int]) -> Scored:
        options = self.options
        if options.likelihood == "path":
            return self._score_exactly(prompts, answers, seeds)
        masks = (options.samples, options.decoding.guidance, self.batch)
        estimate = monte_carlo_likelihood(self.denoiser, prompts, answers, seeds, *masks)
        if not options.greedy:
            return estimate
        exact = self._score_exactly(prompts, answers, seeds)
        return replace(estimate, greedy=exact.greedy, denoiser_calls=estimate.denoiser_calls + exact.denoiser_calls)

    def _score_exactly(self, prompts: list[list[int]], answers: list[list[int]], seeds: list[int]) -> Scored:
        # A step budget belongs to a length: answers of different lengths are scored apart.
        alike: dict[int, list[int]] = {}
        for n, answer in enumerate(answers):
            alike.setdefault(len(answer) if self.options.decoding.steps is not None else 0, []).append(n)
        found = Scored([0.0] * len(prompts), [None] * len(prompts), 0)
        for length, rows in alike.items():
            part = order_likelihood(
                self.denoiser,
                self.scheduler,
                [prompts[n] for n in rows],
                [answers[n] for n in rows],
                self.options.decoding_of(length),
                [seeds[n] for n in rows],
            )
            for n, logp, greedy in zip(rows, part.logp, part.greedy, strict=True):
                found.logp[n], found.greedy[n] = logp, greedy
            found = replace(found, denoiser_calls=found.denoiser_calls + part.denoiser_calls)
        return found

    def _require_fit(self, prompt: int, length: int) -> None:
        if prompt + length > self.max_length:
            raise ValueError(
                f"a prompt of {prompt} tokens and {length} to generate exceed the longest canvas, {self.max_length}: "
                "use fewer shots or a smaller length"
            )


def _cost(reveals: int, steps: int, calls: float, seconds: float) -> dict[str, Any]:
    """A record's part of the cost."""
    return {"reveals": reveals, "steps": steps, "denoiser_calls": round(calls, 3), "seconds": round(seconds, 4)}


def _name(given: Any) -> str:
    return str(given) if isinstance(given, str | Path) else type(given).__name__


def _flatten(windows: list[list[Window]]) -> list[tuple[int, int, list[int], list[int]]]:
    """(request, number of the window, prompt, answer) of every window that has an answer."""
    return [(n, nth, *window) for n, each in enumerate(windows) for nth, window in enumerate(each) if window[1]]


def _split(items: Sequence[Any], size: int) -> list[Any]:
    return [items[start : start + size] for start in range(0, len(items), size)]


register_model("unmask")(UnmaskLM)  # a decorator would hide the class from type checkers


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
