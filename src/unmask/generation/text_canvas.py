"""Text to canvases and back: tokenizers, chat templates, prompts of different lengths, texts with gaps.

Shapes: ``B`` rows, ``L`` positions. A canvas of prompts, two rows, four hidden positions each; ``·`` is padding::

    · · the cat │ ▁ ▁ ▁ ▁
    on the mat  │ ▁ ▁ ▁ ▁
                └ start: the region of every row begins in this column

A text with gaps begins its region at its first gap, and what follows its last gap stays behind it; shorter rows are padded on both
sides. So the prompt of every row is what stands before ``start``, which is all that guidance needs. Padding is outside
``attention``: a denoiser neither sees it nor counts it.

transformers is imported only when a tokenizer is loaded, always with ``trust_remote_code=False``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.assets import MODELS
from unmask.decoding.protocols import Canvas, Denoiser
from unmask.denoisers.checkpoint import read_json
from unmask.denoisers.hub import download, parse_hub_id
from unmask.denoisers.loading import list_denoisers
from unmask.denoisers.lora import base_of, has_adapter
from unmask.denoisers.masked_lm import silence_transformers
from unmask.generation.alignment import align_rows
from unmask.generation.characters import FILE as CHARACTERS
from unmask.generation.characters import CharacterTokenizer

Prompt = str | Sequence[Mapping[str, str]]
"""A text, or the turns of a conversation: ``[{"role": "user", "content": "…"}, …]``."""
Template = str | Sequence[str | int]
"""A text with ``<mask>`` for a hidden token and ``<mask:8>`` for eight, or its parts with the lengths of the gaps between them."""

# Tokens of most vocabularies begin with their space, so the gap's first token has the one before it.
GAP = re.compile(r" ?<mask(?::(\d+))?>")
LONGEST_GAP = 10**6
VOCABULARIES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
TOKENIZER_FILES = [*VOCABULARIES, CHARACTERS, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
                   "config.json", "chat_template.jinja"]  # fmt: skip
TWINS = {"DreamTokenizer": "Qwen2Tokenizer"}
"""Tokenizer classes that exist only as remote code → the class of transformers that reads the same files to the same end."""


@runtime_checkable
class Tokenizer(Protocol):
    """The methods of a tokenizer that are used; those of transformers have them."""

    def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: list[int], /, **options: Any) -> Any: ...
    def apply_chat_template(self, conversation: Any, /, **options: Any) -> Any: ...


@dataclass(frozen=True)
class TextCanvas:
    """Canvases of text. ``region`` is where the answer stands; in every row it begins, hidden, in the column ``start``."""

    tokens: Int[Tensor, "B L"]
    attention: Bool[Tensor, "B L"]
    region: Bool[Tensor, "B L"]
    start: int

    @property
    def hidden(self) -> Bool[Tensor, "B L"]:
        return self.region & (self.tokens == self.tokens[0, self.start])

    def canvas(self, seeds: Sequence[int] | None = None, target: Int[Tensor, "B L"] | None = None) -> Canvas:
        """As the loop takes it. ``seeds`` has a number per row."""
        numbers = None if seeds is None else torch.tensor(seeds, dtype=torch.long, device=self.tokens.device)
        return Canvas(self.tokens, target, self.region, self.attention, seeds=numbers)


def load_tokenizer(name: str | Path) -> Tokenizer:
    """The tokenizer of a shipped denoiser, of a denoiser's folder, of a safetensors file's folder, or of a hub id."""
    folder = _folder(name)
    if (folder / CHARACTERS).exists():
        return CharacterTokenizer.load(folder)
    try:
        import transformers
    except ImportError as error:
        raise ValueError("tokenizers need transformers: pip install unmask[lm]") from error
    if not any((folder / file).exists() for file in VOCABULARIES):
        raise ValueError(
            f"{name} has no tokenizer: expected one of {', '.join(VOCABULARIES)} in its folder; name another folder or hub id"
        )
    options = folder / "tokenizer_config.json"
    stored = read_json(options) if options.exists() else {}
    twin = TWINS.get(str(stored.get("tokenizer_class", "")))
    kinds = (
        [twin] if twin else ["AutoTokenizer", "PreTrainedTokenizerFast"]
    )  # the second does all that is in tokenizer.json
    reason = ""
    for kind in kinds:
        safe = {"trust_remote_code": False} if kind == "AutoTokenizer" else {}
        try:
            with silence_transformers():  # it warns of configurations that it does not know, such as LLaDA's
                return getattr(transformers, kind).from_pretrained(folder, local_files_only=True, **safe)
        except Exception as error:  # tokenizers raises bare ones for a damaged file
            reason = reason or (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise ValueError(f"{name} has no tokenizer that transformers can read: {reason}")


def copy_tokenizer(name: str | Path, folder: Path) -> None:
    """Copy the files of a denoiser's tokenizer beside its tuned weights, if it has any."""
    place = Path(name)
    source = next((path for path in (place / "denoiser", place) if path.is_dir()), None)
    if source is None:
        return
    for file in TOKENIZER_FILES:
        if file != "config.json" and (source / file).exists():
            shutil.copyfile(source / file, folder / file)


