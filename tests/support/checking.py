"""Shapes and types of `unmask` checked at run time, at a price that a whole suite can pay.

jaxtyping's import hook decorates every function when its module is imported, closures each time they are defined, and
checks each call twice: most of the time of a test that calls something small very often. What is wrong with a function's
shapes shows in its first calls, so a function is decorated when it is called, and its calls are sampled.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

import jaxtyping
from jaxtyping import install_import_hook

CHECKED = frozenset({1, 2, *(4**n for n in range(1, 16))})
"""Which calls of a function are checked in each file of tests: the first two, and those whose number is a power of four."""

_calls: Counter[CodeType] = Counter()
_file: Path | None = None
_paused = False
_decorate = jaxtyping.jaxtyped


def begin_test(file: Path) -> None:
    """Check the first calls of every function anew where another file of tests begins: each has its own denoisers and shapes."""
    global _file
    if file != _file:
        _file = file
        _calls.clear()


def pause(paused: bool) -> bool:
    """Check nothing, or check again. Returns what was so before."""
    global _paused
    before, _paused = _paused, paused
    jaxtyping.config.update("jaxtyping_disable", paused)  # for classes, which are decorated when they are imported
    return before


def _sample(function: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    code = function.__code__  # shared by all closures of one definition
    checked: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal checked
        if _paused:
            return function(*args, **kwargs)
        _calls[code] = count = _calls[code] + 1
        if count not in CHECKED:
            return function(*args, **kwargs)
        if checked is None:
            checked = _decorate(function, typechecker=typechecker)
        return checked(*args, **kwargs)

    return call


def _jaxtyped(target: Any = None, *, typechecker: Any) -> Any:
    """Stands for ``jaxtyping.jaxtyped`` in the modules that the import hook rewrites."""
    if target is None:
        return functools.partial(_jaxtyped, typechecker=typechecker)
    return _sample(target, typechecker) if inspect.isfunction(target) else _decorate(target, typechecker=typechecker)


def check_calls(*packages: str) -> None:
    """Call this before the first import of the packages."""
    jaxtyping.jaxtyped = _jaxtyped
    install_import_hook(list(packages), "beartype.beartype")
