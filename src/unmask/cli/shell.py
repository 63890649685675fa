"""From the words of a command line to a running command: options, one-line errors, exit codes, signals.

A command is a frozen dataclass, registered as an entry point of ``unmask.commands``: its fields are the options, its docstring is
the help, its method ``run`` does the work. A command that starts from a preset has a class method ``from_words``, which loads the
preset and returns the dataclass with the preset's values as defaults (:func:`with_config`).

Exit codes: 0; 2 for bad input (one line on stderr says what was expected); 130 and 143 when interrupted or terminated.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from importlib.metadata import EntryPoint
from itertools import filterfalse
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Any, NoReturn, get_args, get_origin

import tyro
from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tyro import _errors as parse_errors  # structured errors: the reason why pyproject.toml bounds tyro's version
from tyro import _parsers
from tyro._arguments import flag_to_inverse
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from unmask.report.terminal.console import SafeConsole
from unmask.runs.names import EntryPoints, did_you_mean

PIPE_WIDTH = 132  # a pipe has no width of its own, and a table that wraps is hard to read or to search
LONGEST = 2000  # characters of an error: a name in it may be as long as a file
FIRST = os.environ.get("RANK", "0") == "0"  # of several processes under accelerate launch, only the first prints

# Messages hold brackets, [training] or [52.9, 97.8], which are not markup.
console = SafeConsole(markup=False, emoji=False, highlight=False, quiet=not FIRST)
errors = SafeConsole(stderr=True, markup=False, emoji=False, highlight=False)

MARKERS = (tyro.conf.PositionalMetavarFromFieldName, tyro.conf.AvoidSubcommands)
Inline = tyro.conf.arg(name="")
"""``Annotated[Config, Inline]``: the fields of a nested dataclass become options without a prefix."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where a Ctrl-C would be: what a command cleans up for one it cleans up for the other."""


class Warnings(logging.Handler):
    """Log messages where no handler is set, on stderr as errors are, and as clean."""

    def emit(self, record: logging.LogRecord) -> None:
        errors.print(self.format(record), soft_wrap=True)


def run(commands: EntryPoints, prog: str, description: str) -> None:
    """Run the command that ``sys.argv`` names. Only that command's module is imported."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows "?" instead of failing
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    logging.lastResort = Warnings(logging.WARNING)
    before, words = signal.signal(signal.SIGTERM, _terminate), sys.argv[1:]
    try:
        if words[:1] in (["-h"], ["--help"]):
            console.print(_overview(commands, prog, description), soft_wrap=True)
        elif words[:1] == ["--version"]:
            console.print(f"{prog} {importlib.metadata.version(prog)}", highlight=False)
        else:
            command = parse(commands, prog, words)
            set_threads()
            command.run()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has left. The interpreter must not try to flush the rest on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KeyboardInterrupt, ValueError, OSError, MemoryError, RuntimeError) as error:
        message, code = _describe(error)
        if message is None:
            raise
        line = " ".join(f"{prog}: {message}{_how_to_resume(commands, words) if code != 2 else ''}".split())
        shown = line if len(line) <= LONGEST else f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
        errors.print(shown, style="red" if code == 2 else "yellow", soft_wrap=True)
        sys.exit(code)
    finally:
        signal.signal(signal.SIGTERM, before)


def _describe(error: BaseException) -> tuple[str | None, int]:
    """The line that an error ends with, and the exit code; None for one that is a bug."""
    if isinstance(error, KeyboardInterrupt):
        return ("terminated", 143) if isinstance(error, Terminated) else ("interrupted", 130)
    if isinstance(error, ValueError):
        return str(error), 2
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return reason if error.filename is None else f"{reason}: {error.filename}", 2
    # Only devices have an exception of their own for it in torch; the CPU's allocator raises a RuntimeError.
    own = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if own or "can't allocate memory" in str(error):
        reason = str(error).partition("\n")[0]
        return f"out of memory{f' ({reason})' if reason else ''}: use smaller batches or sizes", 2
    return None, 1


def parse(commands: EntryPoints, prog: str, words: Sequence[str]) -> Any:
    """The command that ``words`` name, with its options set, not yet run."""
    if not words:
        raise ValueError(f"expected a command: {', '.join(commands)} (see {prog} --help)")
    name, rest = words[0], words[1:]
    if name not in commands:
        near = did_you_mean(name, commands)
        raise ValueError(f"no command {name!r}: expected one of {', '.join(commands)}{near}")
    kind = resolve(commands[name], rest)

    def refuse(event: parse_errors.ParseErrorEvent) -> NoReturn:
        raise ValueError(f"{_explain(event, name, kind, rest)} (see {prog} {name} --help)")

    with parse_errors.on_parse_error(refuse):
        return tyro.cli(kind, prog=f"{prog} {name}", args=rest, config=MARKERS, registry=REGISTRY)


def resolve(command: Any, words: Sequence[str]) -> Any:
    """The dataclass of a command's options, with the defaults of the preset that the words name."""
    return command.from_words(words) if hasattr(command, "from_words") else command


