"""Work in a fork of the tests' process, which has imported torch already: watched and stopped like a subprocess."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

from unmask.cli.main import main


class Fork:
    """``work()`` in a folder, in a process of its own; ``returncode`` as ``subprocess`` has it."""

    def __init__(self, work: Callable[[], object], folder: Path) -> None:
        self.returncode: int | None = None
        self._out, self._err = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115  (closed with the object)
        self.pid = os.fork()
        if self.pid == 0:
            _run(work, folder, self._out, self._err)

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def _wait(self, how: int) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def until(self, reached: Callable[[], bool], seconds: float = 120.0) -> bool:
        """Whether this came true while the process ran."""
        deadline = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < deadline:
            if reached():
                return True
            time.sleep(0.002)
        return False

    def communicate(self, seconds: float = 120.0) -> tuple[str, str]:
        """What it wrote to stdout and stderr, after its end; it is killed if it does not end in time."""
        deadline = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        self.send_signal(signal.SIGKILL)
        self._wait(0)
        return self.output(), _read(self._err)

    def output(self) -> str:
        """What it has written to stdout so far."""
        return _read(self._out)


def _read(file: IO[str]) -> str:
    return os.pread(file.fileno(), 2**24, 0).decode()


def _run(work: Callable[[], object], folder: Path, out: IO[str], err: IO[str]) -> NoReturn:
    code = 1
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = (open(file, "w", buffering=1, closefd=False) for file in (1, 2))  # noqa: SIM115
        os.chdir(folder)
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fork_command(folder: Path, *words: str) -> Fork:
    """``unmask WORDS``"""

    def work() -> None:
        sys.argv = ["unmask", *words]
        main()

    return Fork(work, folder)


def latest_step(run: Path) -> int:
    """Of the checkpoint that counts; 0 before the first one."""
    latest = run / "checkpoints" / "latest.json"
    return json.loads(latest.read_text())["step"] if latest.exists() else 0
