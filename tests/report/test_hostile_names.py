"""Names from files, as an attacker would choose them: they are text in pages, figures and terminals, and nothing else."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.commands import call
from support.evaluations import evaluation
from support.viewer import board
from unmask.cli import shell
from unmask.report import boards, figures, page
from unmask.report.figures import Point
from unmask.report.gather import gather
from unmask.report.svg import clean, inline_svg
from unmask.report.terminal import tables
from unmask.report.terminal.console import SafeConsole
from unmask.report.traces import record as trace
from unmask.report.viewer import page as viewer

HOSTILE = {
    "replacement": r"m\1 onload=window.pwned=1 z=",
    "escape": r"a\s\g<0>",
    "math": r"$\frac{1}{$",
    "good math": r"$\alpha$",
    "script": "</script><script>window.pwned=1</script>",
    "style": "</style></svg><img src=x onerror=window.pwned=1>",
    "comment": "--><img src=x onerror=window.pwned=1><!--",
    "attribute": '" onload="window.pwned=1" x="',
    "quote": "' onmouseover='window.pwned=1",
    "entity": "&lt;img src=x onerror=window.pwned=1&gt;",
    "separator": "a\u2028window.pwned=1\u2029b",
    "terminal": "a\x1b]0;owned\x07\x1b[31mb\x9b2J\x7f\x08c\rd",
    "null": "a\0b\x0b\x0c",
    "template": "{{ 7*7 }}{% raw %}",
    "our own": '#010101 id="q" url(#q) href="#q" \'DejaVu Sans\', sans',
    "metadata": "<metadata>x</metadata>",
    "bidi": "a\u202eb\u2066c",
    "url": "javascript:window.pwned=1",
}


def hostile_inputs(folder: Path, names: Sequence[str]) -> list[Path]:
    """An evaluation and a trace of many schedulers in which these are all the names."""
    report = evaluation(20)
    rows = [replace(report.rows[n % 2], scheduler=name) for n, name in enumerate(names)]
    rows = [
        replace(row, strata={names[n % len(names)] + str(n): s for n, s in enumerate(row.strata.values())})
        for row in rows
    ]
    joined = " ".join(names)
    replace(report, denoiser=joined, source=joined, rows=rows).write(folder / "one.json", command=joined)
    one, files = board(), [folder / "one.json"]
    for nth in range(0, len(names), 3):
        name, *more = names[nth : nth + 3]
        trajectories = (replace(one.trajectories[0], scheduler=name), *one.trajectories[1:])
        known = {"problem": name, "task": name, "denoiser": name, "decoding": joined, "block": (nth,) * 16}
        labels = {**one.labels, **dict(enumerate(more, 1))}
        files.append(folder / f"trace-{nth}.json")
        trace.write(replace(one, **known, labels=labels, trajectories=trajectories), files[-1])
    return files


class Markup(HTMLParser):
    """The elements of a page and the attributes that could run something."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.handlers: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_names_add_no_element_to_a_page(tmp_path: Path) -> None:
    def count(names: Sequence[str]) -> list[tuple[dict[str, int], list[str]]]:
        inputs = gather(hostile_inputs(tmp_path, names))
        pages = page.render(inputs, names[0], names[1]), viewer.page(inputs.traces, names[2])
        return [
            ({tag: n for tag, n in one.tags.items() if tag not in ("g", "tspan", "text")}, one.handlers)
            for one in map(Markup, pages)
        ]

    hostile = list(HOSTILE.values())
    assert count(hostile) == count([f"plain {n}" for n in range(len(hostile))])


