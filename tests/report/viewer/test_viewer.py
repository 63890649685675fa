"""The viewer in a browser: stepping, keyboard, a phone's width, both themes, hostile text and damaged files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from support.viewer import HACK, SOLUTION, board, expect, large, words
from unmask.report.traces import format as trace_file
from unmask.report.traces import record as trace
from unmask.report.traces.reading import from_json
from unmask.report.viewer import page as viewer
from unmask.tasks.kinds import Drawing


def cells(page: Any, side: str, look: str = "") -> Any:
    return page.locator(f".pane[data-side={side}] .cell{look}")


def where(page: Any) -> str:
    return page.locator("#where").inner_text()


def test_it_opens_at_the_end_with_a_failing_and_a_solving_trajectory(opened: Callable, shot: Callable) -> None:
    page = opened(viewer.page([board()]))
    assert where(page) == "step 10 of 10"
    # A failing trajectory on the left, a solving one on the right.
    assert page.locator(".pane[data-side=left] select").input_value() == "0"
    assert "✗ 2 wrong, the first at step 4" in page.locator(".pane[data-side=left] .verdict").inner_text()
    assert "✓ all right" in page.locator(".pane[data-side=right] .verdict").inner_text()
    assert cells(page, "left", ".wrong").count() == 2 and cells(page, "right", ".wrong").count() == 0
    # Marked by words, not by colour alone, and explained in the panel.
    content = cells(page, "left", ".first-wrong").evaluate("cell => getComputedStyle(cell, '::after').content")
    assert "1st ✗" in content
    assert "The first wrong reveal" in page.locator(".pane[data-side=left] .details").inner_text()
    assert page.get_by_role("grid").count() == 2 and page.get_by_role("gridcell").count() == 32
    assert page.get_by_role("slider", name="Step").count() == 1
    assert "would have revealed instead" in page.locator("#legend").inner_text()
    assert page.locator("#problems").is_hidden()
    shot(page, "board")


def test_colours_and_contrast_in_both_themes(opened: Callable) -> None:
    one = board()
    ground = "getComputedStyle(document.body).backgroundColor"
    for scheme in ("light", "dark"):
        page = opened(viewer.page([one]), color_scheme=scheme, reduced_motion="reduce")
        assert (sum(rgb(page.evaluate(ground))) < 1) == (scheme == "dark")
        assert page.evaluate("getComputedStyle(document.querySelector('.cell')).transitionDuration") == "0s"
        page.add_style_tag(content="* { transition: none !important; }")
        order = one.trajectory("confidence").order
        found = cells(page, "right").evaluate_all(
            "all => all.map(cell => [getComputedStyle(cell).backgroundColor, getComputedStyle(cell).color])"
        )
        backgrounds, inks = ([rgb(pair[which]) for pair in found] for which in (0, 1))
        first, last = backgrounds[order[0]], backgrounds[order[-1]]
        assert first[2] > first[0] + 0.15 and last[0] > last[2] + 0.15
        assert all(contrast(ink, behind) >= 4.5 for ink, behind in zip(inks, backgrounds, strict=True))
        page.click("#theme")
        assert (sum(rgb(page.evaluate(ground))) < 1) == (scheme != "dark")
        assert page.locator("#theme").get_attribute("aria-pressed") == str(scheme != "dark").lower()


def rgb(text: str) -> list[float]:
    numbers = [float(number) for number in re.findall(r"[\d.]+", text)][:3]
    return numbers if text.startswith("color(") else [number / 255 for number in numbers]


def contrast(a: list[float], b: list[float]) -> float:
    """WCAG's ratio."""

    def light(colour: list[float]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    return max(light(a), light(b)) / min(light(a), light(b))


def test_stepping_shows_reveals_guesses_and_the_choices_of_others(opened: Callable, shot: Callable) -> None:
    one = board()
    trajectory, page = one.trajectories[0], opened(viewer.page([one]))
    page.click("#first")
    assert where(page) == "step 0 of 10" and cells(page, "left", ".shown").count() == 0
    assert "10 positions are hidden, 10 candidates" in page.locator(".pane[data-side=left] .details").inner_text()
    for step in (1, 2, 3):
        page.click("#forward")
        shown = cells(page, "left").evaluate_all(
            "all => all.flatMap((cell, n) => cell.classList.contains('shown') ? [n] : [])"
        )
        assert set(shown) == set(trajectory.order[:step])
        assert cells(page, "left", ".now").evaluate_all("all => all.length") == 1
        assert "now" in cells(page, "left").nth(trajectory.order[step - 1]).get_attribute("class")
    page.locator("#step").fill("7")
    assert where(page) == "step 7 of 10" and cells(page, "left", ".shown").count() == 7
    # A hidden cell shows the model's best guess and how sure it is of it.
    hidden = next(place for place in trajectory.order[8:])
    assert cells(page, "left").nth(hidden).locator(".guess").inner_text() == str(SOLUTION[hidden])
    shot(page, "board-step-7")
    # The shape of another scheduler stands where it would have revealed.
    step = next(s for s in range(10) if trajectory.others["confidence"][s] != trajectory.order[s])
    page.locator("#step").fill(str(step + 1))
    row, column = divmod(trajectory.others["confidence"][step], 4)
    assert "▲" in cells(page, "left").nth(4 * row + column).locator(".marks").inner_text()
    details = page.locator(".pane[data-side=left] .details").inner_text()
    assert f"▲ confidence row {row + 1}, column {column + 1}" in details
    page.click("#wrong")
    assert where(page) == "step 4 of 10"


def test_hover_and_focus_explain_a_cell(opened: Callable) -> None:
    one = board()
    trajectory, page = one.trajectories[1], opened(viewer.page([one]))
    page.locator("#step").fill("3")
    details = page.locator(".pane[data-side=right] .details")
    hidden = trajectory.order[6]
    cells(page, "right").nth(hidden).hover()
    candidates = trajectory.candidates
    assert candidates is not None
    place = candidates.at(2).start + int(candidates.eligible[2, :hidden].sum())
    pointed = details.inner_text()
    row, column = divmod(hidden, 4)
    assert f"Row {row + 1}, column {column + 1}" in pointed and "scored 5 of 8 candidates" in pointed
    for token, p in zip(candidates.token[place], candidates.probability[place], strict=True):
        assert re.search(rf"{token}[^%]*{100 * p:.1f}\s%", pointed), (token, p, pointed)
    page.mouse.move(2, 2)
    assert "step 3" in details.inner_text()
    cells(page, "right").nth(hidden).focus()
    assert details.inner_text() == pointed
    label = cells(page, "right").nth(hidden).get_attribute("aria-label")
    assert label.startswith(f"row {row + 1}, column {column + 1}: hidden, best guess {SOLUTION[hidden]}")


def test_keyboard(opened: Callable) -> None:
    page = opened(viewer.page([board()]))
    press = page.keyboard.press
    press("Home")
    assert where(page) == "step 0 of 10"
    press("ArrowRight")
    press("ArrowRight")
    press("ArrowLeft")
    press(".")
    press(".")
    press(",")
    assert where(page) == "step 2 of 10"
    press("f")
    assert where(page) == "step 4 of 10"
    press("End")
    assert where(page) == "step 10 of 10"
    # Into the board: one stop for Tab, arrows inside, and the step keys still step.
    page.locator(".pane[data-side=left] select").focus()
    press("Tab")
    at = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(at).startswith("row 1, column 1")
    press("ArrowLeft")
    press("ArrowDown")
    press("ArrowRight")
    assert page.evaluate(at).startswith("row 2, column 2")
    assert where(page) == "step 10 of 10"
    press(",")
    assert where(page) == "step 9 of 10"
    press("Tab")
    press("Shift+Tab")
    assert page.evaluate(at).startswith("row 2, column 2")
    assert "Step 9 of 10" in page.locator("#live").inner_text()


def test_play_and_pause(opened: Callable) -> None:
    page = opened(viewer.page([board()]), clock=True)
    label = "document.getElementById('play').getAttribute('aria-label')"
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 60)
    page.click("#play")  # at the end: from the beginning
    assert where(page) == "step 0 of 10" and page.evaluate(label) == "Pause"
    page.clock.run_for(1500)
    assert where(page) == "step 4 of 10"
    page.click("#play")
    assert page.evaluate(label) == "Play"
    page.clock.run_for(5000)
    assert where(page) == "step 4 of 10" and "Step 4 of 10" in page.locator("#live").inner_text()
    page.select_option("#speed", "4")
    page.locator("h1").click()
    page.keyboard.press("Space")
    page.clock.run_for(400)
    assert (
        where(page) == "step 8 of 10" and "Step 4" in page.locator("#live").inner_text()
    )  # announced only where it stops
    page.clock.run_for(2000)
    assert where(page) == "step 10 of 10" and page.evaluate(label) == "Play"
    assert "Step 10 of 10" in page.locator("#live").inner_text()


