"""Run untrusted Python: a program and its tests, in a process that can only compute, for a limited time.

    parent ── guard.py ──────────execve──▶ INSIDE: program, then tests, then the nonce
       └── result pipe ◀──────────────────────────────────────────────────────┘

A run has passed if and only if the nonce comes back. It is written after the last test by a call that no frame, name or open
file of the candidate leads to, so that an early exit (``os._exit(0)``, ``sys.exit``) or patched builtins do not count as a pass.
The candidate's own interpreter still compares its values: an object equal to everything passes tests that only compare.

``docs/lm_eval.md`` lists the guarantees. Without Landlock and seccomp nothing runs unless ``confined=False``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unmask.tasks.sandbox import guard as guard_script

Status = Literal["passed", "failed", "timeout", "memory", "files"]
GUARD = Path(guard_script.__file__)
SHOWN = 2000
"""Characters of an error that are kept."""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")

# The code of the confined interpreter. The iterator of steps never has a name, so no frame leads to the nonce in it, and the
# audit hook refuses the calls that would find it without one.
INSIDE = """
import functools, json, operator, os, sys

def prepare():
    parts = []
    while part := os.read(0, 65536):
        parts.append(part)
    payload = json.loads(b"".join(parts))
    names = {"__name__": "__main__"}
    steps = [functools.partial(exec, compile(payload[key], f"<{key}>", "exec"), names) for key in ("program", "tests")]
    return iter([*steps, functools.partial(os.write, int(sys.argv[1]), payload["nonce"].encode())])

def watch(event, arguments):
    found = event in ("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames", "code.__new__")
    native = event == "import" and arguments[0] in ("ctypes", "_ctypes", "_testcapi", "_testinternalcapi", "_xxsubinterpreters")
    if found or native or event == "sys._current_exceptions" or event.startswith("ctypes."):
        raise RuntimeError(f"refused by the sandbox: {arguments[0] if native else event}")

def emit_error(error, write=os.write, report=int(sys.argv[1]), memory=MemoryError):
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = "an error that cannot be written"
    write(report, (f"{'memory' if isinstance(error, memory) else 'failed'}:{text[:2000]}").encode("utf-8", "replace"))

sys.addaudithook(watch)
leave = os._exit
try:
    list(map(operator.call, prepare()))
    leave(0)
except BaseException as error:
    emit_error(error)
leave(1)
"""


@dataclass(frozen=True)
class Limits:
    """``seconds`` of processor time, ``wall`` by the clock; bytes of address space, of a file and of all files; how many files."""

    seconds: float = 10.0
    wall: float = 30.0
    memory: int = 2**30
    file: int = 2**20
    folder: int = 2**24
    files: int = 256

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number above 0, got {value}")


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``error`` is the program's own message, cut at 2,000 characters: text from an untrusted source."""

    status: Status
    error: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.status == "passed"


@functools.cache
def find_missing_protection() -> str:
    """What this machine lacks to confine a process; the empty string if nothing."""
    if not sys.platform.startswith("linux"):
        return f"Linux (this is {sys.platform})"
    if platform.machine() not in guard_script.NUMBERS:
        return f"a system call table for {platform.machine()}"
    import ctypes

    if not guard_script.landlock_version(ctypes.CDLL(None, use_errno=True)):
        return "Landlock (Linux 5.13 or later, with landlock among its security modules)"
    return "" if Path("/proc/sys/kernel/seccomp/actions_avail").exists() else "seccomp filters"