@pytest.mark.parametrize("kind", HOSTILE)
def test_figures_hold_names_as_text(kind: str) -> None:
    name = HOSTILE[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = figures.intervals({name: [Point(name, 1.0, 0.5, 1.5)]}, name, theme="page")
        svg = inline_svg(figure, "it", name)
    root = ElementTree.fromstring(svg)
    assert root.get("aria-label") == clean(name)
    texts = ["".join(text.itertext()) for text in root.iter("text")]
    # A label of several lines is several elements.
    assert "".join(clean(name).split()) in "".join("".join(texts).split())
    assert {key for element in root.iter() for key in element.attrib if key.startswith("on")} == set()
    one = board()
    hero = replace(one, trajectories=(replace(one.trajectories[0], scheduler=name), *one.trajectories[1:]))
    ElementTree.fromstring(boards.hero(hero))


def test_no_script_of_a_hostile_page_runs_in_a_browser(opened: Callable, tmp_path: Path) -> None:
    """In the report with its figures and the viewer in its frame, then in the viewer alone."""
    inputs = gather(hostile_inputs(tmp_path, list(HOSTILE.values())))
    report = opened(page.render(inputs, "".join(HOSTILE.values())))
    report.frame_locator("#viewer").locator("html[data-ready]").wait_for()
    found = report.evaluate("[window.pwned, document.getElementById('viewer').contentWindow.pwned]")
    assert found == [None, None]
    assert report.evaluate("document.querySelectorAll('img').length") == 0
    alone = opened(viewer.page(inputs.traces, HOSTILE["script"]))
    assert alone.evaluate("window.pwned") is None


def test_a_page_runs_only_its_own_scripts(browser: object, tmp_path: Path) -> None:
    """Were a name ever inserted as markup, the page's policy would still refuse to run it."""
    import support.viewer as browsing

    html = page.render(gather(hostile_inputs(tmp_path, ["x"])))
    injected = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 2'>"
    (tmp_path / "page.html").write_text(html.replace("</main>", f"</main>{injected}"), encoding="utf-8")
    shown = browsing.new_page(browser, 800, 600)
    shown.goto((tmp_path / "page.html").as_uri())
    shown.wait_for_selector("html[data-ready]")
    assert shown.evaluate("window.pwned") is None
    shown.context.close()


@pytest.mark.parametrize("kind", HOSTILE)
def test_control_characters_never_reach_the_terminal(kind: str) -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, markup=False, width=200, color_system=None)
    name = HOSTILE[kind]
    report = replace(evaluation(20), denoiser=name, source=name)
    console.print(tables.comparison(replace(report, rows=[replace(row, scheduler=name) for row in report.rows])))
    console.print(name, soft_wrap=True)
    shown = out.getvalue()
    assert not [c for c in shown if not c.isprintable() and c not in "\n"]


def test_control_characters_in_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = HOSTILE["terminal"]
    for words in (
        ["decode", name],
        ["decode", "1" * 16, "--denoiser", name],
        ["report", str(tmp_path / name)],
        [name],
        ["decode", "1" * 16, f"--{name}", "1"],
    ):
        code, out, err = call(monkeypatch, capsys, *words)
        assert code == 2 and not [c for c in out + err if not c.isprintable() and c != "\n"], (words, err)
        assert len(err.splitlines()) == 1


def test_a_hostile_evaluation_by_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    inputs = hostile_inputs(tmp_path, [HOSTILE["replacement"]])
    value = json.loads(inputs[0].read_text())
    assert value["denoiser"] == HOSTILE["replacement"]
    code, out, _ = call(monkeypatch, capsys, "report", *map(str, inputs), "--out", str(tmp_path / "report.html"))
    assert code == 0 and "report.html" in out.replace("\n", "")  # a narrow terminal breaks the line


def test_log_messages_and_presets_are_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shell.Warnings(logging.WARNING).handle(
        logging.makeLogRecord({"msg": "a damaged %s", "args": (HOSTILE["terminal"],)})
    )
    assert not [c for c in capsys.readouterr().err if not c.isprintable() and c != "\n"]
    (tmp_path / "mine.toml").write_text('denoiser = "a\\u001b[31m"\n')
    code, out, err = call(monkeypatch, capsys, "train", "--preset", str(tmp_path / "mine.toml"), "--help")
    assert code == 2 and "denoiser" in err and "\x1b" not in out + err
