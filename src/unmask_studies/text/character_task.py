"""Open text as a task, so that ``unmask train`` and ``unmask evaluate`` read a plain text file for a model of characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.protocols import Canvas, Denoiser, Verdict
from unmask.tasks.kinds import EvaluationRequest, EvaluationSet, TaskKind
from unmask_studies.text.passages import ALPHABET, MASK, Passages


@dataclass(frozen=True)
class CharacterData(TaskKind):
    """Passages of a plain text, for a denoiser of characters that was trained on the same file.

    Attributes:
        file: The text, in UTF-8.
        given: Characters at the beginning of a passage that are given.
        length: Hidden characters behind them.
        seed: Seeds the passages of the training part.
    """

    kind: Literal["characters"] = "characters"
    file: str = ""
    given: int = 16
    length: int = 48
    seed: int = 0

    options: ClassVar[Mapping[str, str]] = {
        "given": "Characters at the beginning of a passage that are given.",
        "length": "Hidden characters behind them.",
    }

    @property
    def passages(self) -> Passages:
        return Passages(self.file, self.given, self.length, self.seed)

    def problems(self, denoiser: Denoiser, name: str) -> CharacterProblems:
        if not self.file:
            raise ValueError("open text has no file: name the text that the denoiser was trained on (--data)")
        passages, shape = self.passages, getattr(denoiser, "config", None)
        longest = getattr(shape, "max_length", 0)
        if denoiser.mask_id != MASK or getattr(shape, "vocab_size", 0) != ALPHABET or longest < passages.width:
            raise ValueError(
                f"{name} is no denoiser of characters for passages of {passages.width}: expected {ALPHABET} tokens, the mask "
                f"{MASK} and as many positions, got {getattr(shape, 'vocab_size', 'no')} tokens, the mask {denoiser.mask_id} "
                f"and {longest} positions; unmask study characters trains one"
            )
        return CharacterProblems(passages)

    def evaluation(self, denoiser: Denoiser, name: str, request: EvaluationRequest) -> EvaluationSet:
        """Passages of the last twentieth of the file."""
        data = replace(self, file=self.require_file(request))
        task = data.problems(denoiser, name).held_out(request.limit, "test")
        return EvaluationSet(denoiser, task, task.passages.spell)


@dataclass(frozen=True)
class CharacterProblems:
    """Training passages, and held-out ones that do not overlap."""

    passages: Passages
    vary = None
    judge = None

    def __call__(self, step: int, count: int) -> Canvas:
        return self.passages(step, count)

    def held_out(self, count: int, which: str | None = None) -> CharacterTask:
        split = which or "validation"
        if split not in ("validation", "test"):
            raise ValueError(f"validation of open text must be one of validation, test, got {which!r}")
        return CharacterTask(self.passages, self.passages.held_out(split, count))

    def fixed(self) -> Canvas:
        """Every training passage, next to each other."""
        return self.passages.held_out("train", len(self.passages.part("train")) // self.passages.width)


@dataclass(frozen=True, eq=False)
class CharacterTask:
    """Held-out passages. What a file says is one of many ways to go on: the likelihood along the order is what to compare."""

    passages: Passages
    whole: Canvas

    @property
    def name(self) -> str:
        return "characters"

    def __len__(self) -> int:
        return len(self.whole.tokens)

    def canvas(self, rows: Sequence[int]) -> Canvas:
        return self.whole.rows(torch.tensor(list(rows), dtype=torch.long))

    def verify(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> Verdict:
        """Exact: the passage of the file. Share: the hidden characters that are the file's."""
        canvas = self.canvas(rows)
        assert canvas.region is not None
        return Verdict.of(tokens, canvas.truth, canvas.region)

    def stratum(self, row: int) -> str:
        return "passages"

    def draw(self, row: int, tokens: Int[Tensor, "L"]) -> str:
        return "".join(self.passages.spell(token) for token in tokens.tolist())
