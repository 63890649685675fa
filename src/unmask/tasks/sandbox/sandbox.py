"""Run untrusted Python: a program and its tests, in a process that can do nothing but compute, for a while.

    parent ── sandbox_guard.py ──execve──▶ INSIDE: program, then tests, then the nonce
       └── result pipe ◀──────────────────────────────────────────────────────┘

A run has passed if and only if the nonce comes back. It is written after the last test by a call that no frame, name or open
file of the candidate leads to, so that leaving early (``os._exit(0)``, ``sys.exit``) or patching builtins is not a pass. A
candidate's values are compared by its own interpreter all the same: one that returns an object equal to everything passes
tests that only compare.

``docs/lm_eval.md`` says what is guaranteed where. Without Landlock and seccomp nothing is run unless ``confined=False`` asks
for it.
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

from unmask.tasks.sandbox import guard as sandbox_guard

Status = Literal["passed", "failed", "timeout", "memory", "files"]
GUARD = Path(sandbox_guard.__file__)
SHOWN = 2000
"""Characters of an error that are kept."""
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")

# What becomes of the interpreter once it is confined. The iterator of steps never has a name, so no frame leads to the nonce
# in it, and the hook refuses what would find it without one.
INSIDE = """
import functools, json, operator, os, sys

def prepare():
    parts = []
    while part := os.read(0, 65536):
        parts.append(part)
    told = json.loads(b"".join(parts))
    names = {"__name__": "__main__"}
    steps = [functools.partial(exec, compile(told[key], f"<{key}>", "exec"), names) for key in ("program", "tests")]
    return iter([*steps, functools.partial(os.write, int(sys.argv[1]), told["nonce"].encode())])

def watch(event, arguments):
    found = event in ("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames", "code.__new__")
    native = event == "import" and arguments[0] in ("ctypes", "_ctypes", "_testcapi", "_testinternalcapi", "_xxsubinterpreters")
    if found or native or event == "sys._current_exceptions" or event.startswith("ctypes."):
        raise RuntimeError(f"refused by the sandbox: {arguments[0] if native else event}")

def told_of(error, write=os.write, report=int(sys.argv[1]), memory=MemoryError):
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
    told_of(error)
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
    """How a run ended. ``error`` is what the program said of it, cut off at 2,000 characters: text from an untrusted source."""

    status: Status
    error: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.status == "passed"


@functools.cache
def missing() -> str:
    """What this machine lacks to confine a process; empty if nothing."""
    if not sys.platform.startswith("linux"):
        return f"Linux (this is {sys.platform})"
    if platform.machine() not in sandbox_guard.NUMBERS:
        return f"a system call table for {platform.machine()}"
    import ctypes

    if not sandbox_guard.landlock_version(ctypes.CDLL(None, use_errno=True)):
        return "Landlock (Linux 5.13 or later, with landlock among its security modules)"
    return "" if Path("/proc/sys/kernel/seccomp/actions_avail").exists() else "seccomp filters"


def run_python(program: str, tests: str, limits: Limits = Limits(), confined: bool = True) -> Outcome:  # noqa: B008
    """Run ``program`` and then ``tests`` in the same names; passed if both end without an exception, within the limits.

    The standard library is all they can import, a folder that is thrown away all they can write to. ``confined=False`` leaves
    only the limits, the empty environment and the folder as working directory: for machines that cannot do better, and code
    that one trusts.
    """
    if confined and missing():
        raise ValueError(
            f"cannot confine untrusted code here: it needs {missing()}; score the stored answers on another machine, "
            "or allow the code to run unconfined"
        )
    folder = tempfile.mkdtemp(prefix="unmask-sandbox-")
    began = time.monotonic()
    try:
        nonce, token = secrets.token_hex(32), secrets.token_hex(16)
        ours, theirs = os.pipe()
        guard = _start(folder, theirs, token, limits, confined)
        try:
            told = json.dumps({"program": program, "tests": tests, "nonce": nonce}).encode()
            ended = _wait(guard, told, folder, limits)
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
        status, error = _judged(text, nonce, ended, guard.returncode)
        return Outcome(status, error[:SHOWN], time.monotonic() - began)
    finally:
        _remove(folder)


def _start(folder: str, report: int, token: str, limits: Limits, confined: bool) -> subprocess.Popen[bytes]:
    python = os.path.realpath(sys.executable)
    flags = ["-P", "-s", "-S", "-B", "-X", "utf8"]
    told = {
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
            [python, *flags, str(GUARD), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(report,),
            env=told["environment"],
            start_new_session=True,
        )
    finally:
        os.close(report)


def _interpreter() -> list[str]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    library = sysconfig.get_config_var("LIBDIR")
    return sorted({os.path.realpath(path) for path in (*paths, library) if path})


def _wait(guard: subprocess.Popen[bytes], told: bytes, folder: str, limits: Limits) -> Status | None:
    """Why the run was ended, None if it ended itself."""
    deadline = time.monotonic() + limits.wall
    assert guard.stdin is not None
    os.set_blocking(guard.stdin.fileno(), False)
    while True:
        if told:
            try:
                told = told[os.write(guard.stdin.fileno(), told) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                told = b""
            if not told:
                guard.stdin.close()
        try:
            guard.wait(0.002 if told else 0.05)
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
    """The group is the guard and, unconfined, whatever it started and did not put elsewhere."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(guard.pid, signal.SIGKILL)
    guard.wait()
    if guard.stdin is not None and not guard.stdin.closed:
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()


def _judged(report: str, nonce: str, ended: Status | None, code: int) -> tuple[Status, str]:
    if ended is not None:
        said = {"timeout": "it took too long", "files": "it wrote too much"}
        return ended, said[ended]
    if secrets.compare_digest(report[-len(nonce) :].encode(), nonce.encode()):
        return "passed", ""
    if code == -signal.SIGXCPU or code == -signal.SIGKILL:
        return "timeout", "it took too long"
    if code == -signal.SIGXFSZ:
        return "files", "it wrote too much"
    kind, _, said = report.partition(":")
    if kind == "memory":
        return "memory", said
    if kind == "failed":
        return "failed", said
    return "failed", f"the tests did not run to their end (exit code {code})"


def _remove(folder: str) -> None:
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):  # a tree deeper than Python's stack
        subprocess.run(["rm", "-rf", "--", folder], check=False, capture_output=True)