def with_config(command: Any, config: Any, marker: Any = Inline) -> Any:
    """The command with every field of ``config`` as an option, whose default is the field's value.

    Where both have a field of one name, the option is that of ``config``.
    """
    inline: list[Any] = [("config", Annotated[type(config), marker], field(default=config))]
    for own in fields(command):
        theirs = getattr(config, own.name, MISSING)
        if own.default is not MISSING and theirs is not MISSING and not is_dataclass(theirs):
            hidden = Annotated[Any, tyro.conf.Suppress, tyro.conf.arg(name=f"own-{own.name}")]
            inline.append((own.name, hidden, field(default=own.default)))
    made = make_dataclass(
        command.__name__, inline, bases=(command,), frozen=True, namespace={"__doc__": command.__doc__}
    )
    made.__module__ = (
        command.__module__
    )  # where tyro finds the source, and in it the comments that are the options' help
    return made


def find_option(words: Sequence[str], option: str) -> str | None:
    """The value of ``--option VALUE`` or ``--option=VALUE``, before the other options are known."""
    for nth, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else next(iter(words[nth + 1 :]), None)
    return None


def list_options(kind: Any) -> dict[str, Any]:
    """``--option`` → tyro's definition of it. A boolean option has two names, ``--x`` and ``--no-x``."""
    marked = tyro.conf.configure(*MARKERS)(kind)
    with REGISTRY:
        parser = _parsers.ParserSpecification.from_callable_or_type(
            marked, set(), None, set(), tyro.MISSING_NONPROP, "", "", "", support_single_arg_types=False, prog_suffix=""
        )
        found = [one.arg for one in parser.get_args_including_children()]
        shown = [arg for arg in found if not arg.is_positional() and not arg.is_suppressed()]
        named = {flag: arg for arg in shown for flag in arg.lowered.name_or_flags}
    flags = {flag: arg for flag, arg in named.items() if arg.lowered.action == "boolean_optional_action"}
    return named | {str(flag_to_inverse(flag)): arg for flag, arg in flags.items()}


UNREAD = re.compile(r"(?:valid parse for arguments|invalid literal for int\(\) with base 10|string to float): (.*)$")
"""How tyro and Python say that a value is of another type."""


