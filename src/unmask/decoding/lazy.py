"""Attributes that are computed when they are read for the first time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):
    """``functools.cached_property`` without the lock that it has in Python 3.11, which ``torch.compile`` cannot trace."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = self.compute(instance)
        object.__setattr__(instance, self.name, value)  # found first from now on, also in a frozen dataclass
        return value
