"""Hooks of the documentation site: the page of commands, written from the commands themselves, and links by title."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from unmask.cli.main import COMMANDS
from unmask.cli.shell import list_options, resolve

HEAD = """# Commands

Every command is `unmask COMMAND [OPTIONS]`; `unmask COMMAND --help` shows the same. `--no-x` turns the boolean option
`--x` off. Options with a dot belong to a table of the preset.
"""


def on_files(files: Files, config: Any) -> Files:
    """Add ``commands.md``."""
    files.append(File.generated(config, "commands.md", content="\n".join([HEAD, *map(describe, COMMANDS)])))
    return files


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Links that show a page's file name, for readers of the repository, show its title on the site."""
    docs = Path(config["docs_dir"])

    def name_page(link: re.Match[str]) -> str:
        title = (docs / link["page"]).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"[{title.partition(':')[0]}]({link['target']})"

    return re.sub(r"\[(?P<page>\w+\.md)\]\((?P<target>(?P=page)[^)]*)\)", name_page, markdown)


def describe(name: str) -> str:
    """A command as Markdown: its docstring, its examples, its options with their defaults."""
    command = COMMANDS[name]
    text, _, examples = (inspect.getdoc(command) or "").partition("\n\n")
    lines = [line.removeprefix("$ ") for line in examples.splitlines()]
    shell = "\n".join(["```", *lines, "```"]) if examples.startswith("$") else examples
    options = list_options(resolve(command, []))
    rows = [_row(option, arg) for option, arg in options.items() if not option.startswith("--no-")]
    return "\n".join([f"## {name}", "", text, "", shell, "", "| option | default | |", "|---|---|---|", *rows, ""])


def _row(option: str, arg: Any) -> str:
    """An option as a row of a table."""
    value = f" {arg.lowered.metavar}" if arg.lowered.metavar else ""
    given = arg.field.default
    shown = "" if given is None or given is inspect.Parameter.empty or "MISSING" in repr(given) else str(given)
    text = arg.field.helptext() if callable(arg.field.helptext) else arg.field.helptext
    return f"| {_code(option + value)} | {_code(shown)} | {_cell(str(text or ''))} |"


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    """Text in one line, without a bar, which would end a cell."""
    return " ".join(text.split()).replace("|", "\\|")
