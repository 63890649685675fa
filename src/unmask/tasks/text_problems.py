"""Shared by the small text tasks: problems as text, canvases of characters, splits by a hash, a task and a training source.

Shapes: ``B`` canvases of ``L = prompt_width + answer_width`` positions. Both parts are padded on the right, answers behind their
end token, so that every answer begins in the same column::

    b+2;c-1;4-1; · · │ 二+2=④;3-Ⅰ=2;4-一=3;423 . · ·
                     └ the region: all of it hidden at first, the padding too

The region has one of the task's ``lengths``: a denoiser is trained on all of them in turn, so that a generation may be longer than
the answer.

The padding behind the end is hidden and predicted like any token in pretraining and in decoding: a denoiser that was never trained
there would predict anything. ``pads`` says what it is in canvases to learn an order on (:mod:`unmask.tasks.pads`). Tasks never
state where the answer ends.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.decoding.protocols import Canvas, Denoiser, Verdict
from unmask.generation.characters import CharacterTokenizer
from unmask.runs.config import Share
from unmask.tasks.kinds import KINDS, EvaluationRequest, EvaluationSet, GeneratedKind
from unmask.tasks.pads import DEFAULT, Pads, lay_pads
from unmask.tasks.sudoku.symmetry import SPLITS
from unmask.tasks.vocabulary import END, MASK, PAD, PIECES, SPECIAL, VOCABULARY, decode, draw_tokens, encode

SHARES = (0.90, 0.05)
"""Of the training and the validation split; the rest is the test split."""
PATIENCE = 200
"""Problems tried per requested one before a split counts as too small."""


@dataclass(frozen=True)
class Problem:
    """``form`` is equal for problems that differ in notation only: it decides the split."""

    prompt: str
    answer: str
    stratum: str
    form: str


def digest(form: str) -> bytes:
    """Eight bytes that identify a problem, the same on every machine."""
    return blake2b(form.encode(), digest_size=8).digest()


def split_of(form: str) -> str:
    """The split that a problem falls into, the same on every machine."""
    place = int.from_bytes(digest(form), "little") / 2.0**64
    return SPLITS[(place >= SHARES[0]) + (place >= SHARES[0] + SHARES[1])]


@dataclass(frozen=True)
class TextProblemKind(GeneratedKind):
    """The first problems of a corpus that fall into a split, and a source of training canvases made of them.

    Held-out splits hold no ``form`` twice: an interval over copies would be too narrow.

    Attributes:
        count: How many problems.
        split: train, validation or test.
        seed: Seeds the corpus.
        length: The width of the answer's region, one of ``lengths``, the shortest first. None: training cycles through them from
            step to step, and a task takes the shortest.
        pads: What the padding is to a policy that is trained: hidden, end or left_out.
        pad_weight: How much revealing it counts, where it is a candidate.
    """

    prompt_width: ClassVar[int]
    lengths: ClassVar[tuple[int, ...]]
    options: ClassVar[Mapping[str, str]] = {
        "length": "The width of the answer's region; None: the shortest that there is."
    }

    count: int = 20_000
    split: str = "train"
    seed: int = 0
    length: int | None = None
    pads: Pads = DEFAULT
    pad_weight: Share = 1.0

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {self.split!r}")
        if self.count < 1:
            raise ValueError(f"expected at least one problem, got count = {self.count}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be in 0 .. 2**63 - 1, got {self.seed}")
        if self.length is not None and self.length not in self.lengths:
            known = ", ".join(map(str, self.lengths))
            raise ValueError(f"the length of {self.kind} answers must be one of {known}, got {self.length}")

    @abstractmethod
    def problem(self, index: int) -> Problem:
        """Problem ``index`` of the corpus: a function of the seed and the index, independent of the split."""

    @staticmethod
    @abstractmethod
    def grade(problem: Problem, text: str) -> tuple[bool, float]:
        """Whether a text answers the problem, and the share of it that is right."""

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
                    f"only {len(kept)} of {self.count} {self.kind} problems fall into the {self.split} split: "
                    "there are too few such problems; lower the count or widen their range"
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
        return {
            "max_length": cls.prompt_width + cls.lengths[-1],
            "vocab_size": VOCABULARY,
            "mask_id": MASK,
            "pad_id": PAD,
            "end_ids": (END,),
            "grid": None,
        }

    def save_tokenizer(self, folder: Path) -> None:
        CharacterTokenizer(SPECIAL + PIECES, len(SPECIAL), PAD, self.prompt_width).save(folder)

    def problems(self, denoiser: Denoiser, name: str) -> TextProblemSet:
        self.check(denoiser, name)
        return TextProblemSet(self)

    @classmethod
    def check(cls, denoiser: Denoiser, name: str) -> None:
        """Raise a ValueError for a denoiser of other canvases."""
        config = getattr(denoiser, "config", None)
        wrong = [key for key, value in cls.shape().items() if getattr(config, key, None) != value]
        if wrong:
            expected = ", ".join(f"{key} {cls.shape()[key]}" for key in wrong)
            raise ValueError(
                f"{name} is not a denoiser of {cls.kind} problems: expected {expected}; "
                f"train one with unmask pretrain --preset {cls.kind}"
            )

    @property
    def problem_count(self) -> int:
        return self.count

    def first(self, count: int) -> TextProblemKind:
        return replace(self, count=min(self.count, count))

    def evaluation(self, denoiser: Denoiser, name: str, request: EvaluationRequest) -> EvaluationSet:
        """Problems of the test split, or the first of a file where such files exist."""
        self.check(denoiser, name)
        if request.data is not None:
            task = self.read(request.data, request.limit)
        else:
            task = TextProblemTask.generate(replace(self, count=request.limit, split="test", seed=request.seed))
        return EvaluationSet(denoiser, task, lambda token: draw_tokens([token]))

    @classmethod
    def read(cls, file: Path, limit: int) -> TextProblemTask:
        """The first ``limit`` problems of a file, where such files exist."""
        raise ValueError(f"there are no files of {cls.kind} problems, they are generated: leave --data out, got {file}")

    def __call__(self, step: int, batch: int) -> Canvas:
        length = self.length or self.lengths[step % len(self.lengths)]
        target = self.rows[(torch.arange(batch) + step * batch) % self.count, : self.prompt_width + length]
        canvas = hide_answers(target, self.prompt_width)
        ended = (target == END).long().cumsum(1)
        answer = (canvas.tokens == MASK) & ((ended == 0) | (target == END))
        return lay_pads(canvas, answer, self.pads, self.pad_weight)


@dataclass(frozen=True)
class TextProblemSet:
    """Problems for one denoiser: training canvases, and held-out tasks. ``vary`` is None: a problem has no symmetries."""

    data: TextProblemKind
    vary = None

    def __call__(self, step: int, count: int) -> Canvas:
        return self.data(step, count)

    def held_out(self, count: int, which: str | None = None) -> TextProblemTask:
        """Problems of another split than the training one, by default of the validation split."""
        split = which or "validation"
        if split not in SPLITS or split == self.data.split:
            raise ValueError(f"expected a split other than {self.data.split} for validation, got {which!r}")
        return TextProblemTask.generate(replace(self.data, count=count, split=split, seed=self.data.seed + 1))

    def fixed(self) -> Canvas:
        """All canvases at once."""
        return self.data(0, self.data.count)

    def judge(self, target: Int[Tensor, "B L"], tokens: Int[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        """The task's verifier, for problems that are parsed from their canvases."""
        width = self.data.prompt_width
        problems = [parse_canvas(row, width) for row in target.tolist()]
        exact = [
            grade_tokens(self.data, problem, answer)[0]
            for problem, answer in zip(problems, tokens[:, width:].tolist(), strict=True)
        ]
        return torch.tensor(exact, device=tokens.device)


