"""Read files that a command line names: a device without an end must not fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

LARGEST = 2**28
"""Bytes of a file that is read at once: more than any preset, trace, evaluation or list of prompts has."""
LONGEST_LINE = 2**22
"""Characters of a line of a table."""


def read_bounded(path: Path) -> bytes:
    with open(path, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST // 2**20} MB: is it the right file?")
    return content


def read_bounded_text(path: Path) -> str:
    """Of UTF-8, with every end of a line as a line feed."""
    return read_bounded(path).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def bounded_lines(file: TextIO, path: Path) -> Iterator[str]:
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise ValueError(f"{path} has a line of more than {LONGEST_LINE:,} characters: is it a text file?")
        yield line
