"""The playground over HTTP: a race equals ``unmask()``, invalid input is refused with a message, and nothing else is reachable."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from support.playground import ONLY, SMALL, ask, events, refused
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import list_denoisers, load_denoiser
from unmask.report.playground.boards import DENOISERS, SCHEDULERS, BoardRequest, check_board
from unmask.report.playground.limits import BODY_BYTES, names_server
from unmask.report.playground.models import SHIPPED
from unmask.report.playground.page import page, policy
from unmask.report.playground.puzzles import EXAMPLES, read_puzzle
from unmask.report.playground.server import Playground
from unmask.schedulers.loading import load_scheduler


@cache
def offline(puzzle: str, denoiser: str, order: str) -> Any:
    one, model = read_puzzle(puzzle), load_denoiser(denoiser)
    tokens, truth = (torch.from_numpy(cells.astype(np.int64))[None] for cells in (one.board, one.solution))
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    scheduler = load_scheduler(order, model, denoiser)
    return unmask(
        model, scheduler, Canvas(tokens, target=truth, region=everywhere, seeds=torch.tensor([0])), record=False
    ), truth


@pytest.mark.parametrize(
    ("example", "orders"),
    [(SMALL, ("confidence", "random", "sas", "gt_logp")), (SMALL, ("expert",)), (ONLY, ("confidence", "sas"))],
    ids=["four", "one", "nine"],
)
def test_a_race_streams_every_reveal_of_the_decodings(
    server: Playground, example: Any, orders: tuple[str, ...]
) -> None:
    request = {"puzzle": example.puzzle, "denoiser": example.denoiser, "schedulers": list(orders)}
    response, text = ask(server, "POST", "/race", request)
    assert response.status == 200 and response.headers["Content-Type"].startswith("text/event-stream")
    received = events(text)
    hidden = example.puzzle.count("0")
    assert received[0] == (
        "start",
        {"puzzle": example.puzzle, "size": round(len(example.puzzle) ** 0.5), "hidden": hidden, "lanes": list(orders)},
    )
    assert [event for event, _ in received[1:]] == ["reveal"] * hidden * len(orders) + ["verdict"] * len(orders) + [
        "end"
    ]
    # In turn: a round holds one reveal of each order.
    lanes = [data["lane"] for _, data in received[1 : 1 + hidden * len(orders)]]
    assert lanes == list(range(len(orders))) * hidden
    for lane, order in enumerate(orders):
        path, truth = offline(example.puzzle, example.denoiser, order)
        steps = [data for event, data in received if event == "reveal" and data["lane"] == lane]
        assert [data["nth"] for data in steps] == [data["step"] for data in steps] == list(range(hidden))
        mine = [reveal for data in steps for reveal in data["reveals"]]
        assert [data["place"] for data in mine] == path.order[0].tolist()
        assert [data["text"] for data in mine] == [str(t) for t in path.tokens[0, path.order[0]].tolist()]
        assert [data["p"] for data in mine] == pytest.approx(path.logp[0].exp().tolist(), rel=1e-5)
        wrong = (path.tokens != truth)[0]
        assert [data["right"] for data in mine] == [not wrong[cell] for cell in path.order[0].tolist()]
        verdict = next(data for event, data in received if event == "verdict" and data["lane"] == lane)
        first = next((n for n, data in enumerate(mine) if not data["right"]), None)
        assert (verdict["solved"], verdict["wrong"]) == (not wrong.any(), int(wrong.sum()))
        assert verdict["first_wrong"] == first and verdict["calls"] == path.denoiser_calls == hidden
        assert verdict["logp"] == pytest.approx(path.total_logp.item(), rel=1e-5)
    view, html = ask(server, "GET", received[-1][1]["view"])
    assert view.status == 200 and "sandbox allow-scripts" in view.headers["Content-Security-Policy"]
    traced = json.loads(html.partition('id="traces">')[2].partition("</script>")[0])["traces"][0]
    assert [path["scheduler"] for path in traced["trajectories"]] == list(orders)
    for lane, path in enumerate(traced["trajectories"]):
        steps = [data for event, data in received if event == "reveal" and data["lane"] == lane]
        cells = [reveal["place"] for data in steps for reveal in data["reveals"]]
        assert path["order"] == cells and path["candidates"]["alternatives"] == 4
        assert set(path["others"]) == set(orders) - {path["scheduler"]}


def test_only_the_learned_order_solves_the_first_example() -> None:
    solved = {}
    for order in ("confidence", "margin", "entropy", "expert", "sas"):
        path, truth = offline(ONLY.puzzle, ONLY.denoiser, order)
        solved[order] = bool((path.tokens == truth).all())
    assert [order for order, right in solved.items() if right] == ["sas"]


def test_choices_are_shipped_models_and_schedulers() -> None:
    assert {*DENOISERS, *SHIPPED} == set(list_denoisers())
    for name, (size, _) in DENOISERS.items():
        assert load_denoiser(name).config.max_length == size * size  # pyright: ignore
        for order in SCHEDULERS:
            load_scheduler(order, None, name)
    for example in EXAMPLES:
        check_board(
            BoardRequest(example.puzzle, example.denoiser, example.schedulers), read_puzzle(example.puzzle).size
        )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\xff\xfe\x00", "expected a text file in UTF-8"),
        (b"abc\x00def", "got binary data"),
        (b"", "no line of this file holds a puzzle"),
        (b"puzzle\n123\n", "line 2: expected 81 characters"),
    ],
)
def test_invalid_files_are_refused(server: Playground, body: bytes, words: str) -> None:
    refused(server, "/file", body, 400, words, Content_Type="text/plain")


def test_the_page_is_served_under_its_policy(server: Playground) -> None:
    response, text = ask(server, "GET", "/")
    rules = response.headers["Content-Security-Policy"]
    assert response.status == 200 and text == page(server.models) and rules == policy(text)
    assert "unsafe" not in rules and rules.count("sha256-") == text.count("<script>") + text.count("<style>")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert not [name for name in response.headers if name.lower().startswith("access-control")]
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    puzzle = json.loads(ask(server, "POST", "/random", {"size": 4, "difficulty": "easy"})[1])["puzzle"]
    assert read_puzzle(puzzle).size == 4


@pytest.mark.parametrize(
    "path",
    [
        "/page.html",
        "/../server.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/view/",
        "/view/../../etc/passwd",
        "/view/none",
        "/index.html",
        "/static/..%2f..%2fetc%2fpasswd",
    ],
)
def test_nothing_else_is_reachable(server: Playground, path: str) -> None:
    response, text = ask(server, "GET", path)
    assert response.status == 404 and set(json.loads(text)) == {"error", "cells"}
    assert ask(server, "POST", path, {"puzzle": ""})[0].status in (404, 405)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_other_methods_are_not_answered(server: Playground, method: str) -> None:
    response, _ = ask(server, method, "/race")
    assert response.status == 405
    assert not [name for name in response.headers if name.lower().startswith("access-control")]


def test_invalid_requests_are_refused(server: Playground) -> None:
    good = {"puzzle": SMALL.puzzle, "denoiser": SMALL.denoiser, "schedulers": ["sas"]}
    for change, words in (
        ({"denoiser": "../../secret"}, "expected a denoiser among"),
        ({"denoiser": "owner/model"}, "expected a denoiser among"),
        ({"denoiser": "sudoku-9x9"}, "fills 9×9 boards, but the puzzle is 4×4"),
        ({"schedulers": ["/tmp/policy"]}, "expected schedulers among"),
        ({"schedulers": ["top_k_random:k=3"]}, "expected schedulers among"),
        ({"schedulers": []}, "expected 1 to 4 schedulers, got 0"),
        ({"schedulers": ["sas", "sas"]}, "named twice"),
        ({"schedulers": ["sas"] * 5}, "expected 1 to 4 schedulers, got 5"),
        ({"schedulers": [1]}, "schedulers, 0: expected text"),
        ({"schedulers": "sas"}, "schedulers: expected a list"),
        ({"puzzle": 5}, "puzzle: expected text, got 5"),
        ({"more": 1}, "more is not a known field"),
        ({"puzzle": "1..1" + "." * 12}, "1 stands twice in row 1"),
    ):
        refused(server, "/race", {**good, **change}, 400, words)
    assert refused(server, "/race", {**good, "puzzle": "1..1" + "." * 12}, 400, "twice")["cells"] == [0, 3]
    refused(server, "/race", "[", 400, "expected JSON", Content_Type="application/json")
    refused(server, "/race", "[" * 60_000, 400, "expected JSON", Content_Type="application/json")
    refused(server, "/race", json.dumps(good), 415, "expected application/json", Content_Type="text/plain")
    refused(server, "/random", {"size": 6, "difficulty": "easy"}, 400, "expected a size of 4 or 9, got 6")
    refused(server, "/random", {"size": 9, "difficulty": "vile"}, 400, "expected a difficulty among easy, medium, hard")
    refused(server, "/random", {"size": True, "difficulty": "easy"}, 400, "size: expected a whole number, got True")


def test_large_bodies_are_refused(server: Playground) -> None:
    refused(server, "/file", b"1" * (BODY_BYTES + 1), 413, "too large: expected at most 64 KB")
    refused(server, "/file", b"1" * BODY_BYTES, 400, "no line")
    refused(server, "/file", b"", 413, "too large", Content_Length="9" * 12)
    for length in ("9" * 40, "-1", "x"):
        assert ask(server, "POST", "/file", b"", Content_Length=length)[0].status == 400


def test_requests_of_other_sites_are_refused(server: Playground) -> None:
    own = f"127.0.0.1:{server.port}"
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", "127.0.0.1:1", f"x@{own}", "", "[::1"):
        assert ask(server, "GET", "/", Host=host)[0].status == 421, host
    for host in (own, f"localhost:{server.port}", f"[::1]:{server.port}"):
        assert ask(server, "GET", "/", Host=host)[0].status == 200, host
    body = {"size": 4, "difficulty": "easy"}
    for foreign in ("http://evil.example", "null", f"https://{own}", "http://127.0.0.1:1"):
        refused(server, "/random", body, 403, "own page", Origin=foreign)
    refused(server, "/random", body, 403, "own page", Sec_Fetch_Site="cross-site")
    assert ask(server, "POST", "/random", body, Origin=f"http://{own}", Sec_Fetch_Site="same-origin")[0].status == 200


def test_an_open_server_answers_to_addresses_only() -> None:
    assert names_server("192.0.2.7:80", "0.0.0.0", 80) and names_server("[2001:db8::1]:80", "::", 80)
    assert names_server("box.lan:8321", "box.lan", 8321)
    assert not names_server("evil.example:8321", "0.0.0.0", 8321)
    assert not names_server("192.0.2.7:8321", "127.0.0.1", 8321)
    assert not names_server(None, "127.0.0.1", 80)
