"""The playground's tab for molecules: what it accepts, that its races equal ``unmask react``, its pictures, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.playground import ask, events, refused, serving
from support.text import tiny_bert, tiny_llada
from unmask.cli.main import COMMANDS
from unmask.cli.shell import parse
from unmask.denoisers.loading import load_denoiser
from unmask.generation.text_canvas import load_tokenizer
from unmask.report.playground import tabs
from unmask.report.playground.models import SHIPPED, Models
from unmask.report.playground.page import page
from unmask.report.playground.pictures import describe_picture
from unmask.report.playground.server import Playground
from unmask.tasks.kinds import Drawing
from unmask_studies.reactions import playground
from unmask_studies.reactions.playground import Molecules
from unmask_studies.reactions.task import open_canvas

REACTION = "CO.CC(=O)O>>CO?3"
ENTRIES = [
    {"scheduler": "confidence", "options": {}},
    {"scheduler": "random", "options": {"token_temperature": 0.7}},
    {"scheduler": "left_to_right", "options": {"pace": "threshold:p=0.3"}},
    {"scheduler": "margin", "options": {"revision": "t2m"}},
]


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Playground]:
    with serving(Models((str(model),))) as running:
        yield running


def request(server: Playground, **change: Any) -> dict[str, Any]:
    return {"denoiser": server.models.denoisers[0], "text": REACTION, "seed": 3, "entries": ENTRIES} | change


def answer(server: Playground, **change: Any) -> list[tuple[str, dict[str, Any]]]:
    response, text = ask(server, "POST", "/drawn", request(server, **change))
    assert response.status == 200, text
    return events(text)


def react(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    parse(COMMANDS, "unmask", [*shlex.split(command)[1:], "--json"]).run()
    return json.loads(capsys.readouterr().out)


def test_a_race_equals_react_and_the_lines_that_are_copied(
    server: Playground, capsys: pytest.CaptureFixture[str]
) -> None:
    received = answer(server)
    start = received[0][1]
    assert (
        start["tokens"].count(None) == 3
        and "".join("?" if t is None else t for t in start["tokens"]) == "CO.CC(=O)O>>CO???"
    )
    for lane, lines in enumerate(start["lines"]):
        steps = [data for event, data in received if event == "reveal" and data["lane"] == lane]
        verdict = next(data for event, data in received if event == "verdict" and data["lane"] == lane)
        exec(lines["Python"], {})
        assert capsys.readouterr().out == f"{verdict['text']}\n"
        record = react(lines["command"], capsys)["answers"][0]
        assert record["answer"] == verdict["text"] and record["denoiser_calls"] == verdict["calls"]
        # Specials have no text: react counts the places without [CLS].
        shown = {(data["step"] + 1, one["place"], one["text"]) for data in steps for one in data["reveals"]}
        if lane < 3:  # what a revision takes back is not among the reveals of a record
            assert shown == {(one["step"], one["place"], one["token"]) for one in record["reveals"]}
        good = record["valid"] and record["conserved"]
        assert verdict["judged"]["good"] == good and ("atoms conserved" in verdict["judged"]["line"]) == good
    view = ask(server, "GET", received[-1][1]["view"])[1]
    traces = json.loads(view.partition('id="traces">')[2].partition("</script>")[0])["traces"]
    assert [one["scheduler"] for trace in traces for one in trace["trajectories"]] == start["lanes"]


def test_several_lengths_are_tried_as_react_does(server: Playground, capsys: pytest.CaptureFixture[str]) -> None:
    text = "CO.CC(=O)O>>C?2..5"
    _, raw = ask(server, "POST", "/drawn", request(server, text=text, entries=ENTRIES[:1], seed=0))
    assert raw.count("event: trying") == 4
    received = events(raw.replace("event: trying", "event: loading"))
    command = shlex.join(["unmask", "react", text, "--denoiser", str(server.models.denoisers[0])])
    record = react(command, capsys)
    assert record["reaction"] in received[0][1]["lines"][0]["command"]
    assert next(data for event, data in received if event == "verdict")["text"] == record["answers"][0]["answer"]


def test_pictures_follow_the_reveals(server: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step draws the tokens so far with the best guesses for the others; the last one draws the answer."""
    seen: list[tuple[list[int], dict[int, float], list[int]]] = []

    def record(label: Any) -> Any:
        def draw(tokens: Any, when: Any, hidden: Any) -> Drawing:
            seen.append((list(tokens), dict(when), list(hidden)))
            return Drawing("<svg viewBox='0 0 4 3'><ellipse class='atom-0' cx='1' fill='#000000'/></svg>", ((1, 0),))

        return draw

    monkeypatch.setattr(playground, "draw_tokens", record)
    received = answer(server, entries=ENTRIES[:1])
    steps = [data for event, data in received if event == "reveal"]
    shape = ["ellipse", {"cx": "1", "fill": "currentColor"}, [0]]
    assert all(data["picture"] == {"box": [0, 0, 4, 3], "shapes": [shape], "parts": [[1, 0]]} for data in steps)
    model, tokenizer = load_denoiser(server.models.denoisers[0]), load_tokenizer(server.models.denoisers[0])
    canvas = open_canvas(model, tokenizer, REACTION)
    hidden = (canvas.tokens[0] == model.mask_id).nonzero()[:, 0].tolist()
    order = [data["reveals"][0]["place"] for data in steps]
    for count, (tokens, when, places) in enumerate(seen[:3], 1):
        assert when == {place: nth / 2 for nth, place in enumerate(order[:count])} and places == hidden
        assert model.mask_id not in tokens
    verdict = next(data for event, data in received if event == "verdict")
    assert "".join(map(Molecules().label_tokens(tokenizer), seen[2][0])) == verdict["text"]


