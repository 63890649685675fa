"""Names to things: entry points by group, ``name:option=value`` specifications, the nearest known name for an error message.

Everything that can be chosen by name (schedulers, paces, denoiser families, tasks, commands) is an entry point of a distribution,
this one's included. A plug-in adds one in its own ``pyproject.toml`` and changes nothing here::

    [project.entry-points."unmask.schedulers"]
    zigzag = "my_package:zigzag"
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any


class EntryPoints(Mapping[str, Any]):
    """The objects that installed distributions register under a group. Each is imported when it is first looked up."""

    def __init__(self, group: str, first: Sequence[str] = ()) -> None:
        self.group = group
        self.first = first
        self._loaded: dict[str, Any] = {}

    @cached_property
    def declared(self) -> dict[str, EntryPoint]:
        """Name → entry point, not imported; the names in ``first`` in their order, then built-in ones, then plug-ins."""
        found = sorted(entry_points(group=self.group), key=lambda point: not point.value.startswith("unmask"))
        named: dict[str, EntryPoint] = {}
        for point in found:
            named.setdefault(point.name, point)
        return {name: named[name] for name in (*(name for name in self.first if name in named), *named)}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = self.declared[name].load()
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest of the known names, if one is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def build(spec: str, table: Mapping[str, Callable[..., Any]], kind: str) -> Any:
    """What ``spec`` names, with its options: ``top_k_random:k=3``.

    An entry of ``table`` is the thing itself, a function whose first parameter is ``view``, or a function of options that
    returns it.
    """
    name, *options = spec.strip().split(":")
    if name not in table:
        raise ValueError(f"no {kind} {name!r}: expected one of {', '.join(table)}{did_you_mean(name, table)}")
    parameters = inspect.signature(table[name]).parameters
    takes_view = next(iter(parameters), None) == "view"
    # What is neither a number nor a name, such as a table of frequencies, can only be given in Python.
    known = {
        parameter.name: parameter.default
        for parameter in parameters.values()
        if isinstance(parameter.default, int | float | str) and not takes_view
    }
    given: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key not in known:
            takes = ", ".join(f"{key}={value}" for key, value in known.items()) or "no options"
            near = did_you_mean(key, known)
            raise ValueError(f"{kind} {name!r} has no option {option!r}: it takes {takes}{near}")
        if key in given:
            raise ValueError(f"{kind} {name!r} has its option {key} twice: give it once")
        text = isinstance(known[key], str)
        given[key] = value if text else _number(value, type(known[key]), f"{kind} {name!r}: {key}")
    return table[name] if takes_view else table[name](**given)


def _number(text: str, kind: type, what: str) -> int | float:
    """A count (at least 1) or a number (at least 0) that float32 holds: no option of a scheduler or a pace is anything else."""
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    least, most = (1, 2**31 - 1) if kind is int else (0, 1e30)
    if not least <= value <= most:
        sort, limit = "whole number" if kind is int else "number", f" and at most {most:g}" if value > most else ""
        raise ValueError(f"{what} must be a {sort} of at least {least}{limit}, got {text[:40]!r}")
    return value
