"""From the words of a command line to a call: one-line errors, exit codes, signals. Knows nothing of what the commands do.

Exit codes: 0; 2 for bad input (one line on stderr says what was expected); 130 and 143 when interrupted or terminated.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

import torch
import tyro
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from unmask.runs.names import did_you_mean

Command = Callable[..., None]
PIPE_WIDTH = 132  # a pipe has no width of its own, and a table that wraps is hard to read or to search

# Messages hold brackets, [training] or [52.9, 97.8], which are not markup.
FIRST = os.environ.get("RANK", "0") == "0"  # of several processes under accelerate launch, one talks
console = Console(markup=False, emoji=False, highlight=False, quiet=not FIRST)
errors = Console(stderr=True, markup=False, emoji=False, highlight=False)


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where a Ctrl-C would be: what a command cleans up for one it cleans up for the other."""


def run(commands: Mapping[str, Command], prog: str, description: str) -> None:
    """Run the command that ``sys.argv`` names. Tyro makes its options from the function's signature and docstring."""
    set_threads()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows "?" instead of failing
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        _parse(commands, prog, description, sys.argv[1:])()
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has left. The interpreter must not try to flush the rest on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Terminated:
        _leave(prog, f"terminated{_way_on(commands)}", 143)
    except KeyboardInterrupt:
        _leave(prog, f"interrupted{_way_on(commands)}", 130)
    except ValueError as error:
        _leave(prog, str(error), 2)
    except OSError as error:
        reason = error.strerror or str(error)
        _leave(prog, reason if error.filename is None else f"{reason}: {error.filename}", 2)
    except MemoryError as error:
        _leave(prog, f"out of memory ({error}): ask for less at a time", 2)
    except RuntimeError as error:
        if not _out_of_memory(error):
            raise
        _leave(prog, f"out of memory ({str(error).splitlines()[0]}): ask for less at a time", 2)
    finally:
        signal.signal(signal.SIGTERM, before)


def require_writable(path: Path, own: str | None = None) -> None:
    """Before minutes of work, not after. With ``own``, a file that exists is replaced only if its beginning holds that text."""
    if path.exists() and not path.is_file():
        raise ValueError(f"cannot write {path}: it is not a file")
    if own is not None and path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            if own.encode() not in file.read(1000):
                raise ValueError(
                    f"{path} exists and was not written by this command: name another file, or remove it first"
                )
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None


def require_new_folder(path: Path) -> None:
    """A folder of results is new or empty: nothing is overwritten, and nothing old stands among them."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"expected {path} to be absent or an empty folder; name another, or remove it first")
    above = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write {path}: {above} is not a folder that may be written to")


@contextlib.contextmanager
def moving_picture(screen: Console, shown: RenderableType, wanted: bool = True) -> Iterator[Live | None]:
    """``shown``, drawn again in place while it changes, on a terminal that can do that. None elsewhere: a pipe stays clean."""
    if not wanted or not screen.is_terminal or screen.is_dumb_terminal:
        yield None
        return
    with Live(shown, console=screen, transient=True, refresh_per_second=12) as picture:
        yield picture


def progress_bar(description: str, unit: str) -> Progress:
    """On stderr, and only on a terminal: a log wants lines, and a run's metrics are in its folder."""
    return Progress(
        TextColumn(description),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=errors,
        disable=not (errors.is_terminal and FIRST),
    )


def _way_on(commands: Mapping[str, Command]) -> str:
    """What to say of a command that was stopped: some can be resumed."""
    command = commands.get(sys.argv[1]) if len(sys.argv) > 1 else None
    resumes = command is not None and "resume" in inspect.signature(command).parameters
    return f"; {sys.argv[1]} goes on with --resume" if resumes else ""


def set_threads() -> None:
    """As many threads as this process may use cores, unless the environment says otherwise."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _parse(
    commands: Mapping[str, Command], prog: str, description: str, words: Sequence[str]
) -> functools.partial[None]:
    refuse_unknown(commands, prog, words)
    heard = io.StringIO()
    try:
        with contextlib.redirect_stderr(heard):
            return tyro.extras.subcommand_cli_from_dict(
                {name: _later(command, whole=name == words[0]) for name, command in commands.items()},
                prog=prog,
                description=description,
                args=words,
                config=(tyro.conf.PositionalMetavarFromFieldName,),
            )
    except SystemExit as end:
        if end.code != 2:
            sys.stderr.write(heard.getvalue())
            raise
    raise ValueError(f"{_reason(heard.getvalue())} (see {prog} {words[0]} --help)")


def _later(command: Command, whole: bool) -> Callable[..., functools.partial[None]]:
    """The command with its options bound, not yet run. The list of all commands shows the first sentence of each."""

    @functools.wraps(command)
    def bind(*args: Any, **options: Any) -> functools.partial[None]:
        return functools.partial(command, *args, **options)

    if not whole:
        bind.__doc__ = re.split(r"(?<=\.)\s", command.__doc__ or "")[0]
    return bind


def refuse_unknown(commands: Mapping[str, Command], prog: str, words: Sequence[str]) -> None:
    """Names that nobody knows, each with the nearest one that somebody does."""
    if not words:
        raise ValueError(f"expected a command: {', '.join(commands)} (see {prog} --help)")
    if words[0] in ("-h", "--help"):
        return
    if words[0] not in commands:
        near = did_you_mean(words[0], commands)
        raise ValueError(f"no command {words[0]!r}: expected one of {', '.join(commands)}{near}")
    parameters = inspect.signature(commands[words[0]]).parameters.values()
    known = [f"--{p.name.replace('_', '-')}" for p in parameters if p.kind is not p.POSITIONAL_ONLY]
    flags = [f"--no-{p.name.replace('_', '-')}" for p in parameters if isinstance(p.default, bool)]
    for word in words[1:]:
        option = word.partition("=")[0].replace("_", "-")
        if option.startswith("--") and option not in {"--help", *known, *flags}:
            near = did_you_mean(option, [*known, *flags])
            raise ValueError(f"{prog} {words[0]} has no option {option}{near} (see {prog} {words[0]} --help)")


def _reason(box: str) -> str:
    """What stands in tyro's box (or, without Unicode, under its title) before the rule that precedes the hints, as one line."""
    content: list[str] = []
    for line in (line.strip("│|╭╰╮╯ ") for line in box.splitlines()[1:]):
        if line and not line.strip("─-"):
            if content:
                break
        elif line:
            content.append(line)
    return " ".join(content) or "this command line cannot be read"


def _out_of_memory(error: RuntimeError) -> bool:
    """Only devices have an exception of their own for it in torch; the CPU's allocator says it in words."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _terminate(_signal: int, _frame: Any) -> NoReturn:
    raise Terminated


def _leave(prog: str, message: str, code: int) -> NoReturn:
    line = " ".join(message.split())
    errors.print(f"{prog}: {line}", style="red" if code == 2 else "yellow", soft_wrap=True)
    sys.exit(code)
