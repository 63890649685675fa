"""What the small text tasks share: problems as text, canvases of characters, splits by a hash, a task and a training source.

Shapes: ``B`` canvases of ``L = prompt_width + answer_width`` positions. Both parts are padded on the right, answers behind their
end token, so that every answer begins in the same column::

    b+2;c-1;4-1; · · │ 二+2=④;3-Ⅰ=2;4-一=3;423 . · ·
                     └ the region: all of it hidden at first, the padding too

The region is one of the task's ``lengths``: a denoiser is trained on all of them in turn, so that a generation may be longer than
its answer needs.

The padding behind the end is hidden and predicted like any token in pre-training and in decoding: a denoiser that was never asked
there would answer anything. Canvases to learn an order on leave it out of the candidates, since revealing it first tells how
long the answer is; it stays hidden. Tasks never say where the answer ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.decoding.protocols import Canvas, Denoiser, Verdict
from unmask.tasks.sudoku.symmetry import SPLITS
from unmask.tasks.vocabulary import END, MASK, PAD, VOCABULARY, decode, draw_tokens, encode

SHARES = (0.90, 0.05)
"""Of the training and the validation split; the rest is for tests."""
PATIENCE = 200
"""Problems looked at for each one wanted, before a split is found to be too small."""


@dataclass(frozen=True)
class Problem:
    """``form`` is the same for problems that are the same but for their writing: it decides the split."""

    prompt: str
    answer: str
    stratum: str
    form: str


def digest(form: str) -> bytes:
    """Eight bytes that stand for a problem, the same on every machine."""
    return blake2b(form.encode(), digest_size=8).digest()


def split_of(form: str) -> str:
    """The split that a problem falls into, the same on every machine."""
    place = int.from_bytes(digest(form), "little") / 2.0**64
    return SPLITS[(place >= SHARES[0]) + (place >= SHARES[0] + SHARES[1])]


@dataclass(frozen=True)
class TextProblemKind(ABC):
    """The first ``count`` of a corpus that fall into a ``split``, and a source of training canvases made of them.

    What is held out holds no problem twice, in other words neither: an interval over copies would be too narrow.

    ``length``: the width of the answer's region, one of ``lengths``, the shortest first. None: training takes all of them in turn,
    from step to step, and a task the shortest.
    """

    name: ClassVar[str]
    prompt_width: ClassVar[int]
    lengths: ClassVar[tuple[int, ...]]

    count: int = 20_000
    split: str = "train"
    seed: int = 0
    length: int | None = None

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {self.split!r}")
        if self.count < 1:
            raise ValueError(f"expected at least one problem, got count = {self.count}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be in 0 .. 2**63 - 1, got {self.seed}")
        if self.length is not None and self.length not in self.lengths:
            known = ", ".join(map(str, self.lengths))
            raise ValueError(f"the length of {self.name} answers must be one of {known}, got {self.length}")

    @abstractmethod
    def problem(self, index: int) -> Problem:
        """The corpus: a function of the seed and the index, whatever the split."""

    @staticmethod
    @abstractmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """Whether a text answers the problem, and which share of it is right."""

    def split_for(self, problem: Problem) -> str:
        """The split of a problem."""
        return split_of(problem.form)

    @cached_property
    def corpus(self) -> tuple[Problem, ...]:
        kept: list[Problem] = []
        forms: set[str] = set()
        index = 0
        while len(kept) < self.count:
            if index > PATIENCE * self.count + 20_000:
                raise ValueError(
                    f"only {len(kept)} of {self.count} {self.name} problems fall into the {self.split} split: "
                    "there are too few such problems; ask for fewer or widen their range"
                )
            problem = self.problem(index)
            if self.split_for(problem) == self.split and (self.split == "train" or problem.form not in forms):
                kept.append(problem)
                forms.add(problem.form)
            index += 1
        return tuple(kept)

    @cached_property
    def rows(self) -> Int[Tensor, "N L"]:
        """All problems with their answers, at the longest length."""
        return lay_out(self.corpus, self.prompt_width, self.lengths[-1])

    @classmethod
    def shape(cls) -> dict[str, Any]:
        """What the configuration of a denoiser must say to fit these problems."""
        return {
            "max_length": cls.prompt_width + cls.lengths[-1],
            "vocab_size": VOCABULARY,
            "mask_id": MASK,
            "pad_id": PAD,
            "end_ids": (END,),
            "grid": None,
        }

    def problems(self, denoiser: Denoiser, name: str) -> TextProblemSet:
        """What an order is learned on, for a denoiser that fits."""
        self.check(denoiser, name)
        return TextProblemSet(self)

    @classmethod
    def check(cls, denoiser: Denoiser, name: str) -> None:
        """Refuse a denoiser of other canvases."""
        config = getattr(denoiser, "config", None)
        wrong = [key for key, value in cls.shape().items() if getattr(config, key, None) != value]
        if wrong:
            expected = ", ".join(f"{key} {cls.shape()[key]}" for key in wrong)
            raise ValueError(
                f"{name} is not a denoiser of {cls.name} problems: expected {expected}; "
                f"train one with unmask pretrain --preset {cls.name}"
            )

    def __call__(self, step: int, batch: int) -> Canvas:
        """The canvases of a training step: a function of the step and the seed alone."""
        length = self.length or self.lengths[step % len(self.lengths)]
        target = self.rows[(torch.arange(batch) + step * batch) % self.count, : self.prompt_width + length]
        canvas = hide_answers(target, self.prompt_width)
        ended = (target == END).long().cumsum(1)
        candidates = (canvas.tokens == MASK) & ((ended == 0) | (target == END))
        return Canvas(canvas.tokens, target, canvas.region, candidates=candidates)


@dataclass(frozen=True)
class TextProblemSet:
    """Problems for one denoiser: canvases to train on, others held out. ``vary`` is None: a problem has no symmetries."""

    data: TextProblemKind
    vary = None

    def __call__(self, step: int, count: int) -> Canvas:
        return self.data(step, count)

    def held_out(self, count: int, which: str | None = None) -> TextProblemTask:
        """Problems of another split, by default of the validation split; none of them is among those trained on."""
        split = which or "validation"
        if split not in SPLITS or split == self.data.split:
            raise ValueError(f"expected a split other than {self.data.split} for validation, got {which!r}")
        return TextProblemTask.generate(replace(self.data, count=count, split=split, seed=self.data.seed + 1))

    def fixed(self) -> Canvas:
        """All canvases at once."""
        return self.data(0, self.data.count)

    def judge(self, target: Int[Tensor, "B L"], tokens: Int[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        """As the task's verifier does, for problems that are read off their canvases."""
        width = self.data.prompt_width
        problems = [parse_canvas(row, width) for row in target.tolist()]
        exact = [
            grade_tokens(self.data, problem, answer)[0]
            for problem, answer in zip(problems, tokens[:, width:].tolist(), strict=True)
        ]
        return torch.tensor(exact, device=tokens.device)