def test_molecules_of_real_answers_are_drawn() -> None:
    """By RDKit: revealed atoms have a colour of their own, every shape is one that the page may draw."""

    class Letters:
        def encode(self, text: str, **options: Any) -> list[int]:
            return [*map(ord, text)]

        def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
            raise AssertionError("a reaction is no chat")

        def decode(self, ids: list[int], **options: Any) -> str:
            return "".join(map(chr, ids)).replace("»", ">>")

    tokens: Any = [ord(letter) for letter in "CO.CC(=O)O»COC(C)=O"]
    draw = Molecules().draw_tokens(Letters())
    drawing = draw(tokens, {13: 0.0, 18: 1.0}, [13, 15, 18])
    picture = describe_picture(drawing)
    assert drawing is not None and picture is not None
    assert picture["parts"] == [[11, 0], [12, 1], [13, 2], [15, 3], [18, 4]]
    filled = {tuple(atoms): attributes["fill"] for tag, attributes, atoms in picture["shapes"] if tag == "ellipse"}
    assert filled == {(2,): "#3C78E6", (4,): "#D74628"}
    assert {attributes.get("stroke") for tag, attributes, _ in picture["shapes"] if tag == "path"} <= {
        "currentColor",
        None,
    }
    assert draw([ord("C"), ord("("), 0xBB, ord("C")], {0: 0.0}, [0]) is None  # no molecule


def test_nothing_but_plain_shapes_gets_through() -> None:
    svg = """<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 9' onload='alert(1)'>
      <script>alert(1)</script><foreignObject><p/></foreignObject><image href='http://x/y.png'/><style>*{}</style>
      <path d='M 0 0' onclick='alert(1)' href='javascript:alert(1)' style='fill:url(http://x);stroke:#fff;behavior:url(x)'
        class='atom-2 bond-1 atom-7 evil'/></svg>"""
    picture = describe_picture(Drawing(svg, ()))
    assert picture == {"box": [0, 0, 9, 9], "shapes": [["path", {"d": "M 0 0", "stroke": "#fff"}, [2, 7]]], "parts": []}
    assert describe_picture(None) is None


def test_errors_are_one_line(server: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, words in (
        ("CO.CC(=O)O>>COC", "expected reactants>>product with ? for what is open"),
        ("C?", "expected reactants>>product with ?"),
        ("CXO>>C?", "unknown character 'X' at position 2"),
        ("C(C>>C?3", "not a valid molecule: 'C(C'"),
        ("CBr>>C?3", "the model does not know the token 'Br'"),
        ("CO>>C?70", "too long for the model: 76 tokens"),
        ("CO>>C?501", "expected 1 to 500"),
    ):
        received = answer(server, text=text)
        assert [event for event, _ in received] == ["failed"] and words in received[0][1]["error"], received
        assert "\n" not in received[0][1]["error"]
    for change, words in (
        ({"text": "C>>C?9..2"}, "expected one range of at most 30 lengths"),
        ({"denoiser": "arithmetic"}, "expected a denoiser among"),
        ({"text": ""}, "text: expected text"),
        ({"text": "C" * 4001}, "text: expected"),
        ({"entries": [{"scheduler": "/tmp", "options": {}}]}, "expected schedulers among"),
        ({"entries": [{"scheduler": "random", "options": {"blok": 4}}]}, "did you mean 'block'?"),
        ({"entries": ENTRIES[:1] * 2}, "the same decoding is there twice"),
        ({"length": 3}, "length is not a known field"),
    ):
        refused(server, "/drawn", request(server, **change), 400, words)
    monkeypatch.setattr(playground, "find_spec", lambda name: None)
    refused(server, "/drawn", request(server), 400, "molecules need RDKit: pip install unmask[chem]")


def test_a_race_that_takes_too_long_is_stopped(model: Path) -> None:
    with serving(Models((str(model),)), seconds=1e-6) as running:
        received = answer(running, text="CO.CC(=O)O>>C?2..5")
    assert received[-1] == ("failed", {"error": "the race took too long and was stopped"})


def test_which_denoisers_are_the_tab_s(model: Path, tmp_path: Path) -> None:
    tab = Molecules()
    others = [tiny_llada(tmp_path / "llada"), tiny_bert(tmp_path / "bert"), "arithmetic"]
    assert tab.accepts(load_tokenizer(model)) and not any(tab.accepts(load_tokenizer(name)) for name in others)
    models = Models((str(model), "arithmetic"))
    assert models.tab is not None and models.tab.name == "molecules" and models.tab.denoisers == (str(model),)
    assert models.text_denoisers == ("arithmetic",) and _choices(models)["first"] == "text"
    alone = Models((str(model),))
    assert alone.text_denoisers == SHIPPED and _choices(alone)["first"] == "molecules"
    assert 'id="tab-molecules"' in page(alone) and len(re.findall(r'role="tab"', page(alone))) == 3


def test_without_a_tab_nothing_is_offered(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choices(Models())["drawn"] is None and "drawn-setup" not in page(Models()).partition("<script")[0]
    with serving(Models()) as running:
        refused(running, "/drawn", request(running), 400, "this playground has no such tab")
    monkeypatch.setattr(tabs, "TABS", {})
    models = Models((str(model),))
    assert models.tab is None and models.text_denoisers == (str(model),)


def _choices(models: Models) -> dict[str, Any]:
    return json.loads(page(models).partition('id="choices">')[2].partition("</script>")[0])
