"""Puzzles that fill in the terminal: the output of each step on a terminal and in a pipe."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from rich.console import Console

from support.commands import call
from unmask.cli import shell as command_line
from unmask.cli import sudoku as cli_decode
from unmask.cli.main import main
from unmask.report.terminal.boards import Lane, LiveBoards
from unmask.tasks.sudoku.grid import parse
from unmask.tasks.sudoku.solver import solve

SMALL = "1200000040320000"  # of the playground: with this denoiser the learned order solves it and confidence does not
MODEL = ("--denoiser", "sudoku-4x4-imperfect")


class Screen:
    """A terminal as far as rich moves in it. ``seen`` is what stood there before each line was erased, and at the end."""

    def __init__(self, output: str) -> None:
        self.lines, self.row, self.column, self.seen = [""], 0, 0, []
        for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+|\x1b", output):
            self._take(part)
        self._look()

    def _take(self, part: str) -> None:
        if part == "\r":
            self.column = 0
        elif part == "\n":
            self.row, self.column = self.row + 1, 0
            if self.row == len(self.lines):
                self.lines.append("")
        elif part.startswith("\x1b"):
            if part.endswith("A"):
                self.row -= int(part[2:-1] or 1)
                assert self.row >= 0, "the cursor left the screen"
            elif part == "\x1b[2K":
                self._look()
                self.lines[self.row] = ""
            else:
                assert re.fullmatch(r"\x1b\[(\?25[lh]|[\d;]*m)", part), part
        else:
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + part + line[self.column + len(part) :]
            self.column += len(part)

    def _look(self) -> None:
        shown = "\n".join(line.rstrip() for line in self.lines)
        if not self.seen or self.seen[-1] != shown:
            self.seen.append(shown)


@pytest.fixture
def decode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """``decode(SMALL, width=80)``: the exit code and what came out, of a terminal of that width or, without, of a pipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(cli_decode.time, "sleep", lambda seconds: None)

    def run(
        *words: str, width: int | None = None, height: int = 40, environ: dict[str, str] | None = None
    ) -> tuple[int, str]:
        out = io.StringIO()
        monkeypatch.setattr(cli_decode, "console", command_line.console)
        if width is not None:
            screen = Console(
                file=out,
                force_terminal=True,
                width=width,
                height=height,
                markup=False,
                highlight=False,
                _environ={"TERM": "xterm-256color", "COLORTERM": "truecolor", **(environ or {})},
            )
            monkeypatch.setattr(cli_decode, "console", screen)
        code, *heard = call(monkeypatch, capsys, "decode", *words)
        return code, out.getvalue() + "".join(heard)

    return run


def boards(shown: str) -> list[str]:
    """The small boards of a picture, row by row, ``·`` where a cell is hidden; without their marks."""
    rows = [line for line in shown.splitlines() if re.fullmatch(r"[ >\d·!]+", line) and line.strip()]
    parts = [re.findall(r"(?:[ >][\d·][ !]?){2} (?:[ >][\d·][ !]?){2}", line) for line in rows]
    cells = [[re.sub(r"[ >!]", "", part) for part in line] for line in parts if line]
    return ["".join(one) for one in zip(*cells, strict=True)]


def test_boards_fill_in_the_decoded_order(decode: Callable) -> None:
    record = json.loads(decode(SMALL, *MODEL, "--json")[1])
    lanes = [(record["order"], record["answer"]), (record["compared"]["order"], record["compared"]["answer"])]
    code, out = decode(SMALL, *MODEL, width=80)
    assert code == 0
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1  # the cursor comes back
    seen = [shown for shown in Screen(out).seen if "step " in shown and " of 11;" in shown]
    pictures = {int(re.findall(r"step (\d+) of 11;", shown)[0]): shown for shown in seen}
    assert set(pictures) >= set(range(1, 12))
    truth = "".join(map(str, np.asarray(solve(parse(SMALL)))))
    for step, shown in pictures.items():
        expected = [
            "".join(answer[c] if c in order[:step] or SMALL[c] != "0" else "·" for c in range(16))
            for order, answer in lanes
        ]
        assert boards(shown) == expected, (step, shown)
        assert shown.count(">") == (2 if step else 0) + 1  # the newest of each, and the line below that explains it
        wrong = sum(answer[c] != truth[c] for order, answer in lanes for c in order[:step])
        assert shown.count("!") == wrong + 1
    assert "sas: solved" in pictures[11] and "confidence: 4 wrong since 6" in pictures[11]
    # What stays is what a pipe gets: the picture that moved is gone.
    left = [line.rstrip() for line in Screen(out).seen[-1].splitlines()]
    piped = re.sub(r"\d\.\d\d s", "", decode(SMALL, *MODEL)[1])
    assert re.sub(r"\s+", " ", re.sub(r"\d\.\d\d s", "", " ".join(left))).strip() == re.sub(r"\s+", " ", piped).strip()


def test_colours_and_no_color(decode: Callable) -> None:
    _, out = decode(SMALL, *MODEL, width=80)
    assert "38;2;60;120;230m" in out and "38;2;215;70;40m" in out
    code, out = decode(SMALL, *MODEL, width=80, environ={"NO_COLOR": "1"})
    assert code == 0 and "\x1b[?25l" in out and "38;2" not in out and ";38;5" not in out
    assert ">" in out and "!" in out