def run_python(program: str, tests: str, limits: Limits = Limits(), confined: bool = True) -> Outcome:  # noqa: B008
    """Run ``program`` and then ``tests`` in the same names; passed if both end without an exception, within the limits.

    They can import the standard library only and write to a temporary folder only. ``confined=False`` keeps the limits, the empty
    environment and the temporary working directory, and nothing else: for machines without Landlock, and code that is trusted.
    """
    if confined and (missing := find_missing_protection()):
        raise ValueError(
            f"cannot confine untrusted code here: it needs {missing}; score the stored answers on another machine, "
            "or allow the code to run unconfined"
        )
    folder = tempfile.mkdtemp(prefix="unmask-sandbox-")
    began = time.monotonic()
    try:
        nonce, token = secrets.token_hex(32), secrets.token_hex(16)
        ours, theirs = os.pipe()
        guard = _start(folder, theirs, token, limits, confined)
        try:
            payload = json.dumps({"program": program, "tests": tests, "nonce": nonce}).encode()
            ended = _wait(guard, payload, folder, limits)
            os.set_blocking(ours, False)
            report = b""
            with contextlib.suppress(BlockingIOError):
                report = os.read(ours, 65536)
        finally:
            _end(guard)
            os.close(ours)
        text = report.decode("utf-8", "replace")
        if text.startswith(token):
            raise ValueError(f"cannot confine untrusted code here: {text.removeprefix(token)}")
        status, error = _judge(text, nonce, ended, guard.returncode)
        return Outcome(status, error[:SHOWN], time.monotonic() - began)
    finally:
        _remove(folder)


def _start(folder: str, report: int, token: str, limits: Limits, confined: bool) -> subprocess.Popen[bytes]:
    python = os.path.realpath(sys.executable)
    flags = ["-P", "-s", "-S", "-B", "-X", "utf8"]
    payload = {
        "confined": confined,
        "parent": os.getpid(),
        "report": report,
        "token": token,
        "folder": folder,
        "readable": [python, *_interpreter(), *LIBRARIES],
        "python": python,
        "words": [python, *flags, "-c", INSIDE, str(report)],
        # Sets of strings are walked in the order of their hashes: the same program must score the same twice.
        "environment": {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
        "limits": {
            "RLIMIT_CPU": math.ceil(limits.seconds),
            "RLIMIT_AS": limits.memory,
            "RLIMIT_FSIZE": limits.file,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_CORE": 0,
        },
    }
    try:
        return subprocess.Popen(
            [python, *flags, str(GUARD), json.dumps(payload)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(report,),
            env=payload["environment"],
            start_new_session=True,
        )
    finally:
        os.close(report)


def _interpreter() -> list[str]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    library = sysconfig.get_config_var("LIBDIR")
    return sorted({os.path.realpath(path) for path in (*paths, library) if path})


def _wait(guard: subprocess.Popen[bytes], payload: bytes, folder: str, limits: Limits) -> Status | None:
    """Why the run was killed; None if it ended by itself."""
    deadline = time.monotonic() + limits.wall
    assert guard.stdin is not None
    os.set_blocking(guard.stdin.fileno(), False)
    while True:
        if payload:
            try:
                payload = payload[os.write(guard.stdin.fileno(), payload) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                payload = b""
            if not payload:
                guard.stdin.close()
        try:
            guard.wait(0.002 if payload else 0.05)
            return None
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                return "timeout"
            if _too_full(folder, limits):
                return "files"


def _too_full(folder: str, limits: Limits) -> bool:
    count = total = 0
    for place, folders, files in os.walk(folder):
        count += len(folders) + len(files)
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
        if count > limits.files or total > limits.folder:
            return True
    return False


def _end(guard: subprocess.Popen[bytes]) -> None:
    """Kill the process group: the guard and, unconfined, the processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(guard.pid, signal.SIGKILL)
    guard.wait()
    if guard.stdin is not None and not guard.stdin.closed:
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()


def _judge(report: str, nonce: str, ended: Status | None, code: int) -> tuple[Status, str]:
    if ended is not None:
        reasons = {"timeout": "it took too long", "files": "it wrote too much"}
        return ended, reasons[ended]
    if secrets.compare_digest(report[-len(nonce) :].encode(), nonce.encode()):
        return "passed", ""
    if code == -signal.SIGXCPU or code == -signal.SIGKILL:
        return "timeout", "it took too long"
    if code == -signal.SIGXFSZ:
        return "files", "it wrote too much"
    kind, _, reason = report.partition(":")
    if kind == "memory":
        return "memory", reason
    if kind == "failed":
        return "failed", reason
    return "failed", f"the tests did not run to their end (exit code {code})"


def _remove(folder: str) -> None:
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):  # a tree deeper than Python's stack
        subprocess.run(["rm", "-rf", "--", folder], check=False, capture_output=True)
