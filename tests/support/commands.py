"""``unmask WORDS`` run in this process, as a shell would see it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import pytest

from unmask.cli.main import main

Call = Callable[..., tuple[int, str, str]]


def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, stdin: str | None = None
) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of ``unmask WORDS``."""
    monkeypatch.setattr(sys, "argv", ["unmask", *words])
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err