@pytest.mark.parametrize(
    ("options", "terminal"),
    [
        (("--no-live",), {"width": 80}),
        ((), {"width": 80, "environ": {"TERM": "dumb"}}),
        ((), {"width": 27}),
        ((), {"width": 80, "height": 8}),
        ((), {}),
        (("--json",), {"width": 80}),
    ],
    ids=["not wanted", "dumb", "narrow", "low", "a pipe", "JSON"],
)
def test_no_animation_without_a_capable_terminal(
    decode: Callable, options: tuple[str, ...], terminal: dict[str, Any]
) -> None:
    code, out = decode(SMALL, *MODEL, *options, **terminal)
    assert code == 0 and "\x1b[?25l" not in out and "\x1b[2K" not in out and "\x1b[1A" not in out
    assert "of 11;" not in out
    if "TERM" in terminal.get("environ", {}) or not terminal or "--json" in options:
        assert "\x1b" not in out


def test_no_animation_for_a_file_of_puzzles(decode: Callable) -> None:
    Path("two.csv").write_text(f"puzzle\n{SMALL}\n{SMALL}\n")
    assert "\x1b[?25l" not in decode("two.csv", *MODEL, width=80)[1]
    Path("one.csv").write_text(f"puzzle\n{SMALL}\n")
    assert "\x1b[?25l" in decode("one.csv", *MODEL, width=80)[1]


def test_a_line_for_every_step(decode: Callable) -> None:
    record = json.loads(decode(SMALL, *MODEL, "--json")[1])
    for terminal in ({}, {"width": 80}):
        lines = decode(SMALL, *MODEL, "--lines", **terminal)[1].splitlines()[:11]
        for k, line in enumerate(lines):
            row, column = divmod(record["order"][k], 4)
            digit = record["answer"][record["order"][k]]
            assert line.startswith(
                f"step {k + 1} of 11: sas: {digit} at row {row + 1}, column {column + 1} | confidence: "
            )
        assert [", wrong" in line for line in lines].index(True) == record["compared"]["first_wrong"]
    parallel = decode(SMALL, *MODEL, "--lines", "--steps", "3", "--scheduler", "margin")[1].splitlines()
    assert parallel[0].startswith("step 1 of 3: margin: ") and parallel[0].count(" at row ") == 4


def lane(name: str, order: tuple[int, ...]) -> Lane:
    return Lane(name, np.array([1, 2, 3, 4] * 4), order, tuple(range(len(order))))


@pytest.mark.parametrize(
    ("width", "height", "beside", "shown"),
    [(80, 40, 2, 3), (59, 40, 1, 3), (80, 16, 2, 2), (40, 12, 1, 1), (200, 12, 3, 3)],
)
def test_layout_of_boards_by_terminal_size(width: int, height: int, beside: int, shown: int) -> None:
    many = LiveBoards(np.zeros(16, np.int8), None, [lane(f"order {n} " + "x" * 40, (n, 5)) for n in range(3)])
    many.steps = 1
    screen = Console(file=io.StringIO(), width=width, height=height, _environ={})
    assert many.fits(width, height)
    with screen.capture() as captured:
        screen.print(many)
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width and len(lines) <= height
    assert max(line.count("order ") for line in lines) == beside
    assert sum(line.count("order ") for line in lines) == shown
    assert ("no room" in lines[-1]) == (shown < 3 and width >= 80)


def test_boards_without_a_truth() -> None:
    blank = LiveBoards(np.zeros(16, np.int8), None, [lane("a", (3, 0)), Lane("b", np.ones(16, np.int64), (), ())])
    assert blank.board(blank.lanes[0]).plain.startswith("a: 0 of 2\n")
    blank.steps = 2
    assert blank.board(blank.lanes[0]).plain.count("!") == 0 and blank.last == 2
    assert blank.line() == "step 2 of 2: a: 1 at row 1, column 1 | b: done"


@pytest.mark.parametrize("speed", ["0", "-1", "nan", "inf"])
def test_invalid_speed(decode: Callable, speed: str) -> None:
    code, out = decode(SMALL, *MODEL, "--speed", speed)
    assert code == 2 and "speed: expected a number" in out and out.count("\n") == 1


def _decode_in_terminal() -> NoReturn:
    code = 1
    try:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 70, 0, 0))
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            os.environ.pop(name, None)
        os.environ["TERM"] = "xterm-256color"
        sys.stdin, sys.stdout, sys.stderr = (open(file, mode, closefd=False) for file, mode in enumerate("rww"))  # noqa: SIM115
        # As it is built where the command starts, which looks at the terminal.
        command_line.console.__init__(markup=False, emoji=False, highlight=False)
        sys.argv = ["unmask", "decode", SMALL, *MODEL, "--speed", "200"]
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(code)


def test_a_real_terminal() -> None:
    """The command in a fork of this process, behind a pseudo-terminal of 70 columns."""
    child, master = pty.fork()
    if child == 0:
        _decode_in_terminal()
    heard = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        heard += part
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    output = heard.decode().replace("\r\n", "\n")
    seen = Screen(output).seen
    assert any("step 11 of 11;" in shown and "sas: solved" in shown for shown in seen)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    # Of 256 colours, or of more where an earlier test has drawn in them: rich keeps the codes of a style.
    assert re.search(r"\x1b\[[\d;]*38;[25];", output) and plain.rstrip().endswith("column 3")
