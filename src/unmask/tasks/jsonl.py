"""Text to learn an order on: JSON lines of ``{"prompt", "completion"}``, tokenised by the denoiser's own tokenizer.

``B`` rows, ``L`` positions. A canvas, two rows, five positions per answer; ``·`` is padding, ``▁`` hidden, ``▒`` hidden for good::

    · · the cat │ ▁ ▁ ▁ ▒ ▒        sat down <end>
    on the mat  │ ▁ ▁ ▁ ▁ ▒        they all sat <end>
                └ the region, of the same length in all rows

What stands behind the end token stays hidden, is no candidate and is not paid for: an order that reveals it first tells the
denoiser how long the answer is. A canvas that leaves it out altogether (``pads="left_out"``) tells so from the start. Denoisers
without end tokens (BERT and its like) get canvases of the answer's own length, with the tokenizer's closing tokens behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.decoding.protocols import Canvas, Denoiser, Verdict
from unmask.generation.text_canvas import Prompt, Tokenizer, as_turns, encode_prompt, load_tokenizer
from unmask.tasks.shuffled import shuffled_rows

LONGEST_LINE = 10_000_000
"""Bytes of a line of the file: one example. What is longer is not read into memory as JSON."""


@dataclass(frozen=True)
class Example:
    """One line. ``prompt`` is a text, or the turns of a conversation."""

    line: int
    prompt: Prompt
    completion: str


@dataclass(frozen=True)
class TextData:
    """The examples of a JSON lines ``file``.

    ``length``: positions for an answer and its end token; ``prompt_length``: at most so many tokens of prompt. A longer example is
    an error. ``chat`` puts prompts into the tokenizer's chat template. A ``held_out`` share of the prompts, by a hash, is for
    validation, unless the run names another file for it. ``pads``: "hidden" or "left_out". ``tokenizer`` names another folder
    than the denoiser's.
    """

    kind: Literal["text"] = "text"
    file: str = ""
    length: int = 512
    prompt_length: int = 2048
    chat: bool = False
    pads: Literal["hidden", "left_out"] = "hidden"
    held_out: float = 0.05
    tokenizer: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.length < 1 or self.prompt_length < 1:
            raise ValueError(f"length and prompt_length must be at least 1, got {self.length}, {self.prompt_length}")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must be in [0, 1), got {self.held_out}")

    def problems(self, denoiser: Denoiser, name: str) -> TextProblems:
        if not self.file:
            raise ValueError('the text has no file: name JSON lines of {"prompt": …, "completion": …} (--data)')
        return TextProblems(self, denoiser, load_tokenizer(self.tokenizer or name))

    def is_held_out(self, example: Example) -> bool:
        """By a hash of the prompt: examples with the same prompt are on the same side."""
        digest = blake2b(json.dumps([self.seed, example.prompt], sort_keys=True).encode(), digest_size=8).digest()
        return int.from_bytes(digest) / 2**64 < self.held_out


def read_examples(file: str | Path, chat: bool = False) -> list[Example]:
    """The examples of a file. The first line that is none is an error that names it; empty lines do not count."""
    examples = []
    try:
        with open(file, "rb") as opened:
            number = 0
            while line := opened.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise ValueError(f"{file}, line {number}: longer than {LONGEST_LINE} bytes: one example is a line")
                if line.strip():
                    examples.append(_example(line, number, f"{file}, line {number}", chat))
    except OSError as error:
        raise ValueError(f"cannot read the examples {file}: {error.strerror}") from error
    if not examples:
        raise ValueError(f'{file} is empty: expected lines such as {{"prompt": "2+2=", "completion": "4"}}')
    return examples


def _example(line: bytes, number: int, where: str, chat: bool) -> Example:
    try:
        value: Any = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 (byte {error.start + 1}): save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error or 'nested beyond reason'})") from None
    if not isinstance(value, dict):
        raise ValueError(f'{where}: expected an object with "prompt" and "completion", got {type(value).__name__}')
    if missing := [key for key in ("prompt", "completion") if key not in value]:
        raise ValueError(
            f'{where}: no "{missing[0]}": expected "prompt" and "completion", got {", ".join(value) or "{}"}'
        )
    prompt, completion = value["prompt"], value["completion"]
    if not isinstance(completion, str) or not completion:
        raise ValueError(f"{where}: the completion must be a text that is not empty, got {completion!r:.40}")
    if not isinstance(prompt, str) and not (chat and _is_conversation(prompt)):
        turns = ' or a list of {"role", "content"}' if chat else "; conversations need chat = true"
        raise ValueError(f"{where}: the prompt must be a text{turns}, got {prompt!r:.40}")
    if any("\ud800" <= letter <= "\udfff" for letter in f"{prompt}{completion}"):
        raise ValueError(f"{where}: half of a surrogate pair (an escape such as \\ud800) is no text")
    return Example(number, prompt, completion)


def _is_conversation(prompt: Any) -> bool:
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(isinstance(turn, dict) and turn.keys() == {"role", "content"} for turn in prompt)
        and all(isinstance(text, str) for turn in prompt for text in turn.values())
    )


@dataclass(frozen=True, eq=False)
class TextProblems:
    """Examples for one denoiser: canvases to train on, others held out. ``vary`` is None: text has no symmetries."""

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
        """What is trained on."""
        return self._task(self._all[0], self.data.file)

    def _task(self, examples: Sequence[Example], file: str) -> TextTask:
        return TextTask(self.data, self.denoiser, self.tokenizer, tuple(examples), file)

    def __call__(self, step: int, count: int) -> Canvas:
        return self.task.canvas(shuffled_rows(self.data.seed, step, count, len(self.task)).tolist())

    def held_out(self, count: int, which: str | None = None) -> TextTask:
        """The first ``count`` of the file ``which``; without it, of the share that is held out of the training file."""
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
    """Examples as a Task. The length of the answer is given where ``candidates`` restrict what is revealed to it."""

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
        """The ids of each example: the prompt, the answer with its end token, and what closes the text."""
        return [self._encoded(example) for example in self.examples]

    @cached_property
    def end(self) -> int | None:
        """The token that ends an answer: with ``chat`` the one that the template puts there."""
        ends = self.denoiser.end_ids
        if not ends:
            return None
        if self.data.chat and getattr(self.tokenizer, "chat_template", None):
            turns: list[Mapping[str, str]] = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
            text = self.tokenizer.apply_chat_template(turns, tokenize=False)
            closing = self.tokenizer.encode(text.rpartition("!")[2], add_special_tokens=False)
            return next((token for token in closing if token in ends), ends[0])
        return ends[0]

    def _encoded(self, example: Example) -> tuple[list[int], list[int], list[int]]:
        where = f"{self.source}, line {example.line}"
        prompt = as_turns(example.prompt) if self.data.chat else example.prompt
        before, after = encode_prompt(self.tokenizer, prompt)
        answer = self.tokenizer.encode(example.completion, add_special_tokens=False)
        answer = answer if self.end is None else [*answer, self.end]
        for what, ids, most, option in (
            ("prompt", before, self.data.prompt_length, "prompt_length"),
            ("completion", answer, self.data.length, "length"),
        ):
            if len(ids) > most:
                raise ValueError(
                    f"{where}: the {what} has {len(ids)} tokens, more than {option} = {most}: raise it, or cut"
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
        chosen = [self.rows[row] for row in rows]
        start = max(len(before) for before, _, _ in chosen)
        padded = self.end is not None and self.data.pads == "hidden"
        width = start + max((self.data.length if padded else len(answer)) + len(after) for _, answer, after in chosen)
        filler = self.denoiser.pad_id if self.denoiser.pad_id is not None else (self.denoiser.end_ids or (0,))[0]
        target = torch.full((len(chosen), width), filler)
        attention, region, candidates = (torch.zeros_like(target, dtype=torch.bool) for _ in range(3))
        for number, (before, answer, after) in enumerate(chosen):
            first = start - len(before)
            room = self.data.length if padded else len(answer)
            target[number, first : start + len(answer)] = torch.tensor([*before, *answer])
            target[number, start + room : start + room + len(after)] = torch.tensor(after, dtype=torch.long)
            attention[number, first : start + room + len(after)] = True
            region[number, start : start + room] = True
            candidates[number, start : start + len(answer)] = True
        _require_known(target, self.denoiser)
        tokens = target.masked_fill(region, self.denoiser.mask_id)
        return Canvas(tokens, target, region, attention, candidates)

    def verify(self, rows: Sequence[int], tokens: Int[Tensor, "B L"]) -> Verdict:
        """Exact: every token of the answer, its end too. Share: the part of them that is right."""
        canvas = self.canvas(rows)
        assert canvas.candidates is not None
        return Verdict.of(tokens, canvas.truth, canvas.candidates)

    def stratum(self, row: int) -> str:
        """By the length of the answer, in powers of two."""
        count = len(self.rows[row][1])
        least = 1 << (count.bit_length() - 1)
        return f"{least:4d} to {2 * least - 1} tokens"

    def draw(self, row: int, tokens: Int[Tensor, "L"]) -> str:
        ids = [token for token in tokens.tolist() if token not in (self.denoiser.mask_id, self.denoiser.pad_id)]
        return self.tokenizer.decode(ids, skip_special_tokens=True)


def _require_known(tokens: Int[Tensor, "B L"], denoiser: Denoiser) -> None:
    config = getattr(denoiser, "config", None)
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary is not None and int(tokens.max()) >= vocabulary:
        raise ValueError(
            f"the tokenizer gives the id {int(tokens.max())}, but the denoiser's embedding has {vocabulary} rows: "
            "name the tokenizer that the denoiser was trained with"
        )
    longest = getattr(config, "max_length", None)
    if longest is not None and tokens.shape[1] > longest:
        raise ValueError(
            f"a canvas of {tokens.shape[1]} positions (prompt, answer) exceeds the denoiser's {longest}: "
            "lower length, or shorten the prompts"
        )
