"""The commands that meet files, folders and disks, run in this process: exit code, stdout and stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from unmask.cli_decode import decode
from unmask.cli_evaluate import evaluate_command
from unmask.cli_learn import finetune_command, pretrain_command, train
from unmask.cli_plan import plan_command
from unmask.command_line import run

COMMANDS: dict[str, Callable[..., None]] = {
    "pretrain": pretrain_command,
    "train": train,
    "finetune": finetune_command,
    "evaluate": evaluate_command,
    "decode": decode,
    "plan": plan_command,
}
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """``command("train", "--out", "x")`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("COLUMNS", raising=False)

    return lambda *words: called(COMMANDS, words, monkeypatch, capsys)


def called(
    commands: Mapping[str, Callable[..., None]],
    words: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> tuple[int, str, str]:
    """``unmask WORDS`` with these commands, as a shell would see it."""
    monkeypatch.setattr(sys, "argv", ["unmask", *words])
    code = 0
    try:
        run(commands, "unmask", "")
    except SystemExit as end:
        code = int(end.code or 0)
    heard = capsys.readouterr()
    return code, heard.out, heard.err
