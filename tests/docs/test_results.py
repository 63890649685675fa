"""Tables of studies in the pages: equal to what is recorded, and written anew from study folders."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from unmask_studies.recorded import MARK, main, read_recorded, update_pages, write_recorded

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
INTERVAL = r"[+−]?\d[\d.]* \[[^\]|]*\]"
PAGE = """# Results

```
unmask study small
```

<!-- results: small -->

4x4: solved %, n = 100, seed 0

| scheduler | solved % |
|---|---|
| confidence | 50.0 |

<!-- end -->

Prose with a number, 50.0.
"""


def study(folder: Path, title: str = "4x4: solved %, n = 200, seed 0", **change: object) -> Path:
    """A finished study as ``unmask study`` leaves it."""
    folder.mkdir(parents=True)
    rows = [["confidence", "51.5 [44.6, 58.3]"], ["learned", {"text": "97.0 [93.6, 98.6]", "strong": True}]]
    tables = [
        {"title": title.replace("4x4", size), "columns": ["scheduler", "solved %"], "rows": rows, "note": "Bold: …"}
        for size in ("9x9", "4x4")
    ]
    found = {"format": "unmask study 1", "study": "small", "tables": tables}
    found["command"] = "unmask study small --limit 200 --out /tmp/small --resume"
    (folder / "study.json").write_text(json.dumps(found | {"figures": [], "configuration": {}} | change))
    (folder / "versions.json").write_text(json.dumps({"unmask": "0.1.0", "torch": "2"}))
    return folder.parent


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "tables").mkdir(parents=True)
    (tmp_path / "docs" / "results.md").write_text(PAGE)
    return tmp_path / "docs"


def test_pages_equal_the_recorded_tables() -> None:
    assert update_pages(DOCS, check=True) == [], "make results writes the recorded tables into the pages"
    marks = [mark["study"] for page in DOCS.glob("*.md") for mark in MARK.finditer(page.read_text(encoding="utf-8"))]
    assert len(marks) >= 60 and {file.stem for file in (DOCS / "tables").glob("*.json")} == set(marks)
    for file in (DOCS / "tables").glob("*.json"):
        recorded = read_recorded(file)
        assert write_recorded(recorded) == file.read_text(encoding="utf-8") and file.stat().st_size < 32_000
        assert recorded.study == file.stem
        assert all(len(row) == len(table.columns) for table in recorded.tables for row in table.rows)


def test_the_command_of_a_table_is_on_its_page() -> None:
    studies = {preset.stem for preset in (ROOT / "src" / "unmask_studies" / "presets" / "study").glob("*.toml")}
    assert len(studies) > 30
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name in {mark["study"] for mark in MARK.finditer(text)}:
            commands = read_recorded(DOCS / "tables" / f"{name}.json").command.splitlines()
            assert commands and [line for line in commands if line not in text] == [], (page.name, name)
            assert name not in studies or commands[0].startswith(f"unmask study {name}")


@pytest.mark.parametrize("page", ["README.md", "docs/when_order_matters.md"])
def test_tables_of_summaries_repeat_recorded_numbers(page: str) -> None:
    """Every number with an interval in a table there is a cell of a recorded table, or the beginning of one."""
    cells = {
        (cell if isinstance(cell, str) else cell.text).replace(" ", "")
        for file in (DOCS / "tables").glob("*.json")
        for table in read_recorded(file).tables
        for row in table.rows
        for cell in row
    }
    rows = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    shown = re.findall(INTERVAL, "\n".join(rows))
    assert len(shown) >= 12
    unknown = [text for text in shown if not any(cell.startswith(text.replace(" ", "")) for cell in cells)]
    assert not unknown


def test_every_mark_is_closed() -> None:
    for page in DOCS.glob("*.md"):
        words = re.findall(r"^<!-- (results: [\w-]+|end) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert [word == "end" for word in words] == [False, True] * (len(words) // 2), page.name


def test_a_changed_number_is_found(docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(docs), str(study(tmp_path / "runs" / "small"))]) == 0
    assert main([str(docs), "--check"]) == 0
    page = docs / "results.md"
    changed = page.read_text().replace("97.0 [", "98.0 [")
    page.write_text(changed)
    capsys.readouterr()
    assert main([str(docs), "--check"]) == 1
    assert capsys.readouterr().out == "results.md: differs from the recorded tables; make results writes them\n"
    assert page.read_text() == changed  # it only checks
    assert main([str(docs)]) == 0 and "97.0 [" in page.read_text()


def test_a_study_is_recorded_and_written(docs: Path, tmp_path: Path) -> None:
    runs = study(tmp_path / "runs" / "small")
    study(tmp_path / "runs" / "small-quick")  # no page names it
    assert main([str(docs), str(runs)]) == 0
    assert [file.name for file in (docs / "tables").iterdir()] == ["small.json"]
    recorded = read_recorded(docs / "tables" / "small.json")
    assert (recorded.command, recorded.version, len(recorded.tables)) == ("unmask study small --limit 200", "0.1.0", 2)
    before, _, after = PAGE.partition("4x4: solved %, n = 100")
    assert (docs / "results.md").read_text() == (
        f"{before}4x4: solved %, n = 200, seed 0\n\n| scheduler | solved % |\n|---|---|\n"
        "| confidence | 51.5 [44.6, 58.3] |\n| learned | **97.0 [93.6, 98.6]** |\n\n<!-- end -->"
        + after.partition("<!-- end -->")[2]
    )


def test_errors_are_one_line(docs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: object) -> str:
        assert main([str(word) for word in words]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        return lines[0]

    assert "small.json: No such file or directory; expected a recorded study" in refused(docs, "--check")
    assert "expected a folder of studies" in refused(docs, tmp_path / "nothere")
    assert "expected docs, docs and a folder" in refused()
    assert "expected the folder of the documentation" in refused(tmp_path / "nothere", "--check")
    other = study(tmp_path / "other" / "small", "another title")
    assert "expected one table of the study small with the title '4x4: solved %" in refused(docs, other)
    assert not (docs / "tables" / "small.json").exists()
    (docs / "tables" / "small.json").write_text('{"format": "unmask study 2"}')
    assert "small.json: " in refused(docs, "--check")
