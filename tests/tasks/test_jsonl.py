"""Text as data: where prompts, answers, ends and padding stand, who is held out, and lines that are no examples."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from support.tokenizers import Ids, words
from unmask.runs.presets import load_preset
from unmask.tasks.jsonl import Example, TextData, TextProblems, read_examples
from unmask.tasks.kinds import shuffle_rows
from unmask.training.policy.run import PolicyRun

M, PAD, END = 29, 27, 27


def lines(path: Path, *examples: Any) -> str:
    path.write_text("".join(json.dumps(example) + "\n" for example in examples))
    return str(path)


def pair(prompt: Any, completion: str) -> dict[str, Any]:
    return {"prompt": prompt, "completion": completion}


def problems(file: str, denoiser: Any = None, chat: bool = False, **options: Any) -> TextProblems:
    data = TextData(file=file, **{"length": 5, "held_out": 0.0, "chat": chat, **options})
    return TextProblems(data, denoiser or Ids(), words(chat=chat, eos=27, eot=28))


def test_canvas_layout(tmp_path: Path) -> None:
    made = problems(lines(tmp_path / "t.jsonl", pair("w1 w2", "w5 w6"), pair("w3", "w7 w8 w9")))
    canvas = made.task.canvas([0, 1])
    assert canvas.tokens.tolist() == [[1, 2, M, M, M, M, M], [PAD, 3, M, M, M, M, M]]
    assert canvas.truth.tolist() == [[1, 2, 5, 6, END, PAD, PAD], [PAD, 3, 7, 8, 9, END, PAD]]
    assert canvas.attention is not None and canvas.region is not None and canvas.candidates is not None
    assert canvas.attention.tolist() == [[True] * 7, [False] + [True] * 6]
    assert canvas.region.tolist() == [[False] * 2 + [True] * 5] * 2
    assert canvas.candidates.tolist() == [[False] * 2 + [True] * 3 + [False] * 2, [False] * 2 + [True] * 4 + [False]]
    assert torch.equal(canvas.answer(M), canvas.candidates)


def test_canvas_without_padding_and_without_end_tokens(tmp_path: Path) -> None:
    file = lines(tmp_path / "t.jsonl", pair("w1 w2", "w5"), pair("w3", "w7 w8 w9"))
    short = problems(file, pads="left_out").task.canvas([0, 1])
    assert short.tokens.tolist() == [[1, 2, M, M, PAD, PAD], [PAD, 3, M, M, M, M]]
    assert short.attention is not None and short.attention[0].tolist() == [True] * 4 + [False] * 2
    bare = problems(file, Ids(end_ids=(), pad_id=0)).task.canvas([0])
    assert bare.tokens.tolist() == [[1, 2, M]]
    assert bare.truth.tolist() == [[1, 2, 5]]


def test_end_token_of_the_chat_template(tmp_path: Path) -> None:
    made = problems(lines(tmp_path / "t.jsonl", pair([{"role": "user", "content": "w6"}], "w5")), chat=True)
    tokenizer: Any = made.tokenizer
    tokenizer.chat_template = "{% for turn in messages %}w1 {{ turn['content'] }} <eot> {% endfor %}"
    assert made.task.end == 28
    assert made.task.canvas([0]).truth.tolist()[0][:5] == [1, 6, 28, 5, 28]


def test_verdict_covers_the_answer_and_its_end_token(tmp_path: Path) -> None:
    task = problems(lines(tmp_path / "t.jsonl", pair("w1", "w5 w6"), pair("w1", "w5 w6"))).task
    tokens = task.canvas([0, 1]).truth.clone()
    tokens[1, 2] = 27  # an end before its time
    tokens[:, 5] = 3  # positions behind the end do not count
    verdict = task.verify([0, 1], tokens)
    assert verdict.exact.tolist() == [True, False]
    assert verdict.share.tolist() == pytest.approx([1.0, 2 / 3])


def test_each_example_is_seen_once_per_epoch() -> None:
    rows = torch.cat([shuffle_rows(7, step, 4, 10) for step in range(5)])
    assert sorted(rows[:10].tolist()) == sorted(rows[10:].tolist()) == list(range(10))
    assert rows[:10].tolist() != rows[10:].tolist()
    assert shuffle_rows(7, 3, 4, 10).tolist() == rows[12:16].tolist()
    assert shuffle_rows(8, 0, 10, 10).tolist() != shuffle_rows(7, 0, 10, 10).tolist()


def test_held_out_examples_depend_on_the_prompt_alone(tmp_path: Path) -> None:
    file = lines(tmp_path / "t.jsonl", *(pair(f"w1 p{n // 2}", f"w{n % 20}") for n in range(400)))
    made = problems(file, held_out=0.25)
    ours, theirs = ({e.prompt for e in task.examples} for task in (made.task, made.held_out(400)))
    assert not ours & theirs
    assert len(ours | theirs) == 200
    assert 0.15 < len(theirs) / 200 < 0.35
    # A hash of the prompt: other lines of the file do not change a split.
    data = replace(made.data, file="")
    assert all(data.is_held_out(Example("line 9", prompt, "other")) for prompt in theirs)
    other = lines(tmp_path / "v.jsonl", pair("w9", "w1"), pair("w9", "w2"))
    assert [e.completion for e in made.held_out(1, other).examples] == ["w1"]
    with pytest.raises(ValueError, match=r"no example of .* is held out: name a file"):
        problems(file, held_out=0.0).held_out(3)


HOSTILE = {
    b'{"prompt": "\xff", "completion": "a"}': "line 2: not UTF-8",
    b'{"prompt": "a", "completion"': "line 2: not JSON",
    b"[" * 100_000: "line 2: not JSON",
    b'["prompt", "completion"]': "line 2: expected an object with .* got list",
    b'{"prompt": "a", "completions": "b"}': 'line 2: no "completion": expected .* got prompt, completions',
    b'{"prompt": "a", "completion": ""}': "line 2: the completion must be a text that is not empty, got ''",
    b'{"prompt": "a", "completion": 5}': "line 2: the completion must be a text .* got 5",
    b'{"prompt": ["a"], "completion": "b"}': "line 2: the prompt must be a text; conversations need chat = true",
    b'{"prompt": "\\ud800", "completion": "b"}': "line 2: half of a surrogate pair",
}


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:30].decode(errors="replace"))
def test_malformed_lines_are_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"prompt": "w1", "completion": "w2"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=HOSTILE[line]):
        read_examples(tmp_path / "t.jsonl")


def test_examples_that_do_not_fit_the_denoiser_are_refused(tmp_path: Path) -> None:
    good = pair("w1", "w2")
    for bad, reason in (
        (pair("w1", "w1 w2 w3 w4 w5"), "line 2: the completion has 6 tokens, more than length = 5"),
        (pair("w1 w1 w1", "w2"), "line 2: the prompt has 3 tokens, more than prompt_length = 2"),
        (pair("w29", "w2"), "line 2: the prompt holds the denoiser's mask token"),
        (pair("w1", "w29"), "line 2: the completion holds the denoiser's mask token"),
        (pair("w1", " "), "line 2: the completion has no tokens"),
    ):
        ends: Any = () if bad["completion"] == " " else (27, 28)
        made = problems(lines(tmp_path / "t.jsonl", good, bad), Ids(end_ids=ends), prompt_length=2)
        with pytest.raises(ValueError, match=reason):
            made(0, 1)
    with pytest.raises(ValueError, match=r"t\.jsonl is empty"):
        read_examples(lines(tmp_path / "t.jsonl"))
    with pytest.raises(ValueError, match=r"cannot read .*absent"):
        read_examples(tmp_path / "absent.jsonl")


def test_presets_choose_the_data_by_its_kind(tmp_path: Path) -> None:
    def read(text: str) -> PolicyRun:
        (tmp_path / "p.toml").write_text(text)
        return load_preset(tmp_path / "p.toml", PolicyRun)

    assert isinstance(read('[data]\nkind = "text"\nlength = 7').data, TextData)
    assert read('[data]\nkind = "sudoku"\nsize = 4').data == read("[data]\nsize = 4").data
    with pytest.raises(ValueError, match=r"unknown key 'lenght' in \[data\]; did you mean 'length'"):
        read('[data]\nkind = "text"\nlenght = 7')
    with pytest.raises(ValueError, match=r"data.kind: expected one of 'sudoku', .*did you mean 'text'"):
        read('[data]\nkind = "texts"')
    with pytest.raises(ValueError, match=r"data.kind: expected one of"):
        read("[data]\nkind = [1]")