def _folder(name: str | Path) -> Path:
    path = Path(name)
    if path.suffix == ".safetensors" and path.is_file():
        return path.parent
    if str(name) in list_denoisers():
        return MODELS / name
    for folder in (path / "denoiser", path):
        if has_adapter(folder):
            return _folder(base_of(folder))  # an adapter has the tokenizer of its base
        if folder.is_dir():
            return folder
    parsed = parse_hub_id(str(name))
    if parsed is None:
        raise ValueError(f"no tokenizer {str(name)!r}: expected a folder or a hub id such as owner/name")
    repository, revision, _ = parsed
    try:
        return download(f"{repository}@{revision}" if revision else repository, TOKENIZER_FILES)
    except ValueError as error:
        raise ValueError(f"{error}; expected a tokenizer") from error


def prompt_canvas(denoiser: Denoiser, tokenizer: Tokenizer, prompts: Sequence[Prompt], length: int) -> TextCanvas:
    """Each prompt with ``length`` hidden positions after it.

    Special tokens that a tokenizer puts at the end of a text (BERT's ``[SEP]``) stand behind the hidden positions.
    """
    if isinstance(prompts, str) or not len(prompts):
        raise ValueError(f"expected a list of at least one prompt, got {prompts!r}")
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    rows = []
    for number, prompt in enumerate(prompts):
        before, after = encode_prompt(tokenizer, prompt)
        if denoiser.mask_id in before:
            raise ValueError(
                f"prompt {number + 1} holds the denoiser's mask token: to fill gaps in a text use infill, with <mask> for each"
            )
        rows.append((before, [denoiser.mask_id] * length, after))
    return _align(denoiser, rows)


