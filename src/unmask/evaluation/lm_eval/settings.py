"""The settings of a benchmark run: plain dataclasses, which presets fill and which import nothing of lm-eval."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from unmask.decoding.options import Decoding

Likelihood = Literal["path", "monte_carlo"]


@dataclass(frozen=True)
class LmDecoding:
    """How to decode and to score: L–B–T, the order, end tokens, guidance, caches; ``likelihood`` and its Monte-Carlo ``samples``.

    ``length`` is the default: a request that names ``max_gen_toks`` gets that many, and ``steps`` in proportion. ``greedy``: in a
    Monte-Carlo likelihood, also decode to say whether the answer is the greedy one (the exact likelihood knows without).
    """

    length: int = 128
    block: int | None = None
    steps: int | None = None
    scheduler: str = "confidence"
    pace: str = "top"
    order_temperature: float = 0.0
    token_temperature: float = 0.0
    top_p: float = 1.0
    ends: str = "allow"
    end_floor: float = 0.4
    min_length: int = 0
    guidance: float = 0.0
    cache: str = "none"
    refresh: int | None = None
    likelihood: Likelihood = "path"
    samples: int = 128
    greedy: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.likelihood not in get_args(Likelihood):
            raise ValueError(f"likelihood must be one of {', '.join(get_args(Likelihood))}, got {self.likelihood!r}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in 0 .. 2**31 - 1, got {self.seed}")

    def loop(self) -> Decoding:
        """The options of the loop among these."""
        names = {field.name for field in fields(Decoding)} & {field.name for field in fields(self)}
        return Decoding(**{name: getattr(self, name) for name in names})

    def steps_for(self, length: int) -> int | None:
        """The step budget of another length at the same number of tokens per step; at least a step per block."""
        if self.steps is None or length == self.length:
            return self.steps
        blocks = -(-length // (self.block or length))
        return max(blocks, round(self.steps * length / self.length))


@dataclass(frozen=True)
class LmEval:
    """A task, a denoiser, a way to decode. ``shots`` None is the task's own number.

    ``chat`` puts prompts into the chat template, ``multiturn`` each worked example into a turn of its own. ``published`` are the
    numbers of the row that a preset reproduces, by order, and ``source`` where they stand. ``data`` is a folder of files, ""
    the hub. The first ``traces`` samples that are decoded leave traces. ``unconfined`` runs generated code without a sandbox.
    """

    task: str = "gsm8k"
    denoiser: str = "GSAI-ML/LLaDA-8B-Instruct"
    tokenizer: str = ""
    shots: int | None = None
    chat: bool = False
    multiturn: bool = False
    decoding: LmDecoding = field(default_factory=LmDecoding)
    data: str = ""
    limit: int | None = None
    traces: int = 0
    batch: int = 8
    dtype: str = "float32"
    device: str = ""
    unconfined: bool = False
    source: str = ""
    published: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit must be at least 1, got {self.limit}")
        if self.traces < 0:
            raise ValueError(f"traces must be at least 0, got {self.traces}")
