"""Text to canvases and back: where prompts, gaps, special tokens and padding stand, and tokenizers from files alone."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from support import block_families
from support.families import LLADA
from support.tokenizers import Ids, dream_files, wordpieces, words
from unmask.generation.text_canvas import as_turns, completions, gap_canvas, load_tokenizer, prompt_canvas, whole_texts
from unmask.report.terminal.text import Pieces


def test_prompts_of_different_lengths() -> None:
    canvas = prompt_canvas(Ids(), words(eos=27), ["w4 w5 w6", "w7", ""], length=2)
    m, p = 29, 27
    assert canvas.tokens.tolist() == [[4, 5, 6, m, m], [p, p, 7, m, m], [p, p, p, m, m]]
    assert canvas.attention.long().tolist() == [[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]
    assert canvas.region.long().tolist() == [[0, 0, 0, 1, 1]] * 3
    assert canvas.start == 3
    assert torch.equal(canvas.hidden, canvas.region)


def test_special_tokens_stand_around_prompt_and_answer() -> None:
    assert prompt_canvas(Ids(), words(bos=1), ["w4", ""], length=1).tokens.tolist() == [[1, 4, 29], [27, 1, 29]]
    bert = Ids(mask_id=4, pad_id=0, end_ids=())
    canvas = prompt_canvas(bert, wordpieces(), ["the cat", "", "the cats on"], length=2)
    assert canvas.tokens.tolist() == [
        [0, 0, 2, 5, 6, 4, 4, 3],
        [0, 0, 0, 0, 2, 4, 4, 3],
        [2, 5, 6, 9, 10, 4, 4, 3],
    ]
    assert canvas.region[0].long().tolist() == [0, 0, 0, 0, 0, 1, 1, 0]
    assert canvas.attention[0].long().tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_chat_templates() -> None:
    tokenizer = words(chat=True, bos=4)
    canvas = prompt_canvas(Ids(), tokenizer, [as_turns("w5"), as_turns("w6") * 2], length=1)
    # The template has the special tokens that it wants: none is put before it.
    assert canvas.tokens.tolist() == [[27, 27, 27, 1, 5, 2, 3, 29], [1, 6, 2, 1, 6, 2, 3, 29]]
    with pytest.raises(ValueError, match="no chat template"):
        prompt_canvas(Ids(), words(), [as_turns("w5")], length=1)


def test_gaps_begin_in_one_column() -> None:
    tokenizer, m, p = words(eos=27), 29, 27
    canvas = gap_canvas(Ids(), tokenizer, ["w1 w2 <mask> w3 <mask:2> w4 w5", ["w6", 2], "<mask> w7"])
    assert canvas.tokens.tolist() == [
        [1, 2, m, 3, m, m, 4, 5],
        [p, 6, m, m, p, p, p, p],
        [p, p, m, 7, p, p, p, p],
    ]
    assert canvas.attention.long().tolist() == [[1] * 8, [0, 1, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]]
    assert canvas.region.long().tolist() == [
        [0, 0, 1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0, 0],
    ]
    assert canvas.hidden.long().tolist() == [
        [0, 0, 1, 0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0, 0],
    ]
    bert = gap_canvas(Ids(mask_id=4, pad_id=0, end_ids=()), wordpieces(), ["<mask> cat", "the <mask>."])
    assert bert.tokens.tolist() == [[0, 2, 4, 6, 3], [2, 5, 4, 12, 3]]


def test_a_gap_includes_the_space_before_it(tmp_path: Path) -> None:
    """In byte-level vocabularies a word has its space in front: left behind, it would be a token of its own."""
    tokenizer = load_tokenizer(dream_files(tmp_path))
    the, cat = tokenizer.encode("the cat")
    denoiser = Ids(mask_id=264, pad_id=261, end_ids=(261,))
    assert (
        gap_canvas(denoiser, tokenizer, ["the <mask> cat", ["the ", 1, " cat"]]).tokens.tolist()
        == [[the, 264, cat]] * 2
    )
    assert whole_texts(
        denoiser, tokenizer, gap_canvas(denoiser, tokenizer, ["the<mask>"]), torch.tensor([[the, cat]])
    ) == ["the cat"]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: prompt_canvas(Ids(), words(), [], 1), "at least one prompt"),
        (lambda: prompt_canvas(Ids(), words(), "w1", 1), "expected a list"),
        (lambda: prompt_canvas(Ids(), words(), ["w1"], 0), "length must be at least 1"),
        (lambda: prompt_canvas(Ids(), words(mask=29), ["w1", "w1 <mask>"], 1), "prompt 2 holds the denoiser's mask"),
        (lambda: gap_canvas(Ids(), words(), ["w1 <mask>", "w1"]), "text 2 has no gap"),
        (lambda: gap_canvas(Ids(), words(), ["w1 <mask:0>"]), "at least 1 token"),
        (lambda: gap_canvas(Ids(), words(), [["w1", 0]]), "at least 1 token"),
        (lambda: gap_canvas(Ids(), words(), []), "at least one text"),
    ],
)
def test_what_is_refused(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_tokenizer_of_another_model_is_refused() -> None:
    @dataclass
    class Config:
        vocab_size: int = 30

    prompt_canvas(Ids(config=Config()), words(), ["w28"], 1)
    with pytest.raises(ValueError, match="gives the id 30, but the denoiser's embedding has 30 rows"):
        prompt_canvas(Ids(config=Config()), words(), ["w30"], 1)


def test_a_completion_ends_at_its_first_end_token() -> None:
    tokenizer = words(eos=27, eot=28)
    canvas = prompt_canvas(Ids(), tokenizer, ["w1 w27", "w1", "w1"], length=4)
    tokens = canvas.tokens.clone()
    tokens[:, -4:] = torch.tensor([[4, 5, 28, 6], [4, 5, 6, 7], [27, 4, 5, 6]])
    assert completions(Ids(), tokenizer, canvas, tokens) == ["w4 w5", "w4 w5 w6 w7", ""]


def metaspace() -> PreTrainedTokenizerFast:
    """Sentencepiece's kind: ``▁`` is a space, lost by the first token of a decoded text."""
    tokenizer = Fast(models.WordLevel({p: i for i, p in enumerate(["▁a", "▁cat", "s", "▁on", "<e>"])}, unk_token="s"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<e>")


def test_pieces_are_the_text_that_tokens_add(tmp_path: Path) -> None:
    assert [Pieces(metaspace())(i) for i in (1, 2, 3)] == [" cat", "s", " on"]
    assert [Pieces(wordpieces())(i) for i in (6, 9, 12)] == [" cat", "s", "."]
    assert [Pieces(words())(i) for i in (4, 5)] == [" w4", " w5"]
    byte_level = load_tokenizer(dream_files(tmp_path))
    pieces = Pieces(byte_level)
    ids = byte_level.encode("the cat é")
    assert "".join(map(pieces, ids[:-2])) == "the cat "
    assert [pieces(i) for i in ids[-2:]] == ["�", "�"]
    assert pieces(*ids[-2:]) == "é"


def test_tokenizers_load_from_files_alone(tmp_path: Path) -> None:
    words(eos=27).save_pretrained(tmp_path / "run" / "denoiser")
    (tmp_path / "run" / "denoiser" / "weights.safetensors").write_bytes(b"")
    for name in (
        tmp_path / "run" / "denoiser",
        str(tmp_path / "run"),
        tmp_path / "run" / "denoiser" / "weights.safetensors",
    ):
        assert load_tokenizer(name).encode("w3 <eos>") == [3, 27]
    dream = load_tokenizer(dream_files(tmp_path / "dream"))
    assert type(dream).__name__ == "Qwen2Tokenizer"
    assert dream.encode("the cat<|mask|>")[-1] == 264
    assert (
        dream.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False) == "<|im_start|>the<|im_end|>"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer_class": "PreTrainedTokenizerFast"},  # LLaDA's
        {"tokenizer_class": None},
        {"tokenizer_class": "Odd", "auto_map": {"AutoTokenizer": ["odd.Odd", None]}},
    ],
)
def test_remote_code_is_not_run_for_a_tokenizer_that_is_in_a_file(
    tmp_path: Path, changes: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """``config.json`` is of a kind that transformers does not know, as LLaDA's is."""
    words(eos=27).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLADA))
    file = tmp_path / "tokenizer_config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    for name in ("odd.py", "configuration_llada.py"):
        (tmp_path / name).write_text("raise AssertionError('remote code was run')\n")
    assert load_tokenizer(tmp_path).encode("w3 <eos>") == [3, 27]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["sudoku-9x9", "./nowhere", "/nowhere/at/all"])
def test_names_without_a_tokenizer(name: str) -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        load_tokenizer(name)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer: expected one of tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="that transformers can read"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_beside_any_configuration_is_read_without_a_warning(tmp_path: Path) -> None:
    """SDAR's has a field that transformers will rename."""
    folder = block_families.write(tmp_path, "sdar")
    words(eos=26).save_pretrained(folder)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert load_tokenizer(folder).encode("w3") == [3]
    assert [str(one.message) for one in shown if one.category is FutureWarning] == []