def id_canvas(denoiser: Denoiser, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> TextCanvas:
    """Prompts that are token ids already, each with its own number of hidden positions after it, at least 1."""
    rows = zip(prompts, lengths, strict=True)
    return _align(denoiser, [(list(ids), [denoiser.mask_id] * length, []) for ids, length in rows])


def gap_canvas(denoiser: Denoiser, tokenizer: Tokenizer, templates: Sequence[Template]) -> TextCanvas:
    """Texts with gaps: the region goes from the first hidden position to the last, with the given text between them."""
    if isinstance(templates, str) or not len(templates):
        raise ValueError(f"expected a list of at least one text with gaps, got {templates!r}")
    rows = []
    for number, template in enumerate(templates):
        ids = _gaps(denoiser, tokenizer, template)
        places = [place for place, token in enumerate(ids) if token == denoiser.mask_id]
        if not places:
            raise ValueError(f"text {number + 1} has no gap: write <mask> for a token, or <mask:8> for eight")
        first, last = places[0], places[-1] + 1
        rows.append((ids[:first], ids[first:last], ids[last:]))
    return _align(denoiser, rows)


def completions(denoiser: Denoiser, tokenizer: Tokenizer, canvas: TextCanvas, tokens: Int[Tensor, "B L"]) -> list[str]:
    """The text of each region, up to its first end token."""
    texts = []
    for row, region in zip(tokens.tolist(), canvas.region.tolist(), strict=True):
        ids = [token for token, inside in zip(row, region, strict=True) if inside]
        end = next((place for place, token in enumerate(ids) if token in denoiser.end_ids), len(ids))
        texts.append(_decode(tokenizer, [token for token in ids[:end] if token != denoiser.mask_id]))
    return texts


def whole_texts(denoiser: Denoiser, tokenizer: Tokenizer, canvas: TextCanvas, tokens: Int[Tensor, "B L"]) -> list[str]:
    """The text of each row, what was given and what was revealed."""
    rows = zip(tokens.tolist(), canvas.attention.tolist(), strict=True)
    return [
        _decode(tokenizer, [t for t, real in zip(row, seen, strict=True) if real and t != denoiser.mask_id])
        for row, seen in rows
    ]


def is_conversation(prompt: Any) -> bool:
    """Whether this is a list of turns, each with the texts "role" and "content"."""
    turns = prompt if isinstance(prompt, list) else []
    texts = [turn.get(key) for turn in turns if isinstance(turn, dict) for key in ("role", "content")]
    return bool(turns) and len(texts) == 2 * len(turns) and all(isinstance(text, str) for text in texts)


def as_turns(prompt: Prompt) -> list[dict[str, str]]:
    """A conversation: a text is the only turn of its user."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(turn) for turn in prompt]


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, without special tokens. Half of a surrogate pair, from JSON or from a shell, is no text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"expected Unicode text, got half of a surrogate pair at character {error.start + 1}: save it as UTF-8"
        ) from None
    return tokenizer.encode(text, add_special_tokens=False)


def apply_template(tokenizer: Tokenizer, turns: Any, **options: Any) -> str:
    """A conversation as a text. A chat template is a program of the checkpoint's, and can fail in any way."""
    try:
        return tokenizer.apply_chat_template(turns, tokenize=False, **options)
    except MemoryError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ValueError(
            f"the tokenizer's chat template failed ({type(error).__name__}: {reason}): leave the chat template off, "
            "or name another tokenizer"
        ) from error


def encode_prompt(tokenizer: Tokenizer, prompt: Prompt) -> tuple[list[int], list[int]]:
    """The ids before the hidden positions and those after them: of a text as it is, of a conversation in the chat template."""
    if isinstance(prompt, str):
        return _with_specials(tokenizer, prompt, encode_text(tokenizer, prompt))
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("this tokenizer has no chat template: give a text, or name an instruction-tuned model")
    text = apply_template(tokenizer, as_turns(prompt), add_generation_prompt=True)
    return encode_text(tokenizer, text), []  # the template has its own special tokens


def _gaps(denoiser: Denoiser, tokenizer: Tokenizer, template: Template) -> list[int]:
    if not isinstance(template, str):
        if bad := [part for part in template if isinstance(part, int) and part < 1]:
            raise ValueError(f"a gap must hide at least 1 token, got {bad[0]}")
        template = "".join(part if isinstance(part, str) else f"<mask:{part}>" for part in template)
    parts = GAP.split(template)  # text, length, text, length, …, text
    ids: list[int] = []
    for number, part in enumerate(parts):
        if number % 2 == 0:
            ids += encode_text(tokenizer, part) if part else []
        elif part is not None and not 1 <= int(part) <= LONGEST_GAP:
            raise ValueError(f"a gap must hide at least 1 token, at most {LONGEST_GAP:,}, got <mask:{part[:40]}>")
        else:
            ids += [denoiser.mask_id] * (1 if part is None else int(part))
    before, after = _with_specials(tokenizer, GAP.sub("", template), ids)
    return before + after


def _with_specials(tokenizer: Tokenizer, text: str, ids: list[int]) -> tuple[list[int], list[int]]:
    """``ids`` with the special tokens that the tokenizer puts before this text, and those it puts behind it."""
    whole = tokenizer.encode(text, add_special_tokens=True)
    extra = len(whole) - len(tokenizer.encode(text, add_special_tokens=False))
    openers = {getattr(tokenizer, name, None) for name in ("bos_token_id", "cls_token_id")}
    before = next((n for n, token in enumerate(whole[:extra]) if token not in openers), extra)
    return whole[:before] + ids, whole[len(whole) - (extra - before) :]


def _align(denoiser: Denoiser, rows: Sequence[tuple[list[int], list[int], list[int]]]) -> TextCanvas:
    """Rows of (before, region, after), padded on both sides so that all regions begin in one column."""
    tokens, attention, region, start = align_rows(denoiser, rows)
    device = getattr(denoiser, "device", torch.device("cpu"))
    return TextCanvas(tokens.to(device), attention.to(device), region.to(device), start)


def _decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)