def test_choice_of_trajectories_and_problems(opened: Callable) -> None:
    one = board()
    trajectory = one.trajectories[1]
    order = tuple(position for position in trajectory.order if position != 1)
    bare = replace(trajectory, order=order, step=tuple(range(9)), logp=trajectory.logp[:9], candidates=None, others={})
    other = replace(one, problem="another", prompt=(1, 2, *one.prompt[2:]), trajectories=(bare,))
    page = opened(viewer.page([one, other]))
    page.select_option(".pane[data-side=left] select", label="random")
    page.select_option(".pane[data-side=right] select", label="left_to_right")
    # A trajectory that was not shown before is unpacked first.
    expect(page.locator(".pane[data-side=right] .verdict")).to_contain_text("✗ 2 wrong")
    expect(cells(page, "right", ".wrong")).to_have_count(2)
    expect(cells(page, "left", ".wrong")).to_have_count(0)
    page.select_option(".pane[data-side=right] select", label="nothing beside it")
    expect(page.locator(".pane[data-side=right]")).to_be_hidden()
    page.get_by_role("button", name="Compare…").click()
    expect(page.locator(".pane[data-side=right]")).to_be_visible()
    # The other problem has one trajectory without candidates.
    page.select_option("#problem", label="another")
    expect(page.locator("#where")).to_have_text("step 9 of 9")
    assert page.locator(".pane[data-side=right]").is_hidden()
    page.keyboard.press("Home")
    assert "9 positions are hidden." in page.locator(".pane[data-side=left] .details").inner_text()


