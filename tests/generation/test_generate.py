"""Text in, text out: a row does not depend on its batch, whatever the model; the command as its users meet it."""

from __future__ import annotations

import functools
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rich.console import Console

from support.commands import call
from support.families import write
from support.tokenizers import dream_files, wordpieces, words
from unmask.cli import generate as cli_generate
from unmask.decoding.loop import Step
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.denoisers.masked_lm import MaskedLM
from unmask.generation.generate import Generation, Watch, generate, infill
from unmask.generation.text_canvas import gap_canvas, load_tokenizer, prompt_canvas
from unmask.report.terminal.text import LiveText, Pieces, printable

PROMPTS = ["w3 w4 w5 w6 w7", "w8", "w10 w11 w12 w13 w14 w15 w16"]
GAPS = ["w3 <mask:3> w4 w9 <mask>", "<mask:2> w6", "w7 w8 w9 w10 <mask:4>"]
TOKENIZERS: dict[str, dict[str, Any]] = {
    "llada": {"size": 31, "eos": 27},
    "dream": {"eos": 26},
    "smdm": {"size": 31, "eos": 2},
    "illada": {"pad": 1, "eos": 2, "mask": 5},
}
WAYS: dict[str, dict[str, Any]] = {
    "any order": {"length": 8},
    "blocks": {"length": 8, "scheduler": "margin", "decoding": Decoding(4)},
    "parallel": {"length": 9, "scheduler": "entropy", "decoding": Decoding(5, 4)},
    "threshold": {"length": 8, "decoding": Decoding(pace="threshold:p=0.2")},
    "drawn": {"length": 8, "decoding": Decoding(token_temperature=0.9, order_temperature=0.5, top_p=0.9)},
    "suppressed": {"length": 8, "decoding": Decoding(4, ends="suppress", token_temperature=1.2)},
    "guided": {"length": 8, "decoding": Decoding(guidance=1.5, ends="damp", min_length=3)},
}

SOME_WAYS = ("parallel", "drawn", "guided")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("families")
    return {name: (load_denoiser(write(folder / name, name)), words(**given)) for name, given in TOKENIZERS.items()}


@pytest.fixture(scope="module")
def bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=13, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, max_position_embeddings=40,
        initializer_range=0.6,
    )  # fmt: skip
    tokenizer = wordpieces()
    return MaskedLM(transformers.BertForMaskedLM(config).eval(), tokenizer), tokenizer


