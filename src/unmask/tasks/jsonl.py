"""Text to learn an order on: JSON lines of ``{"prompt", "completion"}``, tokenised by the denoiser's own tokenizer.

``B`` rows, ``L`` positions. A canvas, two rows, five positions per answer; ``·`` is padding, ``▁`` hidden::

    · · the cat │ ▁ ▁ ▁ ▁ ▁        sat down <end>
    on the mat  │ ▁ ▁ ▁ ▁ ▁        they all sat <end>
                └ the region, of the same length in all rows

The policy sees what it will see in decoding: masks in the whole region (``pads``, :mod:`unmask.tasks.pads`). Denoisers without end
tokens (such as BERT) get canvases of the answer's own length, followed by the tokenizer's closing tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.decoding.protocols import Canvas, Denoiser, Verdict
from unmask.generation.alignment import AlignedRows, align_rows, filler_id
from unmask.generation.text_canvas import (
    Prompt,
    Tokenizer,
    apply_template,
    as_turns,
    encode_prompt,
    encode_text,
    is_conversation,
    load_tokenizer,
)
from unmask.runs.config import Share
from unmask.runs.jsonable import read_json_lines
from unmask.tasks.kinds import EvaluationRequest, EvaluationSet, TaskKind, shuffle_rows
from unmask.tasks.pads import DEFAULT, Pads, lay_pads

EVALUATION_LENGTH = 4096
"""The most tokens of a completion in an evaluation; the denoiser's own limit applies too."""


@dataclass(frozen=True)
class Example:
    """One line, at ``place`` in a file. ``prompt`` is a text, or the turns of a conversation."""

    place: str
    prompt: Prompt
    completion: str


