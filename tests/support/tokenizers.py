from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

TURNS = "{% for turn in messages %}w1 {{ turn['content'] }} w2 {% endfor %}{% if add_generation_prompt %}w3{% endif %}"


def words(size: int = 32, chat: bool = False, bos: int | None = None, **special: int) -> PreTrainedTokenizerFast:
    """``size`` words w0, w1, …, some of which have other names: ``words(eos=27)`` knows ``<eos>``. ``bos`` opens every text."""
    ids = special if bos is None else {**special, "bos": bos}
    names = {i: f"<{name}>" for name, i in ids.items()}
    tokenizer = Fast(models.WordLevel({names.get(i, f"w{i}"): i for i in range(size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{f"{name}_token": f"<{name}>" for name in ids})
    made.chat_template = TURNS if chat else None
    return made


def wordpieces() -> PreTrainedTokenizerFast:
    """BERT's kind: ``[CLS]`` before a text, ``[SEP]`` behind it, ``##`` inside a word."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "s", "##at", "##s", "on", "mat", "."]
    tokenizer = Fast(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    given = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given)


def dream_files(folder: Path) -> Path:
    """A byte-level vocabulary in Dream's files, whose class exists only as code that must not be run."""
    folder.mkdir(parents=True, exist_ok=True)
    merges = ["t h", "th e", "Ġ c", "Ġc a", "Ġca t"]
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(pair.replace(" ", "") for pair in merges)]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(alphabet)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    (folder / "tokenization_dream.py").write_text("raise AssertionError('remote code was run')\n")
    added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
    config = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": {
            str(len(alphabet) + i): {"content": name, "special": True} for i, name in enumerate(added)
        },
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "chat_template": "<|im_start|>{{ messages[0]['content'] }}<|im_end|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@dataclass
class Ids:
    """What canvases need of a denoiser."""

    mask_id: int = 29
    pad_id: int | None = 27
    end_ids: tuple[int, ...] = (27, 28)
    forbidden_ids: tuple[int, ...] = (29,)
    forwarded: int = 0
    config: Any = None

    def hidden(self, tokens: Any, attention: Any = None) -> Any:
        raise AssertionError("nothing is decoded here")

    logits: Any = hidden