@dataclass(frozen=True, eq=False)
class TextProblemTask:
    """Problems of one kind as a Task. ``kind`` has their widths and their grader."""

    kind: TextProblemKind
    problems: Sequence[Problem]
    source: str

    @classmethod
    def generate(cls, kind: TextProblemKind) -> TextProblemTask:
        longer = "" if kind.length in (None, kind.lengths[0]) else f", length {kind.length}"
        return cls(kind, kind.corpus, f"{kind.count} generated ({kind.split}, seed {kind.seed}{longer})")

    @property
    def name(self) -> str:
        return self.kind.kind

    def __len__(self) -> int:
        return len(self.problems)

    def canvas(self, rows: Sequence[int]) -> Canvas:
        problems = [self.problems[row] for row in rows]
        length = self.kind.length or self.kind.lengths[0]
        return hide_answers(lay_out(problems, self.kind.prompt_width, length), self.kind.prompt_width)

    def verify(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> Verdict:
        """Exact: the text before the first end token answers the problem. An answer without an end token is wrong."""
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
    """Grade an answer's tokens up to the first end token; one without an end token is wrong."""
    text = decode(ids)
    return (False, 0.0) if text is None else kind.grade(problem, text)


def parse_canvas(ids: list[int], prompt_width: int) -> Problem:
    """The problem and the answer of a finished canvas."""
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


def text_problem_kinds() -> dict[str, type[TextProblemKind]]:
    """Name → class of every registered text task."""
    return {name: kind for name, kind in KINDS.items() if issubclass(kind, TextProblemKind)}