def _explain(event: parse_errors.ParseErrorEvent, name: str, kind: Any, words: Sequence[str]) -> str:
    """What is wrong with a command line. An unknown option comes first: its value looks like a positional argument."""
    known = list_options(kind)
    options = (word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--"))
    if (wrong := next(filterfalse(known.__contains__, options), None)) is not None:
        return f"{name} has no option {wrong}{did_you_mean(wrong, known)}"
    if unknown := getattr(event, "tokens", None) or getattr(event, "unrecognized_tokens", None):
        return f"{name} does not expect {unknown[0]!r}"
    if isinstance(event, parse_errors.MissingArgs):
        needed = [one.arg.get_invocation_text()[1].as_str_no_ansi() for one in event.missing_arguments]
        return f"{name} needs {', '.join(needed)}"
    return _explain_value(event)


def _explain_value(event: parse_errors.ParseErrorEvent) -> str:
    """What is wrong with the value of an option."""
    argument: Any = getattr(event, "argument", None)
    place = "" if argument is None else f"{argument.display_name()}: "
    if isinstance(event, parse_errors.InvalidChoice):
        near = did_you_mean(event.value, event.choices)
        choices = ", ".join(choice or "''" for choice in event.choices)
        return f"{place}expected one of {choices}, got {event.value!r}{near}"
    if isinstance(event, parse_errors.InstantiationFailure):
        text = str(event.message)
        unread = UNREAD.search(text)
        if unread is None or argument is None:
            return place + text
        return f"{place}expected {argument.lowered.metavar}, got {unread.group(1)}"
    return f"{place}expected a value" if argument is not None else f"cannot read this command line ({event})"


def _text_or_object(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """``str | Pace``: a command line gives the name; only Python can give the object itself."""
    members = get_args(info.type)
    if str not in members or not any(getattr(member, "_is_protocol", False) for member in members):
        return None
    return PrimitiveConstructorSpec(1, "STR", lambda words: words[0], lambda value: True, lambda value: [str(value)])


def _names(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """``tuple[str, ...]``: names separated by commas or blanks."""
    if get_origin(info.type) is not tuple or get_args(info.type) != (str, ...):
        return None

    def split(words: list[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.strip() for word in words for part in word.split(",") if part.strip()))

    return PrimitiveConstructorSpec("*", "NAME,...", split, lambda value: isinstance(value, tuple), list)


REGISTRY = ConstructorRegistry()
REGISTRY.primitive_rule(_text_or_object)
REGISTRY.primitive_rule(_names)


def _overview(commands: EntryPoints, prog: str, description: str) -> str:
    width = max(map(len, commands), default=0)
    lines = [f"  {name:{width}}  {summarize(point)}" for name, point in commands.declared.items()]
    head = f"usage: {prog} COMMAND [OPTIONS]\n\n{description}\n"
    more = f"{prog} COMMAND --help shows a command's options, with examples; {prog} --version shows the version."
    return "\n".join([head, *lines, "", more])


def summarize(point: EntryPoint) -> str:
    """The first sentence of a command's docstring, read from its source: nothing is imported for a list."""
    spec = importlib.util.find_spec(point.module)
    if spec is None or spec.origin is None:
        return ""
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == point.attr:
            return re.split(r"(?<=\.)\s", ast.get_docstring(node) or "")[0]
    return ""


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


def write_json(path: Path, content: Any) -> None:
    """Replace the file as a whole."""
    from unmask.runs.atomic import atomic_write

    atomic_write(path, (json.dumps(content, indent=1) + "\n").encode())


def quote_command() -> str:
    """This process's command line, as results store it."""
    return shlex.join(["unmask", *sys.argv[1:]])


def require_new_folder(path: Path) -> None:
    """A folder of results is new or empty: nothing is overwritten, and nothing old stands among them."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"expected {path} to be absent or an empty folder; name another, or remove it first")
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
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


def set_threads() -> None:
    """As many threads as this process may use cores, unless the environment says otherwise."""
    if "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _how_to_resume(commands: EntryPoints, words: Sequence[str]) -> str:
    """The end of the message of a command that was stopped: some can be resumed."""
    fields = getattr(commands.get(words[0]), "__dataclass_fields__", {}) if words else {}
    return f"; {words[0]} goes on with --resume" if "resume" in fields else ""


def _terminate(_signal: int, _frame: Any) -> NoReturn:
    raise Terminated