@dataclass(frozen=True)
class TextData(TaskKind):
    """The examples of a JSON lines file.

    Attributes:
        file: Lines of {"prompt": …, "completion": …}.
        length: Positions for an answer and its end token. A longer example is an error.
        prompt_length: The most tokens of a prompt.
        chat: Apply the tokenizer's chat template.
        pads: What the positions behind the end token are: hidden, end or left_out.
        pad_weight: How much revealing one of them counts, where they are candidates.
        held_out: The share of the prompts, by a hash, that is for validation, unless the run names another file for it.
        tokenizer: A folder or hub id, if not the denoiser's own.
        seed: Seeds the order of the examples.
    """

    kind: Literal["text"] = "text"
    file: str = ""
    length: int = 512
    prompt_length: int = 2048
    chat: bool = False
    pads: Pads = DEFAULT
    pad_weight: Share = 1.0
    held_out: float = 0.05
    tokenizer: str = ""
    seed: int = 0

    preset = "sas-text"

    def __post_init__(self) -> None:
        if self.length < 1 or self.prompt_length < 1:
            raise ValueError(f"length and prompt_length must be at least 1, got {self.length}, {self.prompt_length}")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must be in [0, 1), got {self.held_out}")

    def problems(self, denoiser: Denoiser, name: str) -> TextProblems:
        if not self.file:
            raise ValueError('the text has no file: name JSON lines of {"prompt": …, "completion": …} (--data)')
        return TextProblems(self, denoiser, load_tokenizer(self.tokenizer or name))

    def evaluation(self, denoiser: Denoiser, name: str, request: EvaluationRequest) -> EvaluationSet:
        """All examples of the file, each in a canvas of its answer's own length."""
        file = self.require_file(request)
        data = replace(self, file=file, length=EVALUATION_LENGTH, pads="left_out", held_out=0.0, seed=request.seed)
        tokenizer = load_tokenizer(name)
        task = data.problems(denoiser, name).held_out(request.limit, file)
        return EvaluationSet(denoiser, task, lambda token: tokenizer.decode([token]))

    def is_held_out(self, example: Example) -> bool:
        """By a hash of the prompt: examples with the same prompt are in the same split."""
        digest = blake2b(json.dumps([self.seed, example.prompt], sort_keys=True).encode(), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64 < self.held_out


def read_examples(file: str | Path, chat: bool = False) -> list[Example]:
    """The examples of a file. A malformed line is an error that names it; empty lines are skipped."""
    examples = [_check_example(value, place, chat) for place, value in read_json_lines(file)]
    if not examples:
        raise ValueError(f'{file} is empty: expected lines such as {{"prompt": "2+2=", "completion": "4"}}')
    return examples


def _check_example(value: Any, where: str, chat: bool) -> Example:
    if not isinstance(value, dict):
        raise ValueError(f'{where}: expected an object with "prompt" and "completion", got {type(value).__name__}')
    if missing := [key for key in ("prompt", "completion") if key not in value]:
        raise ValueError(
            f'{where}: no "{missing[0]}": expected "prompt" and "completion", got {", ".join(value) or "{}"}'
        )
    prompt, completion = value["prompt"], value["completion"]
    if not isinstance(completion, str) or not completion:
        raise ValueError(f"{where}: the completion must be a text that is not empty, got {completion!r:.40}")
    if not isinstance(prompt, str) and not (chat and is_conversation(prompt)):
        turns = ' or a list of {"role", "content"}' if chat else "; conversations need chat = true"
        raise ValueError(f"{where}: the prompt must be a text{turns}, got {prompt!r:.40}")
    if any("\ud800" <= letter <= "\udfff" for letter in f"{prompt}{completion}"):
        raise ValueError(f"{where}: half of a surrogate pair (an escape such as \\ud800) is no text")
    return Example(where, prompt, completion)


@dataclass(frozen=True, eq=False)
class TextProblems:
    """Examples for one denoiser: training canvases, and held-out tasks. ``vary`` is None: text has no symmetries."""

    data: TextData
    denoiser: Denoiser
    tokenizer: Tokenizer
    vary = None
    judge = None

    @cached_property
    def _all(self) -> tuple[list[Example], list[Example]]:
        examples = read_examples(self.data.file, self.data.chat)
        sides: tuple[list[Example], list[Example]] = ([], [])
        for example in examples:
            sides[self.data.is_held_out(example)].append(example)
        if not sides[0]:
            raise ValueError(f"{self.data.file}: all of its {len(examples)} examples are held out: give more of them")
        return sides

    @cached_property
    def task(self) -> TextTask:
        """The training examples."""
        return self._task(self._all[0], self.data.file)

    def _task(self, examples: Sequence[Example], file: str) -> TextTask:
        return TextTask(self.data, self.denoiser, self.tokenizer, tuple(examples), file)

    def __call__(self, step: int, count: int) -> Canvas:
        return self.task.canvas(shuffle_rows(self.data.seed, step, count, len(self.task)).tolist())

    def held_out(self, count: int, which: str | None = None) -> TextTask:
        """The first ``count`` of the file ``which``; without it, of the held-out share of the training file."""
        if which is not None:
            return self._task(read_examples(which, self.data.chat)[:count], which)
        if not self._all[1]:
            raise ValueError(
                f"no example of {self.data.file} is held out: name a file for validation, or raise held_out "
                f"({self.data.held_out})"
            )
        return self._task(self._all[1][:count], f"{self.data.file}, held out")

    def fixed(self) -> Canvas:
        return self.task.canvas(range(len(self.task)))


@dataclass(frozen=True, eq=False)
class TextTask:
    """Examples as a Task."""

    data: TextData
    denoiser: Denoiser
    tokenizer: Tokenizer
    examples: tuple[Example, ...]
    source: str = "text"

    @property
    def name(self) -> str:
        return "text"

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def rows(self) -> list[tuple[list[int], list[int], list[int]]]:
        """The ids of each example: the prompt, the answer with its end token, the closing tokens."""
        return [self._encode(example) for example in self.examples]

    @cached_property
    def end(self) -> int | None:
        """The token that ends an answer; with ``chat`` the chat template's."""
        ends = self.denoiser.end_ids
        if not ends:
            return None
        if self.data.chat and getattr(self.tokenizer, "chat_template", None):
            turns: list[Mapping[str, str]] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
            text = apply_template(self.tokenizer, turns)
            closing = self.tokenizer.encode(text.rpartition("!")[2], add_special_tokens=False)
            return next((token for token in closing if token in ends), ends[0])
        return ends[0]

    def _encode(self, example: Example) -> tuple[list[int], list[int], list[int]]:
        where = example.place
        prompt = as_turns(example.prompt) if self.data.chat else example.prompt
        before, after = encode_prompt(self.tokenizer, prompt)
        answer = encode_text(self.tokenizer, example.completion)
        answer = answer if self.end is None else [*answer, self.end]
        for what, ids, most, option in (
            ("prompt", before, self.data.prompt_length, "prompt_length"),
            ("completion", answer, self.data.length, "length"),
        ):
            if len(ids) > most:
                raise ValueError(
                    f"{where}: the {what} has {len(ids)} tokens, more than {option} = {most}: raise it, or shorten the example"
                )
            if self.denoiser.mask_id in ids:
                raise ValueError(f"{where}: the {what} holds the denoiser's mask token: leave it out")
        forbidden = set(self.denoiser.forbidden_ids) - set(self.denoiser.end_ids)
        if wrong := [token for token in answer if token in forbidden]:
            raise ValueError(f"{where}: the completion holds the token {wrong[0]}, which the denoiser never reveals")
        if not answer:
            raise ValueError(f"{where}: the completion has no tokens")
        return before, answer, after

    def canvas(self, rows: Sequence[int]) -> Canvas:
        aligned, answer = self._align(rows)
        tokens = aligned.tokens.masked_fill(aligned.region, self.denoiser.mask_id)
        whole = Canvas(tokens, aligned.tokens, aligned.region, aligned.attention)
        return lay_pads(whole, answer, self.data.pads, self.data.pad_weight)

    def _align(self, rows: Sequence[int]) -> tuple[AlignedRows, Bool[Tensor, "B L"]]:
        """Prompts and answers as one batch, and where the answers with their end tokens are."""
        chosen = [self.rows[row] for row in rows]
        padded = self.end is not None and self.data.pads != "left_out"
        filler = [filler_id(self.denoiser)] * (self.data.length if padded else 0)
        aligned = align_rows(
            self.denoiser, [(before, [*answer, *filler[len(answer) :]], after) for before, answer, after in chosen]
        )
        _require_length(aligned.tokens.shape[1], self.denoiser)
        ends = aligned.start + torch.tensor([len(answer) for _, answer, _ in chosen])
        return aligned, aligned.region & (torch.arange(aligned.tokens.shape[1]) < ends[:, None])

    def verify(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> Verdict:
        """Exact: every token of the answer and its end token. Share: the part of them that is right."""
        aligned, answer = self._align(rows)
        return Verdict.of(tokens, aligned.tokens, answer)

    def stratum(self, row: int) -> str:
        """By the length of the answer, in powers of two."""
        count = len(self.rows[row][1])
        least = 1 << (count.bit_length() - 1)
        return f"{least:4d} to {2 * least - 1} tokens"

    def draw(self, row: int, tokens: Int[Tensor, "L"]) -> str:
        ids = [token for token in tokens.tolist() if token not in (self.denoiser.mask_id, self.denoiser.pad_id)]
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def _require_length(length: int, denoiser: Denoiser) -> None:
    longest = getattr(getattr(denoiser, "config", None), "max_length", None)
    if longest is not None and length > longest:
        raise ValueError(
            f"a canvas of {length} positions (prompt, answer) exceeds the denoiser's {longest}: "
            "lower length, or shorten the prompts"
        )
