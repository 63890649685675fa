"""Work in several processes that form one process group."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState

PATIENCE = 240.0


def together(count: int, work: Callable[[int], None], log: Path) -> tuple[list[int], float]:
    """``work(rank)`` in so many processes: their exit codes (minus the signal that ended one), and how long they took."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began, children = time.monotonic(), []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            _child(rank, count, port, work, log.with_suffix(f".{rank}"))
        children.append(child)
    codes: dict[int, int] = {}
    while len(codes) < count:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended in children:
            codes[ended] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > began + PATIENCE:
            for child in set(children) - codes.keys():
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            pytest.fail(f"processes hang: {[codes.get(child) for child in children]}")
        else:
            time.sleep(0.02)
    return [codes[child] for child in children], time.monotonic() - began


def kill_tree(launched: subprocess.Popen[Any]) -> None:
    """End a launcher and all that it has started, each with SIGKILL: its workers have sessions of their own and would go on."""
    tree = [psutil.Process(launched.pid), *psutil.Process(launched.pid).children(recursive=True)]
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree[1:], timeout=PATIENCE)
    launched.wait()


def _child(rank: int, count: int, port: int, work: Callable[[int], None], log: Path) -> None:
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = open(log, "a", buffering=1)  # noqa: SIM115  (the process ends with it)
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "ACCELERATE_USE_CPU": "true",
        }
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()  # what this process inherited says that it is alone
        work(rank)
        code = 0
    except ValueError as error:
        print(f"unmask: {error}")
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
