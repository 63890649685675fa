"""Text races: the page receives what ``generate()`` and ``infill()`` give offline; only what was started with can be chosen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from support.playground import ask, events, refused, serving
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.generation.generate import generate, infill
from unmask.generation.text_canvas import as_turns, load_tokenizer
from unmask.report.playground import options
from unmask.report.playground import text as texts
from unmask.report.playground.models import Models
from unmask.report.playground.race import decided_at
from unmask.report.playground.server import Playground
from unmask.report.terminal.text import Pieces
from unmask.schedulers.loading import load_scheduler
from unmask.tasks.arithmetic import Arithmetic

PROMPT, HOLES = "w3 w4 w5", "w3 <mask:3> w5 w6 <mask> w7"
ENTRIES = [
    {"scheduler": "confidence", "options": {}},
    {"scheduler": "confidence", "options": {"block": 4, "steps": 6}},
    {"scheduler": "random", "options": {"pace": "threshold:p=0.3", "token_temperature": 0.7}},
    {"scheduler": "left_to_right", "options": {"stop_at_end": False, "ends": "suppress", "guidance": 0.5}},
]


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Playground]:
    with serving(Models((str(folder), "arithmetic"), ("top_k_random:k=2",))) as running:
        yield running


def request(server: Playground, **change: Any) -> dict[str, Any]:
    name = server.models.denoisers[0]
    given = {"denoiser": name, "mode": "plain", "text": PROMPT, "length": 10, "seed": 3, "entries": ENTRIES}
    return given | change


@pytest.mark.parametrize("mode", ["plain", "chat", "holes"])
def test_a_race_equals_the_decodings_offline(server: Playground, folder: Path, mode: str) -> None:
    text = HOLES if mode == "holes" else PROMPT
    response, answer = ask(server, "POST", "/text", request(server, mode=mode, text=text))
    assert response.status == 200, answer
    received = events(answer)
    model, words = load_denoiser(folder), load_tokenizer(folder)
    pieces = Pieces(words)
    for lane, entry in enumerate(ENTRIES):
        decoding, calls = Decoding(**entry["options"]), model.forwarded
        if mode == "holes":
            done = infill(model, words, [text], entry["scheduler"], decoding, seeds=[3 * 2**32])
        else:
            given: Any = as_turns(text) if mode == "chat" else text
            done = generate(model, words, [given], entry["scheduler"], decoding, length=10, seeds=[3 * 2**32])
        path, canvas = done.trajectory, done.canvas
        shown = [
            None if h else pieces(t) for t, h in zip(canvas.tokens[0].tolist(), canvas.hidden[0].tolist(), strict=True)
        ]
        assert received[0][1]["tokens"] == shown
        steps = [data for event, data in received if event == "reveal" and data["lane"] == lane]
        mine = [(data["step"], reveal) for data in steps for reveal in data["reveals"]]
        taken = path.order[0] >= 0
        order = path.order[0][taken].tolist()
        assert sorted((step, reveal["place"]) for step, reveal in mine) == sorted(
            zip(path.step[0][taken].tolist(), order, strict=True)
        )
        by_place = {reveal["place"]: reveal for _, reveal in mine}
        assert [by_place[place]["text"] for place in order] == [pieces(t) for t in path.tokens[0, order].tolist()]
        assert [by_place[place]["p"] for place in order] == pytest.approx(path.logp[0][taken].exp().tolist(), rel=1e-4)
        assert all(reveal["others"] and pieces(model.mask_id) not in dict(reveal["others"]) for _, reveal in mine)
        verdict = next(data for event, data in received if event == "verdict" and data["lane"] == lane)
        assert verdict["text"] == done.texts[0] and verdict["calls"] == path.denoiser_calls == model.forwarded - calls
        assert verdict["logp"] == pytest.approx(path.total_logp.item(), rel=1e-4)
        assert verdict["steps"] == path.steps >= verdict["decided"] >= 0
    view = ask(server, "GET", received[-1][1]["view"])[1]
    traces = json.loads(view.partition('id="traces">')[2].partition("</script>")[0])["traces"]
    assert [one["scheduler"] for trace in traces for one in trace["trajectories"]] == received[0][1]["lanes"]


def test_invalid_requests_are_refused(server: Playground) -> None:
    one = ENTRIES[:1]
    for change, words in (
        ({"denoiser": "/etc"}, "expected a denoiser among"),
        ({"denoiser": "GSAI-ML/LLaDA-8B-Instruct"}, "expected a denoiser among"),
        ({"mode": "poem"}, "mode: expected 'plain', 'chat' or 'holes'"),
        ({"text": ""}, "text: expected text"),
        ({"length": 0}, "length: expected a number greater than or equal to 1, got 0"),
        ({"length": 10**6}, "length: expected a number less than or equal to 1024"),
        ({"seed": -1}, "seed: expected a number greater than or equal to 0"),
        ({"entries": []}, "entries: expected at least one item"),
        ({"entries": one * 5}, "at most 4"),
        ({"entries": one * 2}, "the same decoding is there twice"),
        (
            {"entries": [{"scheduler": "../policy", "options": {}}]},
            "expected schedulers among top_k_random:k=2, confid",
        ),
        ({"entries": [{"scheduler": "confidense", "options": {}}]}, "did you mean 'confidence'?"),
        (
            {"entries": [{"scheduler": "random", "options": {"blok": 4}}]},
            "decoding 1: no option 'blok'; did you mean 'block'?",
        ),
        ({"entries": [{"scheduler": "random", "options": {"block": "4"}}]}, "decoding 1: block: expected"),
        ({"entries": [{"scheduler": "random", "options": {"pace": "/tmp/x"}}]}, "decoding 1, pace: expected one of"),
        ({"entries": [{"scheduler": "random", "options": {"refresh": 2}}]}, "there is no cache to refresh"),
        ({"mode": "holes", "text": "<mask:2000>"}, "too long: expected holes of at most 1024 tokens"),
        ({"mode": "holes", "text": f"<mask:{'9' * 5000}>"}, "too long"),
        ({"path": "x"}, "path is not a known field"),
    ):
        refused(server, "/text", request(server, **change), 400, words)


def test_errors_that_need_the_denoiser_end_the_race(server: Playground, folder: Path) -> None:
    one, mask = ENTRIES[:1], load_tokenizer(folder).decode([load_denoiser(folder).mask_id])
    for change, words in (
        ({"text": "w3 " * 400, "length": 900}, "too long: "),
        ({"text": f"w3 {mask} w4"}, "holds the denoiser's mask token: to fill gaps in a text use infill"),
        ({"mode": "holes", "text": "w3 w4"}, "has no gap: write <mask> for a token"),
        ({"denoiser": "arithmetic", "text": "Hello"}, "no token for 'H'"),
    ):
        answer = events(ask(server, "POST", "/text", request(server, **({"entries": one} | change)))[1])
        assert [event for event, _ in answer] == ["failed"] and words in answer[0][1]["error"], answer


def test_one_denoiser_is_in_memory(server: Playground) -> None:
    first, second = server.models.denoisers
    server.models.held = None
    for name in (first, second, first):
        text = "b+2;c-3;" if name == "arithmetic" else PROMPT
        _, answer = ask(server, "POST", "/text", request(server, denoiser=name, text=text, entries=ENTRIES[:1]))
        assert f'"denoiser": {json.dumps(name)}' in answer.partition("event: start")[0]  # it says that it loads
        assert server.models.held is not None and server.models.held.name == name


def test_unknown_names_end_the_command() -> None:
    for models, schedulers, words in (
        (("no-such-model",), (), "no denoiser 'no-such-model': expected a folder, a hub id, or one of"),
        (("arithmetic", "sudoku-9x"), (), "did you mean 'sudoku-9x9'"),
        (("sudoku-9x9",), (), "sudoku-9x9 has no tokenizer"),
        (("arithmetic",), ("no-such-order",), "no scheduler"),
    ):
        with pytest.raises(ValueError, match=words):
            Models(models, schedulers)


def test_decided() -> None:
    place, tokens, revealed = torch.arange(3), torch.tensor([1, 2, 3]), torch.tensor([True, True, False])
    changes = [(place, torch.tensor(best)) for best in ([1, 2, 9], [1, 9, 3], [1, 2, 9])]
    assert decided_at(changes, tokens, revealed) == 2  # position 2 is never revealed: its guesses do not count
    assert decided_at(changes[::2], tokens, revealed) == 0
    assert decided_at([*changes, changes[1]], tokens, revealed) == 4
    assert decided_at([], tokens, revealed) == 0


def test_the_form_has_every_safe_option(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = {field["name"]: field for field in options.form_fields()}
    assert set(offered) == {field.name for field in dataclasses.fields(Decoding)}
    assert all(field["help"] for field in offered.values())
    assert offered["block"] | {"help": ""} == {
        "name": "block", "help": "", "default": None, "optional": True, "type": "integer", "minimum": 1,
    }  # fmt: skip
    assert offered["cache"]["enum"] == ["none", "prefix", "dual"] and offered["pace"]["type"] == "spec"

    more = [("again", Literal["never", "often"], "never"), ("file", str | None, None)]
    Later = dataclasses.make_dataclass("Later", more, bases=(Decoding,), frozen=True)
    monkeypatch.setattr(options, "Decoding", Later)
    options.form_fields.cache_clear()
    assert {field["name"] for field in options.form_fields()} - set(offered) == {"again"}  # text could name a file
    options.form_fields.cache_clear()


@pytest.mark.parametrize("nth", [0, 1])
def test_only_the_learned_order_solves_the_examples(nth: int) -> None:
    model, tokenizer = load_denoiser("arithmetic"), load_tokenizer("arithmetic")
    example = texts.text_choices(Models())["denoisers"][0]["examples"][nth]
    prompt, right = example.get("prompt", ""), []
    problem = next(one for one in Arithmetic(count=40, split="test").corpus if example["text"].startswith(one.prompt))
    assert Arithmetic.grade(problem, example["answer"])[0]
    for name in ("sas", "confidence", "left_to_right"):
        scheduler = load_scheduler(name, model, "arithmetic")
        if example["mode"] == "holes":
            done = infill(model, tokenizer, [example["text"]], scheduler)
        else:
            done = generate(model, tokenizer, [as_turns(example["text"])], scheduler, length=example["length"])
        answer = done.texts[0].removeprefix(prompt)
        entries = (texts.Entry(name, {}),)
        sent = texts.TextRequest("arithmetic", example["mode"], example["text"], example["length"], 0, entries)
        assert texts._judge(sent, done.texts[0])["judged"]["good"] is Arithmetic.grade(problem, answer)[0]
        assert (
            texts._judge(dataclasses.replace(sent, text="b+2;c-3;"), done.texts[0]) == {}
        )  # not an example: no answer is known
        right += [name] if Arithmetic.grade(problem, answer)[0] else []
    assert right == ["sas"]


@pytest.mark.parametrize("revision", ["t2m", "t2t"])
def test_tokens_that_are_taken_back(server: Playground, revision: str) -> None:
    prompt = "b+2;c-3;d+2;4-1;"
    entries = [{"scheduler": "confidence", "options": {"revision": revision}}]
    change = {"denoiser": "arithmetic", "mode": "chat", "text": prompt, "length": 40, "seed": 0, "entries": entries}
    _, answer = ask(server, "POST", "/text", request(server, **change))
    assert "NaN" not in answer
    received, shown, back = events(answer), {}, 0
    for event, data in received:
        if event == "reveal":
            back += len(data["hidden"]) + sum(reveal["place"] in shown for reveal in data["reveals"])
            for place in data["hidden"]:
                del shown[place]
            shown |= {reveal["place"]: reveal["text"] for reveal in data["reveals"]}
    model, tokenizer = load_denoiser("arithmetic"), load_tokenizer("arithmetic")
    decoding = Decoding(revision=revision)
    done = generate(model, tokenizer, [as_turns(prompt)], "confidence", decoding, length=40, seeds=[0])
    tokens = done.trajectory.tokens[0].tolist()
    assert back > 0 and shown == {place: tokenizer.decode([tokens[place]]) for place in shown}
    assert received[-1][0] == "end" and received[-2][1]["logp"] is None
