"""Every test runs with the shapes and types of `unmask` checked: the hook precedes the first import."""

import functools
import gc
import inspect
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import pytest
import torch
import torch.utils.collect_env
import tyro._docstrings

from support.checking import begin_test, check_calls, pause

torch.set_num_threads(1)
gc.disable()  # until everything is imported: all that is built then stays


def _compile_unchecked(decorator: Callable[..., Any]) -> Callable[..., Any]:
    """Numba cannot compile what the hook wraps around each function, so give it the function itself."""

    def original(function: Callable[..., Any]) -> Callable[..., Any]:
        return inspect.unwrap(function) if function.__module__.startswith("unmask") else function

    def decorate(*args: Any, **kwargs: Any) -> Any:
        if args and inspect.isfunction(args[0]):
            return decorator(original(args[0]), *args[1:], **kwargs)
        compiler = decorator(*args, **kwargs)
        return lambda function: compiler(original(function))

    return decorate


numba.njit = _compile_unchecked(numba.njit)
numba.jit = _compile_unchecked(numba.jit)
check_calls("unmask", "unmask_studies")
# lm-eval has the machine described after every evaluation, by pip and a dozen other programs, and nothing here reads it.
torch.utils.collect_env.get_pretty_env_info = lambda: "a test"

# tyro reads the source of a configuration's class for its help at every parse, and here there are hundreds of parses.
tyro._docstrings._ClassTokenization.make = functools.cache(tyro._docstrings._ClassTokenization.make)  # pyright: ignore

# Whatever starts the tests in the background may have them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What imports have built is never garbage: the collector need not visit it again after every few tests."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    begin_test(item.path)


@pytest.fixture(scope="module")
def unchecked() -> Iterator[None]:
    """Without the checks of shapes, which take as long as the rest: for whole commands, whose parts are tested with them."""
    before = pause(True)
    yield
    pause(before)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """``command("train", "--out", "x")`` in an empty folder: the exit code, stdout and stderr."""
    from support.commands import call

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("COLUMNS", raising=False)  # test runners set it, and lines would wrap
    return functools.partial(call, monkeypatch, capsys)
