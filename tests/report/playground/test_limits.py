"""The limits of the playground: one race at a time and a place in line, clients that leave, are slow or come all at once."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from support.forks import Fork
from support.playground import SMALL, WIKIPEDIA, ask, begun, events, free, refused, serving, until
from unmask.cli.play import Play
from unmask.report.playground import boards, limits
from unmask.report.playground import race as racing
from unmask.report.playground import server as serving_module
from unmask.report.playground.boards import BoardRequest, board_race
from unmask.report.playground.models import Models
from unmask.report.playground.puzzles import random_puzzle, read_puzzle
from unmask.report.playground.race import TooSlow
from unmask.report.playground.server import TRACES_KEPT, Playground

SLOW = {"puzzle": WIKIPEDIA.puzzle, "denoiser": "sudoku-9x9-imperfect", "schedulers": ["confidence"]}
QUICK = {"puzzle": SMALL.puzzle, "denoiser": SMALL.denoiser, "schedulers": ["confidence"]}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[int]]]:
    """Schedulers wait at each step until the gate opens; the list counts their steps."""
    opened, steps = threading.Event(), []

    def waits(view: Any) -> Any:
        steps.append(view.step)
        opened.wait(0.05 if len(steps) < 4 else 2)
        return view.confidence

    monkeypatch.setattr(boards, "load_scheduler", lambda *names: waits)
    yield opened, steps
    opened.set()


def test_others_wait_and_know_their_place(
    server: Playground, gate: tuple[threading.Event, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(server, "/race", SLOW)
    assert until(lambda: len(gate[1]) > 0)
    second, third = (begun(server, "/race", QUICK) for _ in range(2))
    assert json.loads(second.readline().removeprefix(b"data: ")) == {"ahead": 1}
    assert json.loads(third.readline().removeprefix(b"data: ")) == {"ahead": 2}
    monkeypatch.setattr(server.races, "waiting", 2)
    response, text = ask(server, "POST", "/race", SLOW)
    assert response.status == 429 and response.headers["Retry-After"] == "5"
    assert json.loads(text)["error"].startswith("3 others are running or waiting")
    assert ask(server, "GET", "/")[0].status == 200
    second.close()  # who leaves the line lets the others move on
    third.readline()
    assert third.readline() == b"event: waiting\n" and third.readline() == b'data: {"ahead": 1}\n'
    gate[0].set()
    for one in (first, third):
        assert b"event: end\n" in one.read()
    assert until(lambda: free(server))


def test_a_race_ends_when_the_client_leaves(server: Playground, gate: tuple[threading.Event, list[int]]) -> None:
    response = begun(server, "/race", SLOW)
    assert until(lambda: len(gate[1]) >= 3)
    response.close()
    assert until(lambda: free(server))
    steps = len(gate[1])
    assert steps < WIKIPEDIA.puzzle.count("0")
    time.sleep(0.6)
    assert len(gate[1]) == steps and not any(isinstance(t, racing._Runner) for t in threading.enumerate())


def test_a_closing_server_ends_its_races(gate: tuple[threading.Event, list[int]]) -> None:
    with serving() as server:
        response, waits = begun(server, "/race", SLOW), begun(server, "/race", SLOW)
        server.stop()
        for one in (response, waits):
            assert events("event: x\n" + one.read().decode())[-1] == ("failed", {"error": "the playground was stopped"})


def test_failed_and_slow_races_send_an_error(server: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, models = threading.Event(), Models()
    request = BoardRequest(SMALL.puzzle, SMALL.denoiser, ("sas",))
    with pytest.raises(TooSlow, match="took too long"):
        list(board_race(read_puzzle(SMALL.puzzle), request, models, stop, -1.0))
    received = board_race(read_puzzle(SMALL.puzzle), request, models, stop, 60.0)
    assert [next(received)[0] for _ in range(2)] == ["start", "reveal"]
    received.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert not any(isinstance(thread, racing._Runner) for thread in threading.enumerate())

    def fails(view: Any) -> Any:
        raise RuntimeError("no thoughts")

    monkeypatch.setattr(boards, "load_scheduler", lambda *names: fails)
    _, text = ask(server, "POST", "/race", QUICK)
    assert events(text)[-1] == ("failed", {"error": "no thoughts"}) and until(lambda: free(server))


def test_64_slow_clients_do_not_keep_others_out(server: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IDLE_SECONDS", 1.5)
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(64)]
    for number, one in enumerate(slow):
        one.settimeout(60)
        one.sendall(b"GET / HTTP/1.1\r\nHost: x" if number % 2 else b"")
    assert ask(server, "GET", "/")[0].status == 200
    assert events(ask(server, "POST", "/race", QUICK)[1])[-1][0] == "end"
    for number, one in enumerate(slow):  # a byte now and then does not help
        if number % 2 == 0:
            one.sendall(b"G")
    for one in slow:
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(1) == b""
        one.close()
    assert until(lambda: not server.server_state.connections)
    # A body that never comes: an answer, and the connection ends.
    head = f"POST /random HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as one:
        one.sendall(f"{head}Content-Length: 40\r\n\r\n{{".encode())
        assert one.makefile("rb").readline() == b"HTTP/1.1 408 Request Timeout\r\n"


def test_a_client_that_does_not_read_is_let_go(
    server: Playground, monkeypatch: pytest.MonkeyPatch, gate: tuple[threading.Event, list[int]]
) -> None:
    monkeypatch.setattr(limits, "IDLE_SECONDS", 1.0)
    frame = serving_module._frame
    monkeypatch.setattr(serving_module, "_frame", lambda event, data: frame(event, data | {"x": "x" * 2**20}))
    gate[0].set()
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect(("127.0.0.1", server.port))
        body = json.dumps(SLOW)
        head = f"POST /race HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
        one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        assert until(lambda: not free(server))
        assert until(lambda: free(server) and not server.server_state.connections, 60)


def test_fifty_clients_at_once(server: Playground) -> None:
    def client(number: int) -> int:
        if number % 5 == 0:
            return ask(server, "POST", "/random", {"size": 4, "difficulty": "easy"})[0].status
        response, text = ask(server, "POST", "/race", QUICK)
        return response.status if response.status != 200 else 200 if events(text)[-1][0] == "end" else 0

    random_puzzle(4, "easy", 0)  # compiled now, not while others wait
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(client, range(50)))
    assert answers == [200] * 50 and until(lambda: free(server))


def test_the_line_for_puzzles_is_bounded(server: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.puzzles, "waiting", -1)
    refused(server, "/random", {"size": 4, "difficulty": "easy"}, 429, "try again")


def test_the_latest_races_are_kept(server: Playground) -> None:
    views = [events(ask(server, "POST", "/race", QUICK)[1])[-1][1]["view"] for _ in range(TRACES_KEPT + 1)]
    assert len(set(views)) == len(views) and len(server.traces) == TRACES_KEPT
    assert "no longer kept" in ask(server, "GET", views[0])[1]
    assert ask(server, "GET", views[-1])[0].status == 200


def test_port_in_use(server: Playground) -> None:
    with pytest.raises(ValueError, match=rf"port {server.port} .* is in use: name another one, such as --port \d+"):
        Play(port=server.port).run()
    with pytest.raises(ValueError, match=r"expected a port in 0 \.\. 65535, got 70000"):
        Play(port=70000).run()
    with pytest.raises(ValueError, match=r"cannot listen at 203\.0\.113\.7, port 0"):
        Play(port=0, host="203.0.113.7").run()


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.cli.play.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "unmask\[play\]"'):
        Play().run()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_prints_its_url_and_ends_on_ctrl_c(host: str, tmp_path: Path) -> None:
    running = Fork(Play(port=0, host=host).run, tmp_path)
    assert running.until(lambda: running.output().endswith("\n")), running.communicate()
    url = running.output().strip()
    assert url.startswith("http://127.0.0.1:") and url.endswith("/")
    port = int(url.rstrip("/").rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    running.send_signal(signal.SIGINT)
    out, err = running.communicate()
    assert (running.returncode, out.strip()) == (0, url) and "Traceback" not in err
    assert ("has no password" in err) == (host == "0.0.0.0")