def assert_rows_alone(together: Generation, alone: Callable[[int], Generation]) -> None:
    for row, text in enumerate(together.texts):
        one = alone(row)
        assert one.texts == [text]
        assert one.order(0) == together.order(row)
        reveals = int(one.trajectory.reveals[0])
        assert together.trajectory.step[row, :reveals].tolist() == one.trajectory.step[0, :reveals].tolist()
        torch.testing.assert_close(
            together.trajectory.logp[row, :reveals], one.trajectory.logp[0, :reveals], atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize(
    ("name", "way"), [*(("llada", way) for way in WAYS), *((n, w) for n in ("dream", "smdm") for w in SOME_WAYS)]
)
def test_a_batch_equals_its_rows_alone(models: dict[str, Any], name: str, way: str) -> None:
    denoiser, tokenizer = models[name]
    seeds = [7, 2**60 + 1, 0]
    together = generate(denoiser, tokenizer, PROMPTS, seeds=seeds, **WAYS[way])
    assert len(set(together.texts)) > 1
    rows = lambda row: generate(denoiser, tokenizer, PROMPTS[row : row + 1], seeds=seeds[row : row + 1], **WAYS[way])  # noqa: E731
    assert_rows_alone(together, rows)


@pytest.mark.parametrize("way", [{}, {"guidance": 1.0, "steps": 3}, {"token_temperature": 1.0, "block": 3}], ids=str)
@pytest.mark.parametrize("name", ["llada", "dream", "smdm", "illada"])
def test_gaps_in_a_batch(models: dict[str, Any], name: str, way: dict[str, Any]) -> None:
    denoiser, tokenizer = models[name]
    together = infill(denoiser, tokenizer, GAPS, decoding=Decoding(**way), seeds=[5, 6, 7])
    assert_rows_alone(
        together,
        lambda row: infill(denoiser, tokenizer, GAPS[row : row + 1], decoding=Decoding(**way), seeds=[5 + row]),
    )
    for template, text in zip(GAPS, together.texts, strict=True):
        # No end token, no padding: where a word was given it stands, and every gap is full of words.
        wanted = re.sub(r"<mask(?::(\d+))?>", lambda gap: r"w\d+ " * int(gap[1] or 1), template)
        assert re.fullmatch(r" +".join(wanted.split()), text), (template, text)


def test_a_masked_language_model(bert: Any) -> None:
    denoiser, tokenizer = bert
    texts = ["the <mask> sat on the mat .", "<mask:2>"]
    together = infill(denoiser, tokenizer, texts)
    assert_rows_alone(together, lambda row: infill(denoiser, tokenizer, texts[row : row + 1]))
    assert together.texts[0].startswith("the ")
    done = generate(denoiser, tokenizer, ["the cat", ""], length=3)
    assert_rows_alone(done, lambda row: generate(denoiser, tokenizer, [["the cat", ""][row]], length=3))
    assert done.trajectory.tokens[:, -1].tolist() == [3, 3]  # [SEP] is still behind the answer


def test_on_step_reports_every_reveal(models: dict[str, Any]) -> None:
    """What ``on_step`` saw, put together, is the answer."""
    denoiser, tokenizer = models["llada"]
    canvas = prompt_canvas(denoiser, tokenizer, PROMPTS, 8)
    tokens, order = canvas.tokens.clone(), [[] for _ in PROMPTS]

    def on_step(step: Step) -> None:
        for row, revealed, now in zip(step.view.rows.tolist(), step.revealed, step.tokens, strict=True):
            tokens[row, revealed] = now[revealed]
            order[row].append((revealed.nonzero()[:, 0] - canvas.start).tolist())

    decoding = Decoding(4, 6, stop_at_end=False)
    done = generate(denoiser, tokenizer, PROMPTS, decoding=decoding, length=8, watch=Watch(on_step))
    assert torch.equal(tokens, done.trajectory.tokens)
    for row, steps in enumerate(order):
        assert [sorted(step) for step in steps] == [
            sorted(p - canvas.start for p in done.trajectory.order[row][done.trajectory.step[row] == k].tolist())
            for k in range(len(steps))
        ]
    assert done.trajectory.states is None
    assert generate(denoiser, tokenizer, PROMPTS[:1], length=3, watch=Watch(record=True)).trajectory.states is not None


def test_an_ended_row_needs_no_more_denoiser_calls(models: dict[str, Any], tmp_path: Path) -> None:
    """A third of the words end a text, so that some rows do."""
    tokenizer = models["llada"][1]
    denoiser = load_denoiser(write(tmp_path, "llada", eos_token_id=[27, *range(10)]))
    whole, stopped = (
        generate(denoiser, tokenizer, PROMPTS, decoding=Decoding(1, stop_at_end=stop), length=12)
        for stop in (False, True)
    )
    lengths = [len(text.split()) for text in stopped.texts]
    assert stopped.texts == whole.texts
    assert min(lengths) < 12, "no row ended: nothing was tested"
    assert whole.trajectory.denoiser_calls == 12 * len(PROMPTS)
    assert stopped.trajectory.denoiser_calls == sum(min(12, n + 1) for n in lengths)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "confidance"}, "did you mean 'confidence'"),
        ({"decoding": Decoding(pace="all")}, "no pace 'all'"),
        ({"scheduler": "gt_logp"}, "oracle"),
        ({"length": 30}, "exceeds the denoiser's 24"),
        ({"length": 8, "decoding": Decoding(2, 3)}, "too small for 4 blocks"),
        ({"seeds": [1]}, "a seed for each of 3 rows"),
        ({"length": 4, "decoding": Decoding(min_length=5)}, "min_length must be in 0 .. 4"),
    ],
)
def test_what_is_refused(models: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        denoiser, tokenizer = models["llada"]
        generate(denoiser, tokenizer, PROMPTS, **{"length": 8, **options})


# What people see.


def rendered(thing: Any, **console: Any) -> str:
    out = io.StringIO()
    Console(file=out, width=100, **console).print(thing)
    return out.getvalue()


def test_the_live_text(models: dict[str, Any]) -> None:
    denoiser, tokenizer = models["llada"]
    canvas = prompt_canvas(denoiser, tokenizer, ["w3 w4", "w5"], 6)
    live = LiveText(canvas, Pieces(tokenizer), denoiser.end_ids)
    assert [live.row(row).plain.strip() for row in range(2)] == ["w3 w4▁▁▁▁▁▁", "w5▁▁▁▁▁▁"]
    lines, counts = [], []

    def on_step(step: Step) -> None:
        live.on_step(step)
        lines.append(live.line())
        counts.append(live.row(0).plain.count("▁"))

    decoding = Decoding(stop_at_end=False)
    done = generate(denoiser, tokenizer, ["w3 w4", "w5"], decoding=decoding, length=6, watch=Watch(on_step))
    assert counts[:3] == [5, 4, 3]
    assert lines[0].startswith("step 1, 2/12 revealed: w3 w4")
    assert "\n" not in "".join(lines)
    live.finish(done.trajectory.tokens)
    assert live.row(0).plain.split() == ["w3", "w4", *done.texts[0].split()]
    assert live.rank[0][canvas.region[0]].argsort().tolist() == done.order(0)
    coloured = rendered(live, force_terminal=True, color_system="truecolor")
    assert "\x1b[38;2;60;120;230m" in coloured  # the first is blue
    assert "\x1b[38;2;215;70;40m" in coloured  # the last is red
    assert "\x1b" not in rendered(live)


def test_colours_can_be_refused(models: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    denoiser, tokenizer = models["llada"]
    live = LiveText(prompt_canvas(denoiser, tokenizer, ["w3 w4"], 4), Pieces(tokenizer))
    done = generate(denoiser, tokenizer, ["w3 w4"], length=4, watch=Watch(live.on_step))
    live.finish(done.trajectory.tokens)
    assert "38;2" not in rendered(live, force_terminal=True)


def test_characters_of_several_tokens_and_controls(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(dream_files(tmp_path))
    denoiser = load_denoiser(
        write(tmp_path / "model", "dream", vocab_size=265, mask_token_id=264, eos_token_id=261, pad_token_id=261)
    )
    canvas = gap_canvas(denoiser, tokenizer, ["the<mask:4> cat"])
    live = LiveText(canvas, Pieces(tokenizer))
    tokens = canvas.tokens.clone()
    tokens[0, 1:5] = torch.tensor([*tokenizer.encode(" é"), *tokenizer.encode("!")])
    live.hidden = canvas.hidden.clone()
    live.tokens = tokens
    live.hidden[0, [1, 2, 4]] = False
    assert live.row(0).plain == "the �▁! cat"
    live.finish(tokens)
    assert live.row(0).plain == "the é! cat"
    tokens[0, 1:5] = torch.tensor([*tokenizer.encode("é")[:1], *tokenizer.encode("é"), *tokenizer.encode("!")])
    assert live.row(0).plain == "the�é! cat"
    assert printable("a\x1b[2Jb\r\n\tc\x07") == "a�[2Jb\n\tc�"


# The command.


@pytest.fixture
def generate_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Any]:
    """``generate_command("--prompt", "w3")`` with a tiny LLaDA beside it: the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    write(tmp_path / "llada", "llada")
    words(31, chat=True, eos=27).save_pretrained(tmp_path / "llada")

    return functools.partial(call, monkeypatch, capsys, "generate", "--denoiser", "llada")


def test_the_command(generate_command: Callable[..., Any], models: dict[str, Any]) -> None:
    denoiser, tokenizer = models["llada"]
    expected = generate(denoiser, tokenizer, ["w3 w4"], decoding=Decoding(4, 4), length=8)
    options = ("--prompt", "w3 w4", "--length", "8", "--block", "4", "--steps", "4")
    code, out, err = generate_command(*options)
    assert (code, err) == (0, "")
    heading, text = out.splitlines()
    assert heading.startswith(f"{int(expected.trajectory.reveals[0])} tokens in ")
    assert text.split() == expected.texts[0].split()
    code, out, _ = generate_command(*options, "--lines")
    assert out.splitlines()[0].startswith("step 1, 2/8 revealed: ")
    assert out.splitlines()[-1] == text
    code, out, _ = generate_command(*options, "--json")
    record = json.loads(out)
    assert record["text"] == expected.texts[0]
    assert record["order"] == expected.order(0)
    assert record["tokens"] == expected.trajectory.tokens[0, 2:].tolist()
    assert record["batch"]["denoiser_calls"] == expected.trajectory.denoiser_calls


def test_files_and_standard_input(generate_command: Callable[..., Any], models: dict[str, Any], tmp_path: Path) -> None:
    denoiser, tokenizer = models["llada"]
    lines = [{"prompt": prompt} for prompt in PROMPTS]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    drawn = ("--length", "6", "--json", "--token-temperature", "1", "--seed", "3")
    code, out, _ = generate_command("--file", "prompts.jsonl", *drawn)
    whole = [json.loads(line) for line in out.splitlines()]
    assert (code, [record["prompt"] for record in whole]) == (0, PROMPTS)
    _, out, _ = generate_command("--file", "-", *drawn, "--batch", "2", stdin=(tmp_path / "prompts.jsonl").read_text())
    assert [json.loads(line)["text"] for line in out.splitlines()] == [record["text"] for record in whole]
    _, out, _ = generate_command("--length", "6", "--json", stdin="w3 w4\n")
    assert json.loads(out)["prompt"] == "w3 w4"
    turns = json.dumps({"prompt": [{"role": "user", "content": "w5"}]})
    _, out, _ = generate_command("--length", "6", "--json", "--chat", stdin=turns)
    assert json.loads(out)["text"] == generate(denoiser, tokenizer, ["w1 w5 w2 w3"], length=6).texts[0]
    _, out, _ = generate_command("--infill", "--json", "--prompt", "w3 <mask:2> w4")
    assert json.loads(out)["text"] == infill(denoiser, tokenizer, ["w3 <mask:2> w4"]).texts[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", "w3", "--file", "x"], "a prompt or a file, not both"),
        (["--file", "nowhere.jsonl"], "No such file or directory: nowhere.jsonl"),
        (["--file", "bad.jsonl"], "bad.jsonl, line 2: not JSON"),
        (["--file", "odd.jsonl"], 'odd.jsonl, line 1: expected {"prompt": "…"}'),
        (["--file", "empty.jsonl"], "empty.jsonl has no prompts"),
        (["--prompt", "w3", "--denoiser", "nowhere"], "no tokenizer 'nowhere'"),
        (["--prompt", "w3", "--tokenizer", "bare"], "bare has no tokenizer"),
        (["--prompt", "w3", "--dtype", "int8"], "--dtype: expected one of float32, bfloat16, float16"),
        (["--prompt", "w3", "--batch", "0"], "batch: expected a number greater than or equal to 1"),
        (["--prompt", "w3", "--seed", "-1"], "seed: expected a number greater than or equal to 0"),
        (["--prompt", "w3", "--length", "0"], "length must be at least 1"),
        (["--prompt", "w3", "--length", "99"], "exceeds the denoiser's 24"),
        (["--prompt", "w3", "--ends", "never"], "ends"),
        (["--prompt", "w3", "--infill"], "has no gap"),
        (["--prompt", "w3", "--infill", "--chat"], "--infill or --chat"),
        (["--prompt", "w3", "--json", "--lines"], "--json or --lines"),
        (["--prompt", "w3", "--lenght", "8"], "did you mean '--length'"),
        (["--prompt", "w3", "--token-temperature", "-1"], "token_temperature: expected"),
    ],
)
def test_errors_are_one_line_with_exit_code_2(
    generate_command: Callable[..., Any], tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bad.jsonl").write_text('{"prompt": "w3"}\n{"prompt": \n')
    (tmp_path / "odd.jsonl").write_text('{"text": "w3"}\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    code, out, err = generate_command(*options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_nothing_to_continue(generate_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    code, _, err = generate_command()
    assert code == 2
    assert "nothing to continue" in err


def test_a_terminal_shows_it_live(
    generate_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, models: dict[str, Any]
) -> None:
    out = io.StringIO()
    screen = Console(file=out, force_terminal=True, color_system="truecolor", width=80, markup=False, highlight=False)
    monkeypatch.setattr(cli_generate, "console", screen)
    code, _, _ = generate_command("--prompt", "w3 w4", "--length", "6")
    assert code == 0
    assert "\x1b[38;2;60;120;230m" in out.getvalue()
    assert "\x1b[?25l" in out.getvalue()  # the cursor was hidden: it was live
