"""The settings of a benchmark run: dataclasses that presets fill and that import nothing of lm-eval."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Literal

from tyro.conf import Suppress

from unmask.decoding.options import Decoding
from unmask.denoisers.placement import Placement
from unmask.runs.config import Count, Natural, Seed, config


@config
class AnswerOptions:
    """How requests are answered.

    Attributes:
        length: Tokens at most (L), where a request has no ``max_gen_toks``.
        scheduler: The name of a scheduler, or the folder of a learned policy.
        decoding: Everything else about decoding; ``steps`` is the budget of ``length``.
        likelihood: path is exact along the scheduler's order, monte_carlo LLaDA's estimate.
        samples: Masks per Monte-Carlo estimate.
        greedy: Decode beside a Monte-Carlo estimate, to say whether the answer is the greedy one (path knows without).
        seed: Seeds everything random.
    """

    length: Count = 128
    scheduler: str = "confidence"
    decoding: Decoding = field(default_factory=Decoding)
    likelihood: Literal["path", "monte_carlo"] = "path"
    samples: Count = 128
    greedy: bool = False
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not isinstance(self.decoding.pace, str):  # samples are found again by a hash of these settings
            raise ValueError(f"pace must be a name, such as threshold:p=0.9, got {self.decoding.pace!r}")
        if not isinstance(self.decoding.revision, str | None):
            raise ValueError(f"revision must be a name, such as t2m:p=0.9, got {self.decoding.revision!r}")

    def decoding_of(self, length: int) -> Decoding:
        """The decoding of another length: as many tokens per step, at least a step per block."""
        budget = self.decoding.steps
        if budget is None or length == self.length:
            return self.decoding
        blocks = -(-length // (self.decoding.block or length))
        return replace(self.decoding, steps=max(blocks, round(budget * length / self.length)))


@config
class LmEval(Placement):
    """A benchmark run: a task, a denoiser, and how to answer.

    Attributes:
        task: gsm8k, mbpp, math500, ifeval or humaneval.
        denoiser: A folder, a safetensors file or a hub id.
        tokenizer: A folder or hub id, if not the denoiser's own.
        shots: Worked examples in the prompt; None is the task's own number.
        chat: Put prompts into the tokenizer's chat template.
        multiturn: With ``chat``, each worked example is a turn of its own.
        answers: How requests are answered.
        data: A folder with the benchmark's files instead of the hub.
        limit: Only the first so many problems.
        traces: So many samples leave traces, in the run's folder; those are decoded one by one.
        batch: Prompts decoded at a time. It changes speed and memory only.
        unconfined: Run generated code without the sandbox. For code you trust.
        source: Where the published numbers stand.
        published: The numbers of the table row that a preset reproduces, by scheduler.
    """

    task: str = "gsm8k"
    denoiser: str = "GSAI-ML/LLaDA-8B-Instruct"
    tokenizer: str = ""
    shots: int | None = None
    chat: bool = False
    multiturn: bool = False
    answers: AnswerOptions = field(default_factory=AnswerOptions)
    data: str = ""
    limit: Count | None = None
    traces: Natural = 0
    batch: Count = 8
    unconfined: bool = False
    source: str = ""
    published: Suppress[dict[str, float]] = field(default_factory=dict)
