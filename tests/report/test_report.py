"""Reports: tables equal their files, only paired differences are bold, pages are self-contained, invalid files are refused."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from support.commands import call
from support.evaluations import evaluation, row
from support.viewer import board, expect, large, words
from unmask.evaluation.evaluate import Report
from unmask.report import boards, page, sections, tables, templates, trace_sections
from unmask.report.gather import Evaluation, Inputs, gather, report_from_json
from unmask.report.traces import format as trace_file
from unmask.report.traces import record as trace
from unmask.runs.run import Run


@dataclass(frozen=True)
class Part:
    width: int = 4
    features: tuple[str, ...] = ("confidence",)
    size: int | None = None


@dataclass(frozen=True)
class Config:
    denoiser: str = 'a "quoted" name'
    policy: Part = field(default_factory=Part)


def training(folder: Path, steps: int = 12, shift: float = 0.0) -> Path:
    made = Run.create(folder, Config())
    for step in range(1, steps + 1):
        record = {
            "step": step,
            "return": -5 + shift + step / 10,
            "entropy": 2.0 / step,
            "agreement": 0.5,
            "seconds": 30.0,
        }
        made.log(record | ({"accuracy": 0.9 + step / 1000} if step % 4 == 0 else {}))
    return folder


def same(a: Any, b: Any) -> bool:
    """Equal, NaN included."""
    return json.dumps(dataclasses.asdict(a)) == json.dumps(dataclasses.asdict(b))


def test_evaluation_round_trip(tmp_path: Path) -> None:
    report = evaluation()
    report.write(tmp_path / "one.json", command="unmask evaluate --limit 200")
    found = gather([tmp_path / "one.json"]).evaluations[0]
    assert same(found.report, report) and math.isnan(found.report.rows[0].nll)
    assert (found.name, found.command) == ("one", "unmask evaluate --limit 200")


def test_bold_only_where_the_paired_interval_excludes_zero() -> None:
    report = evaluation()
    found = {one["scheduler"]: one for one in tables.table(report)["rows"]}
    assert [found[name]["strong"] for name in ("confidence", "margin", "sas", "gt_logp")] == [False, False, True, True]
    assert [found[name]["oracle"] for name in ("confidence", "sas", "gt_logp")] == [False, False, True]
    shown = page.table_html(report)
    assert shown.count("<b>") == 2 and "small on some puzzles, n = 200" in shown
    touching = replace(report.rows[2], versus=replace(report.rows[2].versus, low=0.0))  # pyright: ignore
    assert page.table_html(replace(report, rows=[report.rows[0], touching])).count("<b>") == 0


def test_pairwise_comparisons() -> None:
    report = evaluation()
    found = {(pair["a"], pair["b"]): pair for pair in tables.pairs(report)}
    assert len(found) == 6
    pair = found["gt_logp", "sas"]
    a, b = (np.array(list(report.row(name).solved)) for name in ("gt_logp", "sas"))
    assert (pair["won"], pair["lost"]) == (int((a > b).sum()), int((a < b).sum()))
    assert pair["difference"][0] == f"{100 * (a.astype(int) - b.astype(int)).mean():+.1f}".replace("-", "−")


def test_lead_sentence() -> None:
    report = evaluation()
    sas, base = report.row("sas"), report.row("confidence")
    text = tables.lead(report)
    assert text.startswith(f"sas solves {100 * sas.exact:.1f} % [") and f"confidence {100 * base.exact:.1f} %" in text
    assert "gt_logp" not in text  # it knows the truth
    assert "show no difference" not in text
    lead = tables.lead(
        Report(
            "sudoku", "some", "small", 4, 0, [row("margin", "1101", ("confidence", "1100")), row("confidence", "1100")]
        )
    )
    assert "show no difference" in lead
    assert tables.lead(Report("sudoku", "some", "small", 4, 0, [row("margin", "1101")])).endswith("of 4 problems.")


def whole(tmp_path: Path, n: int = 200) -> str:
    evaluation(n).write(tmp_path / "one.json", command="unmask evaluate --data a&b.csv")
    (tmp_path / "traces").mkdir()
    one = board()
    trace.write(one, tmp_path / "traces" / "a.json")
    easy = []
    for path in one.trajectories[1:]:
        order = tuple(position for position in path.order if position != 1)
        easy.append(replace(path, order=order, step=tuple(range(9)), logp=path.logp[:9], candidates=None, others={}))
    easier = replace(one, problem="an easy one", prompt=(1, 2, *one.prompt[2:]), trajectories=tuple(easy))
    trace.write(easier, tmp_path / "traces" / "b.json")
    inputs = [
        tmp_path / "one.json",
        training(tmp_path / "order"),
        training(tmp_path / "other", shift=1),
        tmp_path / "traces",
    ]
    page.write(inputs, tmp_path / "report.html", command="unmask report one.json")
    return (tmp_path / "report.html").read_text()


def test_a_whole_report(tmp_path: Path) -> None:
    html = whole(tmp_path, 2000)
    assert len(html.encode()) < 5e6
    for text in (
        "By stratum",
        "Learning an order",
        "When it first goes wrong",
        "Where an order begins and ends",
        "Cases",
    ):
        assert text in html
    assert "unmask evaluate --data a&amp;b.csv" in html and "unmask report one.json" in html
    assert "unmask train --preset config.toml --out again" in html
    outside = re.sub(r'srcdoc="[^"]*"', "", html)
    # Nothing is fetched, and no two elements share a name.
    assert not re.search(r'(?:src|href)="(?!#|data:)', outside)
    names = re.findall(r'\bid="([^"]+)"', outside)
    assert len(names) == len(set(names))
    assert "#010101" not in html and "currentColor" in html


def test_two_thousand_puzzles_make_a_page_below_five_megabytes() -> None:
    """With a trace of every puzzle as well; and a few long texts, each larger than the page may be, are shown one at a time."""
    one = board()
    trajectories = (replace(one.trajectories[0], scheduler="confidence"), replace(one.trajectories[1], scheduler="sas"))
    # Another block makes another problem of it.
    many = [replace(one, problem=f"puzzle {n}", block=(n,) * 16, trajectories=trajectories) for n in range(2000)]
    evaluated = Evaluation("one", evaluation(2000), "unmask evaluate")
    html = page.render(Inputs([evaluated], [], many))
    assert "From 2000 traced problems" in html and len(html.encode()) < 5e6
    long = large(400)
    texts = [replace(long, problem=f"text {n}", block=(n,) * 400) for n in range(3)]
    size = len(templates.embed_json(trace_file.as_json(long)))
    assert trace_sections.MOST_BYTES / 2 < size < trace_sections.MOST_BYTES
    shown = trace_sections.traces(texts)
    assert shown is not None and [len(group["cases"]) for group in shown["cases"]] == [1]


def test_sections_without_inputs_are_omitted(tmp_path: Path) -> None:
    only = page.render(gather([training(tmp_path / "order")]))
    assert "Training" in only and "Problems solved" not in only and "<iframe" not in only
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "metrics.jsonl").write_text('{"step": 1, "loss": "NaN"}\n{"torn')
    bare = page.render(gather([tmp_path / "bare"]))
    assert "Nothing was logged yet" in bare and "has no configuration" in bare
    report = Report("sudoku", "one", "small", 1, 0, [row("confidence", "1")])
    report.write(tmp_path / "one.json")
    single = page.render(gather([tmp_path / "one.json"]))
    assert "By stratum" not in single and "Problem by problem" not in single
    assert "does not name its command" in single
    trace.write(words(), tmp_path / "text.json")
    text = page.render(gather([tmp_path / "text.json"]))
    assert "When it first goes wrong" not in text and "<iframe" in text


def test_names_are_escaped(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    report = replace(evaluation(20), denoiser=hostile, source=hostile)
    report = replace(
        report, rows=[replace(one, scheduler=hostile) if one.scheduler == "sas" else one for one in report.rows]
    )
    report.write(tmp_path / "one.json")
    html = page.render(gather([tmp_path / "one.json"]), title=hostile)
    assert "<script>alert" not in html and "&lt;script&gt;alert" in html
    assert "<script>alert" not in page.table_html(report)


def broken(**changes: Any) -> dict[str, Any]:
    value = json.loads(json.dumps(dataclasses.asdict(evaluation(10)), default=str).replace("NaN", "null"))
    value["rows"][0] |= changes
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1}, "expected an evaluation"),
        ([1], "expected an evaluation"),
        ({"rows": [3], "denoiser": "x"}, "is missing"),
        ({**broken(), "rows": []}, "at least one row"),
        ({**broken(), "rows": [3]}, "rows, 0: expected a JSON object"),
        ({**broken(), "n": "10"}, "n: expected a whole number"),
        (broken(solved="01"), "solved: expected 10 characters"),
        (broken(exact="high"), "exact: expected a number"),
        (broken(strata=[]), "rows, 0, strata: expected a JSON object"),
        (broken(strata={"x": {"n": 1}}), "rows, 0, strata, x, exact is missing"),
        (broken(versus={"baseline": 3}), "versus"),
    ],
)
def test_invalid_evaluation_files_are_refused(value: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(value))
    with pytest.raises(ValueError, match=message) as error:
        gather([tmp_path / "bad.json"])
    assert "bad.json" in str(error.value) and "\n" not in str(error.value)


def test_missing_and_empty_inputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to report"):
        gather([])
    with pytest.raises(ValueError, match="but there is nothing"):
        gather([tmp_path / "absent.json"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="neither a run's folder"):
        gather([tmp_path / "empty"])
    (tmp_path / "empty" / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json: expected a JSON object"):
        gather([tmp_path / "empty"])
    (tmp_path / "bytes.json").write_bytes(b"\x00\xff")
    with pytest.raises(ValueError, match=r"bytes\.json: expected JSON"):
        gather([tmp_path / "bytes.json"])
    assert same(report_from_json(broken()), report_from_json(broken()))


def test_configuration_as_toml(tmp_path: Path) -> None:
    found = gather([training(tmp_path / "order")]).trainings[0]
    back = tomllib.loads(sections.as_toml(found.config))
    assert back == {"denoiser": 'a "quoted" name', "policy": {"width": 4, "features": ["confidence"]}}


def test_select_cases() -> None:
    one = board()
    gains = replace(
        one,
        problem="gains",
        trajectories=(
            replace(one.trajectories[0], scheduler="confidence"),
            replace(one.trajectories[1], scheduler="sas"),
        ),
    )
    loses = replace(
        gains,
        problem="loses",
        prompt=(1, 0, 0, 0, *one.prompt[4:]),
        trajectories=(
            replace(one.trajectories[1], others={}),
            replace(one.trajectories[0], scheduler="sas", others={}),
        ),
    )
    # Another block makes another problem of it.
    many = [gains, *(replace(gains, problem=f"more {n}", block=(n,) * 16) for n in range(1, 6)), loses]
    found = trace_sections.traces(many)
    assert found is not None and found["count"] == 7
    best, worst = found["cases"]
    assert best["title"] == "Where the learned policy gains most" and worst["title"] == "Where it does worst"
    assert len(best["cases"]) == 4 and best["cases"][0]["problem"] == "gains"
    assert [case["problem"] for case in worst["cases"]] == ["loses"]
    assert worst["cases"][0]["number"] == 4
    assert "confidence: 2 wrong of 10, the first at step 4; sas: all right" in best["cases"][0]["summary"]


def test_hero_figure() -> None:
    one = board()
    drawn = boards.hero(one)
    root = ElementTree.fromstring(drawn)
    assert root.get("role") == "img" and root.get("aria-label") == "left_to_right: 2 cells wrong; confidence: solved"
    assert drawn.count('fill="url(#hatch)"') == 2 + 1  # and the legend's
    assert "✗ 2 cells wrong, the first at step 4" in drawn and "✓ solved" in drawn
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    assert "random order" in boards.hero(one, right="random")
    with pytest.raises(ValueError, match="expected a trace of a puzzle"):
        boards.hero(words())
    with pytest.raises(ValueError, match="compares two schedulers"):
        boards.hero(replace(one, trajectories=one.trajectories[:1]))


def test_the_report_in_a_browser(opened: Callable, shot: Callable, tmp_path: Path) -> None:
    html = whole(tmp_path)
    shown = opened(html)
    frame = shown.frame_locator("#viewer")
    frame.locator("#where").wait_for()
    expect(frame.locator("#about")).to_contain_text("a puzzle")
    shown.locator(".case", has_text="an easy one").click()
    frame.locator("#about", has_text="an easy one").wait_for()
    assert shown.locator(".case[aria-current=true]").inner_text().startswith("an easy one")
    shown.click("#theme")
    shown.wait_for_function(
        "document.getElementById('viewer').contentDocument.documentElement.dataset.theme === 'dark'"
    )
    inside = "document.getElementById('viewer').contentDocument.documentElement"
    # The frame hears how tall its page is some time after it has been drawn.
    shown.wait_for_function(f"{inside}.scrollHeight <= document.getElementById('viewer').clientHeight + 1")
    shot(shown, "report-dark")
    narrow = opened(html, 360, 740)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 360
    shot(narrow, "report-phone")


def commanded(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    return call(monkeypatch, capsys, *args)


def test_the_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    def unmask(*args: str) -> tuple[int, str, str]:
        return commanded(monkeypatch, capsys, *args)

    code, out, _ = unmask(
        "trace", "--denoiser", "sudoku-4x4", "--schedulers", "confidence,margin", "--limit", "2", "--block", "8"
    )
    assert code == 0 and "wrote 2 traces to traces" in out
    recorded = trace.read("traces/0002.json")
    assert [path.scheduler for path in recorded.trajectories] == [
        "confidence",
        "margin",
    ] and recorded.decoding == "blocks of 8"
    assert max(recorded.block) == 1
    code, out, _ = unmask("view", "traces", "--out", "orders.html", "--title", "Mine")
    assert code == 0 and "<title>Mine</title>" in Path("orders.html").read_text()
    evaluation(20).write("one.json")
    assert unmask("report", "one.json", "traces", "--out", "report.html")[0] == 0
    assert "unmask report one.json traces --out report.html" in Path("report.html").read_text()
    assert unmask("figure", "hero", "--trace", "traces/0001.json", "--out", "hero.svg")[0] == 0
    ElementTree.fromstring(Path("hero.svg").read_text())
    # A page replaces a page, and nothing else.
    assert unmask("view", "traces", "--out", "report.html")[0] == 0
    for precious in ("one.json", "hero.svg"):
        before = Path(precious).read_bytes()
        code, _, err = unmask("report", "one.json", "--out", precious)
        assert code == 2 and f"{precious} exists and was not written by this command" in err
        assert Path(precious).read_bytes() == before
    for args, message in (
        (("trace", "--out", "traces"), "expected traces to be absent"),
        (("trace", "no-such-file", "--out", "new"), "there is no file 'no-such-file'"),
        (("trace", "--out", "new", "--limit", "0"), "limit: expected a number greater than or equal to 1"),
        (("trace", "1...", "--out", "new"), "expected a board of 16"),
        (
            ("trace", "................", "--out", "new", "--denoiser", "sudoku-4x4", "--schedulers", "margin"),
            "has several solutions: expected one",
        ),
        (("view",), "nothing to view"),
        (("view", "one.json"), "expected traces"),
        (("report", "absent"), "there is nothing"),
        (("figure", "other", "--out", "x.svg"), "expected one of hero, got 'other'"),
    ):
        code, out, err = unmask(*args)
        assert code == 2 and message in err and len(err.splitlines()) == 1, (args, err)