def test_text_with_blocks_end_tokens_and_markup(opened: Callable, shot: Callable) -> None:
    page = opened(viewer.page([words()], title="<b>Title</b> & co"))
    assert page.title() == "<b>Title</b> & co" == page.locator("h1").inner_text()
    assert page.locator(".pane[data-side=left] .block").all_inner_texts() == ["block 1", "block 2"]
    tokens = page.locator(".pane[data-side=left] .token")
    assert tokens.count() == 24 and tokens.nth(3).inner_text().strip() == HACK
    assert page.evaluate("window.hacked") is None
    assert "end" in tokens.nth(20).get_attribute("class") and "⏎" in tokens.nth(4).inner_text()
    assert tokens.nth(5).bounding_box()["y"] > tokens.nth(4).bounding_box()["y"]  # a newline ends the line
    page.locator("#step").fill("5")
    assert page.locator(".pane[data-side=left] .token.shown").count() == 5
    # Of the block of 8, at the fifth decision 4 are candidates, and one of them is what it chose.
    assert page.locator(".pane[data-side=left] .token.candidate").count() == 3
    width = tokens.nth(12).bounding_box()["width"]
    page.locator(".pane[data-side=left] .token.candidate").first.hover()
    assert "Position" in page.locator(".pane[data-side=left] .details h2").inner_text()
    assert page.locator(".pane[data-side=left] .details li").count() == 4
    shot(page, "text")
    page.keyboard.press("End")
    assert tokens.nth(12).bounding_box()["width"] == pytest.approx(
        width, abs=4
    )  # the text does not jump while it fills


@pytest.mark.parametrize("make", [board, words, lambda: large(96)], ids=["board", "text", "long"])
def test_no_horizontal_scrolling_on_a_phone(make: Callable, opened: Callable, shot: Callable) -> None:
    one = make()
    page = opened(viewer.page([one]), 360, 740, has_touch=True, is_mobile=True)
    wide = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
    assert page.evaluate(wide) <= 360
    page.click("#first")
    page.click("#forward")
    assert page.evaluate(wide) <= 360
    shot(page, f"phone-{one.problem.replace(' ', '-')}")


def test_damaged_traces_in_the_page_are_refused(opened: Callable) -> None:
    good = trace_file.as_json(board())
    for traces, message in (
        ([], "there is no trace in this page"),
        ([{**good, "version": 7}], "version: expected 1, got 7; record the trace again"),
        ([{**good, "prompt": "x"}], "prompt: expected a list"),
        (
            [{**good, "trajectories": [{**good["trajectories"][0], "order": [0, 0]}]}],
            "order: expected each position once",
        ),
        ([None], "expected a trace"),
    ):
        page = opened(viewer.page_of_json(traces))
        assert message in page.get_by_role("alert").inner_text()
        assert page.locator(".controls").is_hidden()
    damaged = json.loads(json.dumps(good))
    damaged["trajectories"][0]["candidates"]["score"] = damaged["trajectories"][0]["candidates"]["eligible"]
    page = opened(viewer.page_of_json([damaged]))
    assert "score: expected" in page.get_by_role("alert").inner_text()


def test_opening_a_trace_file(opened: Callable, tmp_path: Path) -> None:
    page = opened(viewer.page([board()]))
    (tmp_path / "bad.json").write_text("{")
    page.locator("#file").set_input_files(tmp_path / "bad.json")
    page.get_by_role("alert").wait_for()
    assert "bad.json cannot be shown: it is not JSON" in page.get_by_role("alert").inner_text()
    assert where(page) == "step 10 of 10"  # what was there is still there
    trace.write(words(), tmp_path / "good.json")
    page.locator("#file").set_input_files(tmp_path / "good.json")
    page.get_by_role("alert").wait_for(state="hidden")
    expect(page.locator("#where")).to_have_text("step 16 of 16")
    assert page.locator(".pane .token").count() == 48


