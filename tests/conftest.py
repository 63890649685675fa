"""Every test runs with the shapes and types of `unmask` checked: the hook precedes the first import."""

import inspect
import signal
from collections.abc import Callable
from typing import Any

import numba
import torch
from jaxtyping import install_import_hook

torch.set_num_threads(1)


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
install_import_hook("unmask", "beartype.beartype")

# Whatever starts the tests in the background may have them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)
