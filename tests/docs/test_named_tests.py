"""Each line of the tables of what holds names a test that exists; wherever a page names a test, there is one."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
FILES = {path.name: path for path in sorted((ROOT / "tests").rglob("test_*.py"))}
TABLES = {"reliability.md": ("## Faults", 10), "lm_eval.md": ("## The sandbox", 10)}
"""Page → the heading of its table, and the least number of lines that it has."""


@functools.cache
def functions(file: str) -> set[str]:
    """The tests of a file; no other line begins as these do."""
    return set(re.findall(r"^ *def (test_\w+)\(", FILES[file].read_text(encoding="utf-8"), re.MULTILINE))


def named(line: str) -> list[tuple[str | None, str]]:
    """The tests that a line names, each with its file, if one is named before it."""
    found: list[tuple[str | None, str]] = []
    file: str | None = None
    for word in re.findall(r"`(?:pytest )?([^`\s]*test_[\w.:]+)`", line):
        path, _, function = word.rpartition("::") if "::" in word else (word, "", "")
        name = path.rpartition("/")[2]
        if function:
            found.append((name, function))
        elif name.endswith(".py"):
            file = name
        else:
            found.append((file, name))
    return found


def table(page: str) -> list[str]:
    heading, _ = TABLES[page]
    section = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"{heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.endswith("| test |")]


@pytest.mark.parametrize("page", TABLES)
def test_each_line_of_a_table_names_its_test(page: str) -> None:
    lines = table(page)
    assert len(lines) >= TABLES[page][1], "the table was not found"
    assert [line for line in lines if not named(line.rstrip("| ").rpartition("|")[2])] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"tests/[\w/]*test_\w+\.py", text)
    assert [name for name in files if not (ROOT / name).exists()] == []
    missing = [
        (file, name)
        for line in text.splitlines()
        for file, name in named(line)
        if not any(name in functions(one) for one in ([file] if file in FILES else FILES)) and f"{name}.py" not in FILES
    ]
    assert missing == []
