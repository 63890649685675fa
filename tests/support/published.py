"""Published code that environment variables name, loaded to run beside ours. It is never part of this repository."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from unmask_studies.bench.loops import PUBLISHED


def load_package(variable: str, *parts: str) -> dict[str, Any]:
    """The modules of a folder, as a package of their own: they import one another."""
    where = _named(variable, "folder with published modelling code")
    pytest.importorskip("transformers", reason="the published code imports transformers")
    sys.modules.setdefault("einops", types.SimpleNamespace(rearrange=None))  # pyright: ignore
    package = ModuleType(variable.lower())
    package.__path__ = [str(where)]
    sys.modules[package.__name__] = package
    found = {}
    for part in parts:
        spec = importlib.util.spec_from_file_location(f"{package.__name__}.{part}", where / f"{part}.py")
        assert spec and spec.loader
        found[part] = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[part])
    return found


def load_loop(variable: str, changes: dict[str, str] | None = None) -> ModuleType:
    """The file of a decoding loop, or the one of a checkout, with ``changes`` of its source."""
    places, _ = PUBLISHED[variable]
    where = _named(variable, f"{places[0]}, nor a checkout that has it")
    file = where if where.is_file() else next(where / place for place in places if (where / place).is_file())
    source = file.read_text()
    for theirs, ours in (changes or {}).items():
        assert theirs in source
        source = source.replace(theirs, ours)
    module = ModuleType(f"{variable.lower()}_{file.stem}")
    sys.modules[module.__name__] = module  # where its dataclasses look for themselves
    exec(compile(source, file, "exec"), module.__dict__)
    return module


def _named(variable: str, what: str) -> Path:
    where = os.environ.get(variable)
    if not where:
        pytest.skip(f"{variable} names no {what}")
    return Path(where)
