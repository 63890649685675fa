"""What lm-eval says, in our terms: model arguments, the options of a generation, texts and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from unmask.evaluation.lm_eval.settings import LmDecoding
from unmask.generation.text_canvas import Tokenizer
from unmask.runs.names import did_you_mean

KNOWN = ("until", "max_gen_toks", "max_new_tokens", "do_sample", "temperature", "top_p")
"""Generation options of lm-eval that mean something here."""


class Opened:
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


def decoding_of(decoding: LmDecoding | None, options: dict[str, Any]) -> LmDecoding:
    """``decoding`` with lm-eval's ``model_args`` over it, which come as text, numbers or booleans."""
    known = {field.name: field for field in fields(LmDecoding)}
    for name in options:
        if name not in known:
            raise ValueError(
                f"no model argument {name!r}: expected one of {', '.join(known)}{did_you_mean(name, known)}"
            )
    given = {}
    for name, value in options.items():
        kind = str(known[name].type)
        if value is not None and "float" in kind and isinstance(value, int):
            value = float(value)
        right = (
            (value is None and "None" in kind)
            or ("int" in kind and type(value) is int)
            or ("float" in kind and isinstance(value, float))
            or (kind == "bool" and isinstance(value, bool))
            or (kind in ("str", "Likelihood") and isinstance(value, str))
        )
        if not right:
            raise ValueError(f"{name}: expected {kind}, got {value!r}")
        given[name] = value
    return replace(decoding or LmDecoding(), **given)


def batch_of(size: int | str | None) -> int:
    try:
        number = 8 if size is None else int(size)
    except ValueError:
        number = 0
    if number < 1:
        raise ValueError(f"batch_size must be a number of at least 1, got {size!r}; there is no automatic batch size")
    return number


def generation_of(options: dict[str, Any], decoding: LmDecoding) -> tuple[LmDecoding, list[str]]:
    """The decoding of one request, and the strings that end it."""
    for name in options:
        if name not in KNOWN:
            raise ValueError(
                f"no generation option {name!r}: expected one of {', '.join(KNOWN)}{did_you_mean(name, KNOWN)}"
            )
    until = options.get("until") or []
    until = [until] if isinstance(until, str) else [stop for stop in until if stop]
    length = int(options.get("max_gen_toks") or options.get("max_new_tokens") or decoding.length)
    changed: dict[str, Any] = {"length": length, "steps": decoding.steps_for(length)}
    temperature = float(options.get("temperature") or 0.0)
    if options.get("do_sample") and temperature > 0:
        changed |= {"token_temperature": temperature, "top_p": float(options.get("top_p") or decoding.top_p)}
    return replace(decoding, **changed), until


def cut(text: str, until: Sequence[str]) -> str:
    """The text before whichever stop string comes first."""
    return text[: min((text.find(stop) for stop in until if stop in text), default=len(text))]


def fitting(prompt: list[int], answer: list[int], longest: int) -> list[int]:
    """The end of a prompt that leaves room for the answer."""
    if len(answer) > longest:
        raise ValueError(f"a continuation of {len(answer)} tokens exceeds the longest canvas, {longest}")
    return prompt[max(0, len(prompt) + len(answer) - longest) :]


def parts(items: Sequence[Any], size: int) -> list[Any]:
    return [items[start : start + size] for start in range(0, len(items), size)]
