"""The playground over HTTP: a race equals ``unmask()``, invalid input is refused with a message, and nothing else is reachable."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from support.playground import ONLY, SMALL, WIKIPEDIA, free, until
from unmask.cli.play import Play
from unmask.decoding.loop import unmask
from unmask.decoding.protocols import Canvas
from unmask.denoisers.loading import list_denoisers, load_denoiser
from unmask.report.playground import race as racing
from unmask.report.playground.incoming import BODY_BYTES, names_server
from unmask.report.playground.page import page, policy
from unmask.report.playground.puzzles import EXAMPLES, read_puzzle
from unmask.report.playground.race import DENOISERS, SCHEDULERS, Finish, Reveal, TooSlow, Verdict, race
from unmask.report.playground.server import CONNECTIONS, TRACES_KEPT, Playground
from unmask.schedulers.loading import load_scheduler

SLOW = {"puzzle": WIKIPEDIA.puzzle, "denoiser": "sudoku-9x9", "schedulers": ["confidence"]}


def ask(
    server: Playground, method: str, path: str, body: Any = None, **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if isinstance(body, dict):
        body, named = json.dumps(body), {"Content-Type": "application/json", **named}
    connection.request(method, path, body, named)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    lines = [part.split("\n") for part in text.split("\n\n") if part]
    return [(event.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for event, data in lines]


def refused(server: Playground, path: str, body: Any, status: int, words: str, **headers: str) -> dict[str, Any]:
    response, text = ask(server, "POST", path, body, **headers)
    assert response.status == status, text
    answer = json.loads(text)
    assert words in answer["error"]
    return answer


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
        {"puzzle": example.puzzle, "size": round(len(example.puzzle) ** 0.5), "hidden": hidden},
    )
    assert [event for event, _ in received[1:]] == ["reveal"] * hidden * len(orders) + ["verdict"] * len(orders) + [
        "end"
    ]
    # In turn: a round holds one reveal of each order.
    assert [data["scheduler"] for _, data in received[1 : 1 + hidden * len(orders)]] == list(orders) * hidden
    for order in orders:
        path, truth = offline(example.puzzle, example.denoiser, order)
        mine = [data for event, data in received if event == "reveal" and data["scheduler"] == order]
        assert [data["nth"] for data in mine] == list(range(hidden))
        assert [data["cell"] for data in mine] == path.order[0].tolist()
        assert [data["digit"] for data in mine] == path.tokens[0, path.order[0]].tolist()
        assert [data["p"] for data in mine] == pytest.approx(path.logp[0].exp().tolist(), rel=1e-5)
        wrong = (path.tokens != truth)[0]
        assert [data["right"] for data in mine] == [not wrong[cell] for cell in path.order[0].tolist()]
        verdict = next(data for event, data in received if event == "verdict" and data["scheduler"] == order)
        first = next((data["nth"] for data in mine if not data["right"]), None)
        assert (verdict["solved"], verdict["wrong"]) == (not wrong.any(), int(wrong.sum()))
        assert verdict["first_wrong"] == first and verdict["denoiser_calls"] == path.denoiser_calls == hidden
        assert verdict["total_logp"] == pytest.approx(path.total_logp.item(), rel=1e-5)
    view, html = ask(server, "GET", received[-1][1]["view"])
    assert view.status == 200 and "sandbox allow-scripts" in view.headers["Content-Security-Policy"]
    traced = json.loads(html.partition('id="traces">')[2].partition("</script>")[0])["traces"][0]
    assert [path["scheduler"] for path in traced["trajectories"]] == list(orders)
    for path in traced["trajectories"]:
        cells = [
            data["cell"] for event, data in received if event == "reveal" and data["scheduler"] == path["scheduler"]
        ]
        assert path["order"] == cells and path["candidates"]["alternatives"] == 4
        assert set(path["others"]) == set(orders) - {path["scheduler"]}


def test_only_the_learned_order_solves_the_first_example() -> None:
    solved = {}
    for order in ("confidence", "margin", "entropy", "expert", "sas"):
        path, truth = offline(ONLY.puzzle, ONLY.denoiser, order)
        solved[order] = bool((path.tokens == truth).all())
    assert [order for order, right in solved.items() if right] == ["sas"]


def test_choices_are_shipped_models_and_schedulers() -> None:
    assert set(DENOISERS) == set(list_denoisers())
    for name, (size, _) in DENOISERS.items():
        assert load_denoiser(name).config.max_length == size * size  # pyright: ignore
        for order in SCHEDULERS:
            load_scheduler(order, None, name)
    for example in EXAMPLES:
        racing.check_entry(example.denoiser, example.schedulers, read_puzzle(example.puzzle).size)


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
    assert response.status == 200 and text == page()
    assert response.headers["Content-Security-Policy"] == policy()
    assert "unsafe" not in policy() and policy().count("sha256-") == text.count("<script>") + text.count("<style>")
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
        "/?x",
        "/static/..%2f..%2fetc%2fpasswd",
    ],
)
def test_nothing_else_is_reachable(server: Playground, path: str) -> None:
    response, text = ask(server, "GET", path)
    assert response.status == 404 and set(json.loads(text)) == {"error", "cells"}
    assert ask(server, "POST", path, {"puzzle": ""})[0].status == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_other_methods_are_not_answered(server: Playground, method: str) -> None:
    response, _ = ask(server, method, "/race")
    assert response.status == 501
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
        ({"schedulers": ["sas"] * 5}, "at most 4"),
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
    refused(server, "/file", b"", 413, "too large", Content_Length="9" * 40)
    refused(server, "/file", b"", 411, "expected a body with its length", Content_Length="-1")
    refused(server, "/file", b"", 411, "expected a body", Transfer_Encoding="chunked", Content_Length="1")


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


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[int]]]:
    """Orders wait at each step until the gate opens; the list counts their steps."""
    opened, steps = threading.Event(), []

    def waits(view: Any) -> Any:
        steps.append(view.step)
        opened.wait(0.05 if len(steps) < 40 else 0.5)
        return view.confidence

    monkeypatch.setattr(racing, "_scheduler", lambda name, denoiser: waits)
    yield opened, steps
    opened.set()


def begun(server: Playground, request: dict[str, Any]) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/race", json.dumps(request), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200 and response.readline() == b"event: start\n"
    return response


def test_a_third_race_must_wait(server: Playground, gate: tuple[threading.Event, list[int]]) -> None:
    first, second = begun(server, SLOW), begun(server, SLOW)
    response, text = ask(server, "POST", "/race", SLOW)
    assert response.status == 429 and response.headers["Retry-After"] == "5"
    assert "other races are running" in json.loads(text)["error"]
    assert ask(server, "GET", "/")[0].status == 200
    gate[0].set()
    for one in (first, second):
        assert b"event: end\n" in one.read()
    assert until(lambda: free(server))


def test_a_race_ends_when_the_client_leaves(server: Playground, gate: tuple[threading.Event, list[int]]) -> None:
    response = begun(server, SLOW)
    assert until(lambda: len(gate[1]) >= 3)
    response.close()
    assert until(lambda: free(server))
    steps = len(gate[1])
    assert steps < WIKIPEDIA.puzzle.count("0")
    time.sleep(0.6)
    assert len(gate[1]) == steps and not any(isinstance(t, racing._Runner) for t in threading.enumerate())


def test_a_closing_server_ends_its_races(server: Playground, gate: tuple[threading.Event, list[int]]) -> None:
    response = begun(server, SLOW)
    server.stopping.set()
    assert events(response.read().decode().partition("\n\n")[2])[-1] == (
        "failed",
        {"error": "the playground was stopped"},
    )
    assert until(lambda: free(server))


def test_failed_and_slow_races_send_an_error(server: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    puzzle = read_puzzle(SMALL.puzzle)
    with pytest.raises(TooSlow, match="took too long"):
        list(race(puzzle, SMALL.denoiser, ("sas",), seconds=-1.0))

    def fails(view: Any) -> Any:
        raise RuntimeError("no thoughts")

    monkeypatch.setattr(racing, "_scheduler", lambda name, denoiser: fails)
    _, text = ask(server, "POST", "/race", {"puzzle": puzzle.text, "denoiser": SMALL.denoiser, "schedulers": ["sas"]})
    assert events(text)[-1] == ("failed", {"error": "no thoughts"}) and until(lambda: free(server))


def test_closing_the_iterator_ends_its_threads() -> None:
    received = race(read_puzzle(SMALL.puzzle), SMALL.denoiser, ("confidence", "sas"))
    assert isinstance(next(received), Reveal)
    received.close()  # pyright: ignore
    assert not any(isinstance(thread, racing._Runner) for thread in threading.enumerate())
    kinds = [type(one) for one in race(read_puzzle(SMALL.puzzle), SMALL.denoiser, ("sas",))]
    assert kinds == [Reveal] * 11 + [Verdict, Finish]


def test_limits_of_kept_races_and_connections(server: Playground) -> None:
    finish = list(race(read_puzzle(SMALL.puzzle), SMALL.denoiser, ("sas",)))[-1]
    assert isinstance(finish, Finish)
    keys = [server.keep(finish.trace) for _ in range(TRACES_KEPT + 1)]
    assert len(set(keys)) == len(keys) and len(server.traces) == TRACES_KEPT
    assert "no longer kept" in ask(server, "GET", f"/view/{keys[0]}")[1]
    assert ask(server, "GET", f"/view/{keys[-1]}")[0].status == 200
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(CONNECTIONS)]
    assert until(lambda: server.connections._value == 0)  # pyright: ignore
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(server, "GET", "/")
    for one in idle:
        one.close()
    assert until(lambda: server.connections._value == CONNECTIONS)  # pyright: ignore
    assert ask(server, "GET", "/")[0].status == 200


def test_port_in_use(server: Playground) -> None:
    with pytest.raises(ValueError, match=rf"port {server.port} .* is in use: name another one, such as --port \d+"):
        Play(port=server.port).run()
    with pytest.raises(ValueError, match=r"expected a port in 0 \.\. 65535, got 70000"):
        Play(port=70000).run()
    with pytest.raises(ValueError, match=r"cannot listen at 203\.0\.113\.7, port 0"):
        Play(port=0, host="203.0.113.7").run()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_prints_its_url_and_ends_on_ctrl_c(host: str) -> None:
    command = [sys.executable, "-c", f"from unmask.cli.play import Play; Play(port=0, host={host!r}).run()"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ})
    assert running.stdout is not None
    url = running.stdout.readline().strip()
    assert url.startswith("http://127.0.0.1:") and url.endswith("/")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert (running.returncode, out) == (0, "") and "Traceback" not in err
    assert ("has no password" in err) == (host == "0.0.0.0")