@dataclass(frozen=True, eq=False)
class TextProblemTask:
    """Problems of one kind as a Task. ``kind`` is a :class:`TextProblemKind` that says how wide they are and how they are graded."""

    kind: TextProblemKind
    problems: Sequence[Problem]
    source: str

    @classmethod
    def generate(cls, kind: TextProblemKind) -> TextProblemTask:
        longer = "" if kind.length in (None, kind.lengths[0]) else f", length {kind.length}"
        return cls(kind, kind.corpus, f"{kind.count} generated ({kind.split}, seed {kind.seed}{longer})")

    @property
    def name(self) -> str:
        return self.kind.name

    def __len__(self) -> int:
        return len(self.problems)

    def canvas(self, rows: Sequence[int]) -> Canvas:
        problems = [self.problems[row] for row in rows]
        length = self.kind.length or self.kind.lengths[0]
        return hide_answers(lay_out(problems, self.kind.prompt_width, length), self.kind.prompt_width)

    def verify(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> Verdict:
        """Exact: what stands before the first end token answers the problem. An answer that does not end is wrong."""
        grades = [
            grade_tokens(self.kind, self.problems[row], answer)
            for row, answer in zip(rows, tokens[:, self.kind.prompt_width :].tolist(), strict=True)
        ]
        return Verdict(
            exact=torch.tensor([exact for exact, _ in grades], dtype=torch.bool),
            share=torch.tensor([share for _, share in grades], dtype=torch.float32),
        )

    def stratum(self, row: int) -> str:
        return self.problems[row].stratum

    def draw(self, row: int, tokens: Int[Tensor, "L"]) -> str:
        ids = tokens.tolist()
        return f"{draw_tokens(ids[: self.kind.prompt_width])}\n{draw_tokens(ids[self.kind.prompt_width :])}"


def grade_tokens(kind: TextProblemKind, problem: Problem, ids: list[int]) -> tuple[bool, float]:
    """An answer's tokens, up to the first end token; one that does not end is wrong."""
    text = decode(ids)
    return (False, 0.0) if text is None else kind.grade(problem, text)


def parse_canvas(ids: list[int], prompt_width: int) -> Problem:
    """The problem and its answer as a finished canvas has them."""
    prompt, answer = decode([*(i for i in ids[:prompt_width] if i != PAD), END]), decode(ids[prompt_width:])
    assert prompt is not None and answer is not None
    return Problem(prompt, answer, "", "")


def lay_out(problems: Sequence[Problem], prompt_width: int, answer_width: int) -> Int[Tensor, "N L"]:
    """Prompts and answers as rows of tokens, padded on the right."""
    rows = []
    for problem in problems:
        prompt, answer = encode(problem.prompt), [*encode(problem.answer), END]
        if len(prompt) > prompt_width or len(answer) > answer_width:
            raise ValueError(
                f"{problem.prompt!r} with the answer {problem.answer!r} is too long: expected at most {prompt_width} tokens and "
                f"{answer_width} with the end, got {len(prompt)} and {len(answer)}"
            )
        rows.append([*prompt, *[PAD] * (prompt_width - len(prompt)), *answer, *[PAD] * (answer_width - len(answer))])
    return torch.tensor(rows)


def hide_answers(target: Int[Tensor, "B L"], prompt_width: int) -> Canvas:
    region = (torch.arange(target.shape[1]) >= prompt_width).expand_as(target)
    return Canvas(target.masked_fill(region, MASK), target, region)
