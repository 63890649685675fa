"""The playground over many races: its memory does not grow, and clients that leave free what they held."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from support.playground import SMALL, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory and threads are read from /proc"),
]
RACES = int(os.environ.get("UNMASK_SOAK_RACES", "150"))
WARM_UP = 50  # the races kept for the viewer, and what the allocator holds on to for each thread
LEAK = 6.0  # kB per race: less than the trace of one small race, the least that could be forgotten
LISTENING = "0A"  # the state of a socket in /proc/net/tcp
KEEPING_ALL = (
    "import unmask.report.playground.server as s; s.TRACES_KEPT = 10**9; "
    "from unmask.cli.play import Play; Play(port=0).run()"
)


class Running:
    """A playground in a process of its own."""

    def __init__(self, *command: str) -> None:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environ)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    def status(self, name: str) -> int:
        """A number of the process: VmRSS in kB, Threads."""
        found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def connections(self) -> int:
        """Connections that the server has accepted and not closed; the kernel names no inode for any other."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1].endswith(f":{self.port:04X}") and row[3] != LISTENING and row[9] != "0" for row in rows)

    def race(self) -> None:
        """A whole race, and a look at it in the viewer."""
        connection, response = self._begun()
        text = response.read().decode()
        assert response.status == 200 and "event: end\n" in text, text[-300:]
        connection.close()
        connection.request("GET", json.loads(text.rpartition("data: ")[2])["view"])
        assert b"</html>" in connection.getresponse().read()
        connection.close()

    def leave(self) -> None:
        """Begin a race, or wait for one, and go."""
        connection, response = self._begun()
        assert response.status == 200 and response.readline().startswith(b"event: ")
        response.close()
        connection.close()

    def _begun(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        request = {"puzzle": SMALL.puzzle, "denoiser": SMALL.denoiser, "schedulers": ["confidence", "sas"]}
        connection.request("POST", "/race", json.dumps(request), {"Content-Type": "application/json"})
        return connection, connection.getresponse()


@contextlib.contextmanager
def running(*command: str) -> Iterator[Running]:
    one = Running(*command)
    yield one
    one.process.send_signal(signal.SIGINT)
    assert one.process.wait(timeout=60) == 0


def growth(server: Running, races: int) -> tuple[float, float, float]:
    """kB per race after the warm-up: the slope of the resident memory, and its 95 % limits."""
    memory = []
    for nth in range(WARM_UP + races):
        server.race()
        if nth >= WARM_UP:
            memory.append(server.status("VmRSS"))
    line: Any = stats.linregress(np.arange(races), memory)
    half = float(stats.t.ppf(0.975, races - 2) * line.stderr)
    return float(line.slope), float(line.slope) - half, float(line.slope) + half


def test_memory_does_not_grow() -> None:
    with running("-m", "unmask", "play", "--port", "0") as server:
        slope, low, high = growth(server, RACES)
        print(
            f"\n{RACES} races: {slope:+.2f} kB per race [{low:+.2f}, {high:+.2f}], {server.status('VmRSS')} kB at the end"
        )
        assert slope < LEAK


def test_the_memory_test_detects_a_leak() -> None:
    with running("-c", KEEPING_ALL) as server:
        slope, low, high = growth(server, 60)
        print(f"\nkeeping every trace: {slope:+.2f} kB per race [{low:+.2f}, {high:+.2f}]")
        assert low > LEAK


def test_clients_that_leave_leave_nothing() -> None:
    with running("-m", "unmask", "play", "--port", "0") as server:
        server.race()
        # A client has its answer before the server has closed the connection, which would count as a file.
        assert until(lambda: server.connections() == 0)
        threads, files = server.status("Threads"), server.files()
        for _ in range(30):
            server.leave()
        # And some that send nothing: half of them go, the server closes the others after a while.
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        assert until(lambda: server.connections() >= 20)
        for one in silent[:10]:
            one.close()
        # The pool that races run in keeps a few idle threads.
        assert until(lambda: server.files() == files and server.status("Threads") <= threads + 3)
        server.race()
        for one in silent[10:]:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""  # it was the server that closed
            one.close()
