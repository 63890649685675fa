"""lm-eval's requests in our terms: model arguments, generation options, texts and their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from unmask.decoding.options import Decoding
from unmask.evaluation.lm_eval.settings import AnswerOptions
from unmask.generation.text_canvas import Tokenizer
from unmask.runs.config import read
from unmask.runs.names import did_you_mean

GENERATION_OPTIONS = ("until", "max_gen_toks", "max_new_tokens", "do_sample", "temperature", "top_p")
"""Generation options of lm-eval that have a meaning here."""
Window = tuple[list[int], list[int]]
"""The ids of a prompt and of its answer."""


class ChatTokenizer:
    """A tokenizer that adds no second opening token to a text that a chat template has opened."""

    def __init__(self, inner: Tokenizer) -> None:
        self.inner = inner
        self.opening = getattr(inner, "bos_token", None)

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        opened = self.opening is not None and text.startswith(self.opening)
        return self.inner.encode(text, add_special_tokens=add_special_tokens and not opened)

    def decode(self, ids: list[int], /, **options: Any) -> Any:
        return self.inner.decode(ids, **options)

    def apply_chat_template(self, conversation: Any, /, **options: Any) -> Any:
        return self.inner.apply_chat_template(conversation, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode_pair(self, context: str, continuation: str) -> Window:
        """The ids of both, split where the context's own tokens end; spaces at its end belong to the continuation."""
        stripped = context.rstrip()
        context, continuation = stripped, context[len(stripped) :] + continuation
        if not context:
            return self.encode(""), self.encode(continuation, add_special_tokens=False)
        before = self.encode(context)
        opening = len(before) - len(self.encode(context, add_special_tokens=False))
        whole = [*before[:opening], *self.encode(context + continuation, add_special_tokens=False)]
        return whole[: len(before)], whole[len(before) :]

    def encode_windows(self, text: str, longest: int) -> list[Window]:
        """A text that exceeds the longest canvas in windows of half of it, each with the half before it as its prompt."""
        opening = self.encode("")
        ids = self.encode(text, add_special_tokens=False)
        half = max(1, (longest - len(opening)) // 2)
        size = max(1, len(ids)) if len(ids) + len(opening) <= longest else half
        return [
            ([*opening, *ids[max(0, start - half) : start]], ids[start : start + size])
            for start in range(0, len(ids), size)
        ]


def parse_model_args(given: dict[str, Any]) -> AnswerOptions:
    """lm-eval's ``model_args``, a flat list: the fields of :class:`AnswerOptions` and those of its ``decoding``."""
    inner = [field.name for field in fields(Decoding)]
    known = [*(field.name for field in fields(AnswerOptions) if field.name != "decoding"), *inner]
    for name in given:
        if name not in known:
            raise ValueError(
                f"no model argument {name!r}: expected one of {', '.join(known)}{did_you_mean(name, known)}"
            )
    table = {name: value for name, value in given.items() if name not in inner}
    return read(AnswerOptions, {**table, "decoding": {name: given[name] for name in inner if name in given}})


def parse_batch_size(size: int | str | None) -> int:
    try:
        number = 8 if size is None else int(size)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"batch_size must be a number of at least 1, got {size!r}; there is no automatic batch size")
    return number


def parse_generation(given: dict[str, Any], options: AnswerOptions) -> tuple[AnswerOptions, list[str]]:
    """The options of one request, and the strings that end its response."""
    for name in given:
        if name not in GENERATION_OPTIONS:
            near = did_you_mean(name, GENERATION_OPTIONS)
            raise ValueError(f"no generation option {name!r}: expected one of {', '.join(GENERATION_OPTIONS)}{near}")
    until = given.get("until") or []
    until = [until] if isinstance(until, str) else [stop for stop in until if stop]
    length = int(given.get("max_gen_toks") or given.get("max_new_tokens") or options.length)
    decoding = options.decoding_of(length)
    temperature = float(given.get("temperature") or 0.0)
    if given.get("do_sample") and temperature > 0:
        top_p = float(given.get("top_p") or decoding.top_p)
        decoding = replace(decoding, token_temperature=temperature, top_p=top_p)
    return replace(options, length=length, decoding=decoding), until


def cut(text: str, until: Sequence[str]) -> str:
    """The text before the first stop string."""
    return text[: min((text.find(stop) for stop in until if stop in text), default=len(text))]


def fit_prompt(prompt: list[int], answer: list[int], longest: int) -> list[int]:
    """The end of a prompt that leaves room for the answer."""
    if len(answer) > longest:
        raise ValueError(f"a continuation of {len(answer)} tokens exceeds the longest canvas, {longest}")
    return prompt[max(0, len(prompt) + len(answer) - longest) :]
