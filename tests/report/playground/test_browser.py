"""The playground in a browser: puzzles in, a race, the viewer afterwards; no error in the console and no foreign request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.viewer import expect
from unmask.report.playground.puzzles import EXAMPLES
from unmask.report.playground.server import Playground

ONLY, WIKIPEDIA, _, SMALL = EXAMPLES
WIDE = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"


def puzzle_of(page: Any) -> str:
    return page.input_value("#text").replace(".", "0")


def test_a_race_and_its_viewer(opened: Callable, shot: Callable) -> None:
    page = opened()
    assert puzzle_of(page) == ONLY.puzzle and page.locator("#track").is_hidden()
    assert (
        page.locator("#clues").inner_text() == f"{81 - ONLY.puzzle.count('0')} clues, {ONLY.puzzle.count('0')} blanks"
    )
    shot(page, "play-start")
    page.click("#race")
    page.wait_for_selector("#lanes .cell.shown")
    page.wait_for_selector("#result:not([hidden])")
    assert page.locator("#result").inner_text() == "Learned order (SAS) solves it; confidence fails."
    hidden = ONLY.puzzle.count("0")
    for name in ONLY.schedulers:
        lane = page.locator(f".pane[data-scheduler={name}]")
        assert lane.locator(".cell.shown").count() == hidden == lane.locator(".chart rect").count()
        assert lane.locator(".cell.given").count() == 81 - hidden
        assert lane.locator(".cell.first-wrong").count() == (name == "confidence")
    verdict = page.locator(".pane[data-scheduler=confidence] .verdict").inner_text()
    wrong = page.locator(".pane[data-scheduler=confidence] .cell.wrong").count()
    assert verdict.startswith(f"✗ {wrong} wrong, the first at reveal ") and wrong > 0
    assert page.locator(".pane[data-scheduler=sas] .verdict").inner_text() == "✓ solved"
    assert page.locator("#where").inner_text() == f"reveal {hidden} of {hidden}"
    assert "solved" in page.locator("#live").inner_text()
    assert page.locator("#race").inner_text() == "Race again" and page.locator("#stop").is_hidden()
    shot(page, "play-raced")
    page.click("#through")
    frame = page.frame_locator("#frame iframe")
    frame.locator("html[data-ready]").wait_for()
    assert frame.locator("#where").inner_text() == f"step {hidden} of {hidden}"
    assert (
        frame.locator(".pane").first.locator(".verdict").inner_text()
        == f"✗ {wrong} wrong, the first at step {verdict.split()[-1]}"
    )
    page.wait_for_function("parseFloat(document.querySelector('#frame iframe').style.height) > 900")
    shot(page, "play-through")
    page.click("#theme")
    frame.locator("html[data-theme=dark]").wait_for()
    page.click("#through")
    assert page.locator("#frame iframe").count() == 0
    page.goto(page.locator("#apart").evaluate("link => link.href"))
    page.wait_for_selector("html[data-ready]")
    assert page.locator("h1").inner_text() == "The order of thought"


def test_puzzles_typed_pasted_generated_and_from_files(opened: Callable, shot: Callable, tmp_path: Path) -> None:
    page = opened()
    # As text: sixteen characters are a small board, with a denoiser that fits it.
    page.fill("#text", SMALL.puzzle)
    assert page.locator("#editor input").count() == 16 and page.input_value("#denoiser") == "sudoku-4x4-imperfect"
    assert page.locator("#example option:checked").inner_text() == "your own"
    # Into the board: the focus moves on after a digit, and invalid digits are ignored.
    page.locator("#editor input").nth(1).focus()
    page.keyboard.type("093x")
    assert page.input_value("#text")[:4] == "1.3." and page.locator("#editor input").nth(3).evaluate(
        "e => e === document.activeElement"
    )
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Backspace")
    page.keyboard.press("ArrowDown")
    page.keyboard.type("4")
    assert page.input_value("#text")[:8] == "1.....4."
    page.locator("#editor input").first.evaluate(
        """(cell, text) => { const data = new DataTransfer(); data.setData("text/plain", text);
        const how = {inputType: "insertFromPaste", dataTransfer: data, cancelable: true};
        cell.dispatchEvent(new InputEvent("beforeinput", how)); }""",
        WIKIPEDIA.puzzle,
    )
    assert puzzle_of(page) == WIKIPEDIA.puzzle and page.input_value("#denoiser").startswith("sudoku-9x9")
    page.select_option("#denoiser", "sudoku-4x4")
    assert puzzle_of(page) == SMALL.puzzle and page.input_value("#denoiser") == "sudoku-4x4"
    page.select_option("#difficulty", "easy")
    page.click("#random")
    page.wait_for_function("text => document.getElementById('text').value !== text", arg=SMALL.puzzle.replace("0", "."))
    assert 8 <= 16 - puzzle_of(page).count("0") <= 10
    # From a file.
    (tmp_path / "puzzles.csv").write_text(f"puzzle,solution\n{SMALL.puzzle},\nnone,\n{WIKIPEDIA.puzzle},\n")
    page.locator("#file").set_input_files(tmp_path / "puzzles.csv")
    page.wait_for_selector("#rows button")
    assert page.locator("#rows button").all_inner_texts()[0].split("\n")[:2] == ["line 2", "5 clues"]
    assert "1 skipped (line 3" in page.locator("#file-name").inner_text()
    page.locator("#rows button").nth(1).click()
    assert puzzle_of(page) == WIKIPEDIA.puzzle and page.locator("#rows [aria-current=true]").count() == 1
    shot(page, "play-file")
    (tmp_path / "long.txt").write_text(f"{SMALL.puzzle}\n" * 20_000)
    page.locator("#file").set_input_files(tmp_path / "long.txt")
    page.locator("#rows button").nth(19).wait_for()
    (tmp_path / "huge.txt").write_bytes(b"1" * (10 * 2**20 + 1))
    page.locator("#file").set_input_files(tmp_path / "huge.txt")
    page.wait_for_selector("#problem:not([hidden])")
    assert "is too large: expected at most 10 MB, got 10.0 MB." in page.locator("#problem").inner_text()
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    page.locator("#file").set_input_files(tmp_path / "bytes.txt")
    page.locator("#problem").get_by_text("bytes.txt: expected a text file").wait_for()


def test_invalid_puzzles_are_explained(opened: Callable, shot: Callable) -> None:
    page = opened()
    page.fill("#text", "1..1" + "." * 12)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.get_by_role("alert").inner_text() == "This puzzle has no solution: 1 stands twice in row 1."
    assert page.locator("#editor .cell.bad").count() == 2 and page.locator("#track").is_hidden()
    shot(page, "play-clash")
    page.fill("#text", "1" * 80)
    assert page.locator("#problem").is_hidden()
    page.click("#race")
    page.get_by_text("got 80: 1 missing").wait_for()
    page.fill("#text", "1...2" + "." * 76)
    page.click("#race")
    page.get_by_text("several solutions: row 1, column 2 may be").wait_for()
    assert page.locator("#editor .cell.bad").count() >= 4
    shot(page, "play-several")
    # The same scheduler twice.
    page.select_option("#example", "0")
    page.select_option("select[aria-label='Scheduler 2']", "confidence")
    page.click("#race")
    page.get_by_text("The same scheduler is named twice").wait_for()


def test_schedulers_are_added_and_removed_and_keys_work(opened: Callable, shot: Callable) -> None:
    page = opened(clock=True)
    page.select_option("#example", "3")
    for _ in range(2):
        page.click("#add")
    assert page.locator("#schedulers select").count() == 4 and page.locator("#add").is_disabled()
    assert len(set(page.locator("#schedulers select").evaluate_all("all => all.map(one => one.value)"))) == 4
    page.locator("h1").click()
    page.keyboard.press("r")
    page.wait_for_selector("#result:not([hidden])")
    shot(page, "play-four")
    page.keyboard.press("s")
    page.frame_locator("#frame iframe").locator("html[data-ready]").wait_for()
    for _ in range(3):
        page.locator("#schedulers button").first.click()
    assert page.locator("#schedulers select").count() == 1 and page.locator("#schedulers button").is_disabled()
    # Slowly, and stopped halfway: what was shown stays. Time passes only by the test's clock.
    page.select_option("#speed", "500")
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 60)
    page.keyboard.press("Control+Enter")
    lane = page.locator("#lanes.single .cell.shown")  # the four lanes of the race before are gone
    expect(lane).to_have_count(1)
    assert page.locator("#frame iframe").count() == 0
    page.clock.run_for(500)
    expect(lane).to_have_count(2)
    page.keyboard.press("Escape")
    assert page.locator("#stop").is_hidden()
    page.clock.run_for(10_000)
    assert lane.count() == 2 and page.locator("#result").is_hidden()


def test_a_phone_in_the_dark_and_a_server_that_is_gone(opened: Callable, server: Playground, shot: Callable) -> None:
    page = opened("boards", 360, 740, has_touch=True, is_mobile=True, color_scheme="dark")
    assert page.evaluate(WIDE) <= 360
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(14, 17, 21)" and page.locator("#theme").inner_text() == "Light"
    page.select_option("#example", "3")
    page.click("#race")
    page.wait_for_selector("#result:not([hidden])")
    assert page.evaluate(WIDE) <= 360
    shot(page, "play-phone-dark")
    page.click("#theme")
    assert page.evaluate(ground) == "rgb(246, 246, 243)"
    page.evaluate("() => { window.fetch = () => Promise.reject(new TypeError('gone')); }")
    page.click("#race")
    page.get_by_text("The playground does not answer: is it still running?").wait_for()
    page.click("#random")
    page.locator("#problem").get_by_text("The playground does not answer: is it still running?").wait_for()
