"""Run untrusted Python: a program and its tests, in processes that can only compute, for a limited time.

                ┌─ guard.py ──execve──▶ inside.py, answer: the program
    parent ─────┤                          ▲ calls │ plain data
                └─ guard.py ──execve──▶ inside.py, examine: the tests ──▶ the verdict, to the parent

The tests run in an interpreter that never holds the program's code, and compare values of their own making. A program that exits
early, traces, patches, reads memory or returns an object equal to everything changes nothing outside its own process.

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
import select
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Literal, NoReturn

from unmask.tasks.sandbox import guard as guard_script
from unmask.tasks.sandbox import inside

Status = Literal["passed", "failed", "timeout", "memory", "files"]
GUARD, INSIDE = Path(guard_script.__file__), Path(inside.__file__)
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
PACKAGES = ("site-packages", "dist-packages", "ensurepip")
LONGEST_REPORT = 8192
"""Bytes of a report that are kept."""
LOOK = 0.02
"""Seconds between two looks at the clock and at the folder."""


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


def run_python(
    program: str,
    tests: str,
    limits: Limits = Limits(),  # noqa: B008
    confined: bool = True,
    names: Sequence[str] | None = None,
) -> Outcome:
    """Run ``program``, then ``tests`` against it; passed if both end without an exception, within the limits.

    The tests see the program's names: what they call is called in the program's process, with plain data for arguments (numbers,
    text, containers, and objects that came from there), and what it returns is rebuilt as plain data. ``names`` are the only ones
    they see; without it all but those of Python's own functions and modules. Both can import the standard library only and write to
    a temporary folder only. ``confined=False`` keeps the limits, the empty environment, the temporary working directory and the two
    processes, and nothing else: for machines without Landlock, and code that is trusted.
    """
    if confined and (missing := find_missing_protection()):
        raise ValueError(
            f"cannot confine untrusted code here: it needs {missing}; score the stored answers on another machine, "
            "or allow the code to run unconfined"
        )
    began = time.monotonic()
    with ExitStack() as stack:
        (requests, ask), (replies, answer), (ours, report) = (_pipe(stack) for _ in range(3))
        folders = [tempfile.mkdtemp(prefix="unmask-sandbox-") for _ in range(2)]
        for folder in folders:
            stack.callback(_remove, folder)
        token = secrets.token_hex(16)
        start = partial(_start, token=token, limits=limits, confined=confined, report=report.fileno())
        candidate = start(folders[0], program, "answer", [requests.fileno(), answer.fileno()])
        stack.callback(_end, candidate)
        given = json.dumps({"tests": tests, "names": names})
        examiner = start(folders[1], given, "examine", [replies.fileno(), ask.fileno(), report.fileno()])
        stack.callback(_end, examiner)
        for end in (requests, ask, replies, answer, report):
            end.close()
        text, ended = _listen(ours, folders, limits, began)
        if text.startswith(token):
            raise ValueError(f"cannot confine untrusted code here: {text.removeprefix(token)}")
        _end(candidate)
        status, error = _judge(text, ended, candidate.returncode)
    return Outcome(status, error, time.monotonic() - began)


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    reading, writing = os.pipe()
    return stack.enter_context(FileIO(reading, "r")), stack.enter_context(FileIO(writing, "w"))


def _start(
    folder: str, source: str, role: str, kept: list[int], *, token: str, limits: Limits, confined: bool, report: int
) -> subprocess.Popen[bytes]:
    """One of the two processes. ``source`` is its standard input; of the parent's files it keeps ``kept``."""
    python = os.path.realpath(sys.executable)
    flags = ["-P", "-s", "-S", "-B", "-X", "utf8"]
    payload = {
        "confined": confined,
        "parent": os.getpid(),
        "report": report,
        "kept": kept,
        "token": token,
        "folder": folder,
        "readable": [python, *_readable()],
        "listed": _listed(),
        "python": python,
        "words": [python, *flags, "-c", _inside(), role, *map(str, kept)],
        # Sets of strings are walked in the order of their hashes: the same program must score the same twice.
        "environment": {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"},
        "space": {"size": limits.folder, "nr_inodes": limits.files + 1},
        "limits": {
            "RLIMIT_CPU": math.ceil(limits.seconds),
            "RLIMIT_AS": limits.memory,
            "RLIMIT_FSIZE": limits.file,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_CORE": 0,
        },
    }
    with tempfile.TemporaryFile() as given:
        given.write(source.encode("utf-8", "replace"))
        given.seek(0)
        guarded = [python, *flags, "-c", GUARD.read_text(encoding="utf-8"), json.dumps(payload)]
        return subprocess.Popen(
            guarded,
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(*kept, report),
            env=payload["environment"],
            start_new_session=True,
        )


@functools.cache
def _inside() -> str:
    return INSIDE.read_text(encoding="utf-8")


@functools.cache
def _listed() -> list[str]:
    """Folders whose names can be listed, as importing needs it, though not all in them can be read."""
    return sorted({os.path.realpath(os.path.dirname(os.__file__)), *filter(os.path.isdir, LIBRARIES)})


@functools.cache
def _readable() -> list[str]:
    """The standard library and the system's shared libraries: what lies in their folders, without installed packages."""
    found = ["/etc/ld.so.cache", "/usr/share/zoneinfo"]
    for folder in _listed():
        found += [
            entry.path for entry in os.scandir(folder) if entry.name not in PACKAGES and not _is_other(entry, folder)
        ]
    shared = sysconfig.get_config_var("LIBDIR")
    return found + [str(path) for path in Path(shared or "/").glob("libpython*")]


def _is_other(entry: os.DirEntry[str], folder: str) -> bool:
    """Whether it is another Python's folder, whose packages would be readable with it."""
    return folder in LIBRARIES and entry.name.startswith(("python", "pypy", "node_modules"))


def _listen(report: FileIO, folders: list[str], limits: Limits, began: float) -> tuple[str, Status | None]:
    """What was reported until the tests' process ended, and why it had to be ended, if it had."""
    report_text = b""
    while True:
        if select.select([report], [], [], LOOK)[0]:
            part = report.read(65536)
            report_text += part[: LONGEST_REPORT - len(report_text)]
            if not part:
                return report_text.decode("utf-8", "replace"), None
        elif time.monotonic() - began > limits.wall:
            return "", "timeout"
        elif any(_too_full(folder, limits) for folder in folders):
            return "", "files"


def _too_full(folder: str, limits: Limits) -> bool:
    """By descriptors, not by paths, which have a greatest length. A folder that cannot be read is too full."""
    count = total = 0
    try:
        for _, folders, files, place in os.fwalk(folder, onerror=_raise):
            count += len(folders) + len(files)
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    total += os.lstat(name, dir_fd=place).st_size
            if count > limits.files or total > limits.folder:
                return True
    except FileNotFoundError:  # the program removed what was being looked at
        return False
    except OSError:
        return True
    return False


def _raise(error: OSError) -> NoReturn:
    raise error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group: the guard and, unconfined, the processes that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _judge(report_text: str, ended: Status | None, code: int) -> tuple[Status, str]:
    if ended is not None:
        reasons = {"timeout": "it took too long", "files": "it wrote too much"}
        return ended, reasons[ended]
    kind, _, reason = report_text.partition(":")
    if kind == "passed":
        return "passed", ""
    if kind in ("failed", "memory", "files"):
        return kind, reason
    if kind == "ended" and code not in (-signal.SIGXCPU, -signal.SIGKILL, -signal.SIGXFSZ):
        return "failed", f"{reason} (exit code {code})"
    if code == -signal.SIGXFSZ:
        return "files", "it wrote too much"
    return "timeout", "it took too long"  # the kernel ended one of the two


def _remove(folder: str) -> None:
    """Nothing runs in it any more. What lies deep is moved up first: a path has a greatest length, a tree has none."""
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            while names := os.listdir(top):
                for name in names:
                    try:
                        os.unlink(name, dir_fd=top)
                    except (IsADirectoryError, PermissionError):
                        _lift(name, top)
        finally:
            os.close(top)
        os.rmdir(folder)


def _lift(name: str, top: int) -> None:
    """Move what is in a folder to the top, and remove it. Its owner may have no right to read it yet."""
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    try:
        for child in os.listdir(inner):
            if stat.S_ISDIR(os.lstat(child, dir_fd=inner).st_mode):
                os.chmod(child, 0o700, dir_fd=inner)  # moving a folder writes to it
            os.rename(child, secrets.token_hex(16), src_dir_fd=inner, dst_dir_fd=top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