def test_javascript_unpacks_the_candidates_of_python(opened: Callable) -> None:
    one = large(48)
    page = opened(viewer.page([one]))
    found = page.evaluate(
        """async () => {
            const trace = JSON.parse(document.getElementById("traces").textContent).traces[0];
            const c = await Traces.candidates(trace, trace.trajectories[0]), out = [];
            for (let s = 0; s < 48; s++) for (let i = 0; i < 48; i++) {
                const place = c.place(s, i);
                if (place >= 0) out.push([s, i, c.score(place), c.alternatives(place).map(a => [a.token, a.p])]);
            }
            return out;
        }"""
    )
    candidates = one.trajectories[0].candidates
    assert candidates is not None
    where_to = np.argwhere(candidates.eligible)
    assert len(found) == len(where_to)
    for (step, place, score, alternatives), at, n in zip(found, where_to, range(len(found)), strict=True):
        assert (step, place) == tuple(at)
        assert score == pytest.approx(float(candidates.score[n]), rel=2**-12)
        shown = [
            (int(t), float(p)) for t, p in zip(candidates.token[n], candidates.probability[n], strict=True) if p > 2e-7
        ]
        assert [a[0] for a in alternatives[: len(shown)]] == [token for token, _ in shown]
        assert [a[1] for a in alternatives[: len(shown)]] == pytest.approx([p for _, p in shown], abs=7e-5)


def test_a_trace_of_512_tokens_opens_quickly(opened: Callable) -> None:
    """In CPU time of the page, which does not depend on what else the machine runs."""
    html = viewer.page([large()])
    assert len(html) < 8e6
    page = opened(html)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def spent() -> float:
        return next(m["value"] for m in session.send("Performance.getMetrics")["metrics"] if m["name"] == "ThreadTime")

    opening = spent()
    assert 0 < opening < 2
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
        page.evaluate("document.body.offsetHeight")
    assert where(page) == "step 502 of 512"
    assert (spent() - opening) / 10 < 0.4


def test_a_drawing_appears_atom_by_atom_and_runs_nothing(opened: Callable) -> None:
    one = words()
    first, last = one.trajectories[0].order[0], one.trajectories[0].order[-1]
    parts = "".join(f"<path class='atom-{nth}' d='M0 0h9' style='stroke:#000'/>" for nth in range(2))
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><script>window.hacked = 1</script>{parts}</svg>"
    )
    drawn = replace(one.trajectories[0], drawing=Drawing(svg, ((first, 0), (last, 1))))
    written = trace_file.as_json(replace(one, trajectories=(drawn,)))
    assert from_json(json.loads(json.dumps(written))).trajectories[0].drawing == drawn.drawing
    page = opened(viewer.page([from_json(json.loads(json.dumps(written)))]))

    def shown() -> str:
        return unquote(page.locator(".picture").first.get_attribute("src"))

    assert "atom-0" in shown() and "atom-1" in shown()
    page.keyboard.press("Home")
    assert "atom-0" not in shown() and "atom-1" not in shown()
    page.keyboard.press("ArrowRight")
    assert "atom-0" in shown() and "atom-1" not in shown()
    assert page.evaluate("window.hacked") is None
    assert page.get_by_text("nothing that can be drawn").first.is_hidden()
    both = opened(
        viewer.page([replace(one, trajectories=(drawn, one.trajectories[1]))])
    )  # the second one is no picture
    assert [both.locator(f".pane[data-side={side}] .picture").is_visible() for side in ("left", "right")] == [
        True,
        False,
    ]
    assert both.locator(".pane[data-side=right]").get_by_text("nothing that can be drawn").is_visible()
    neither = opened(viewer.page([one]))
    assert neither.locator(".picture:visible, p:visible:has-text('can be drawn')").count() == 0
    written["trajectories"][0]["drawing"]["parts"] = [[10_000, 0]]
    with pytest.raises(ValueError, match="drawing: expected positions from 0"):
        from_json(written)


def test_ends_that_write_nothing_take_no_place(opened: Callable) -> None:
    """What a model puts around a text, or a reaction: it is neither shown nor counted, and the first cell shown takes the focus."""
    one = words()
    end = one.prompt[0]
    ends = one.prompt.count(end)
    page = opened(viewer.page([replace(one, labels={**one.labels, end: ""})]))
    shown = page.locator(".pane[data-side=left] .token:visible")
    assert ends and shown.count() == 24 - ends
    assert "∅" not in shown.first.inner_text() and shown.first.get_attribute("aria-label").startswith("position 1:")
    assert shown.last.get_attribute("aria-label").startswith(f"position {24 - ends}:")
    assert page.locator("#about").inner_text().endswith(f"16 hidden of {24 - ends}")
    shown.first.focus()
    assert page.evaluate("document.activeElement.tabIndex") == 0
