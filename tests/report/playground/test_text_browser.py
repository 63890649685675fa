"""Text races in a browser: start, stream, stop, leave, four decodings, holes, errors; the same tokens as offline."""

from __future__ import annotations

import ast
import re
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.playground import free, until
from unmask.cli.shell import parse
from unmask.decoding.options import Decoding
from unmask.denoisers.loading import load_denoiser
from unmask.generation.generate import generate, infill
from unmask.generation.text_canvas import load_tokenizer
from unmask.report.playground import text as texts
from unmask.report.playground.server import Playground
from unmask.runs.names import EntryPoints

WIDE = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"


def revealed(pane: Any) -> list[str]:
    return pane.locator(".token.shown").all_inner_texts()


def fill(page: Any, folder: Path, text: str, mode: str = "plain", length: int = 10) -> None:
    page.select_option("#model", str(folder))
    page.fill("#written", text)
    page.check(f"input[name=mode][value={mode}]")
    if mode != "holes":
        page.fill("#length", str(length))


def test_four_decodings_of_a_text_equal_the_offline_ones(
    opened: Callable, folder: Path, shot: Callable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = opened("text", permissions=["clipboard-read", "clipboard-write"])
    fill(page, folder, "w3 w4")
    while page.locator(".decoding").count() < 4:
        page.click("#add-entry")
    assert page.locator("#add-entry").is_disabled()
    for number, name in enumerate(["confidence", "left_to_right", "random", "confidence"]):
        page.select_option(f"select[aria-label='Scheduler of decoding {number + 1}']", name)
    last = page.locator(".decoding").nth(3)
    last.locator("summary").click()
    last.locator("input[name=block]").fill("4")
    last.locator("input[name=pace]").fill("threshold:p=0.3")
    assert last.locator("summary").inner_text() == "block 4, pace threshold:p=0.3"
    page.click("#race")
    page.wait_for_selector("#after:not([hidden])")
    model, words = load_denoiser(folder), load_tokenizer(folder)
    for number, (name, decoding) in enumerate(
        [
            ("confidence", Decoding()),
            ("left_to_right", Decoding()),
            ("random", Decoding()),
            ("confidence", Decoding(block=4, pace="threshold:p=0.3")),
        ]
    ):
        done = generate(model, words, ["w3 w4"], name, decoding, length=10, seeds=[0])
        pane = page.locator(f".pane[data-lane='{number}']")
        tokens = [
            t
            for t, r in zip(done.trajectory.tokens[0].tolist(), done.trajectory.rank[0].tolist(), strict=True)
            if r >= 0
        ]
        assert [word.strip() for word in revealed(pane)] == [words.decode([token]) for token in tokens]
        logp = f"{done.trajectory.total_logp.item():.2f}".replace("-", "−")
        assert (
            pane.locator(".chart-caption")
            .inner_text()
            .endswith(f"{done.trajectory.denoiser_calls} calls · log p {logp}")
        )
        assert (
            pane.locator(".verdict").inner_text().startswith("decided at ")
            and pane.locator(".chart .decided").count() <= 1
        )
    # Alternatives of a token, the copied lines, the viewer.
    first = page.locator(".pane[data-lane='0']")
    first.locator(".token.shown").first.hover()
    assert "with probability" in first.locator(".details").inner_text() and first.locator(".details li").count() == 4
    shot(page, "play-text")
    for kind in ("Python", "command"):
        page.locator(".pane[data-lane='3']").get_by_role("button", name=f"Copy as {kind}").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert page.locator(".pane[data-lane='3'] .lines").inner_text() == copied
        if kind == "Python":
            exec(copied, {})
            assert capsys.readouterr().out == f"{done.texts[0]}\n"
        else:
            assert shlex.split(copied) == [
                *("unmask", "generate", "--denoiser", str(folder), "--prompt", "w3 w4", "--length", "10"),
                *("--scheduler", "confidence", "--block", "4", "--pace", "threshold:p=0.3"),
            ]
            run_command(copied, tmp_path, capsys, done.texts[0])
    page.click("#through")
    page.frame_locator("#frame iframe").locator("html[data-ready]").wait_for()
    assert page.frame_locator("#frame iframe").locator(".pane").count() == 2


def run_command(copied: str, folder: Path, capsys: pytest.CaptureFixture[str], expected: str) -> None:
    """The copied command prints the same text."""
    words = shlex.split(copied)[1:]
    parse(EntryPoints("unmask.commands"), "unmask", [*words, "--no-live"]).run()
    assert expected in capsys.readouterr().out


def test_holes_are_filled_and_errors_explained(opened: Callable, folder: Path, shot: Callable) -> None:
    page = opened("text")
    holes = '{"w3": <mask:2>, "w4": [<mask>, w5]}'
    fill(page, folder, holes, "holes")
    assert page.locator("#length").is_disabled() and page.input_value("#text-example") == ""
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#after:not([hidden])")
    model, words = load_denoiser(folder), load_tokenizer(folder)
    done = infill(model, words, [holes], "confidence", seeds=[0])
    kept = [words.decode([t]) for t in done.trajectory.tokens[0].tolist()]
    shown = page.locator(".pane[data-lane='0'] .token").all_inner_texts()
    assert [word.strip() for word in shown] == kept and page.locator(".pane[data-lane='0'] .token.shown").count() == 3
    assert page.locator(".pane[data-lane='0'] .token.given").count() == len(kept) - 3
    shot(page, "play-holes")
    for text, mode, message in (
        ("w3 w4", "holes", "Text 1 has no gap: write <mask> for a token, or <mask:8> for eight."),
        (f"w3 {words.decode([model.mask_id])}", "plain", "Prompt 1 holds the denoiser's mask token: to fill gaps"),
        ("w3", "plain", "Too long: "),
    ):
        fill(page, folder, text, mode, 1000)
        assert page.locator("#text-setup .problem").is_hidden()
        page.click("#race")
        page.locator("#text-setup .problem, #failed").get_by_text(message).first.wait_for()
    fill(page, folder, "w3", "plain", 8)
    page.locator(".decoding summary").first.click()
    page.locator(".decoding").first.locator("input[name=block]").fill("0")
    page.click("#race")
    page.get_by_text("Decoding 1: block: expected a number greater than or equal to 1, got int 0.").wait_for()


def test_a_text_race_is_stopped_and_left(
    opened: Callable, server: Playground, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    released = threading.Event()

    def slow(view: Any) -> Any:
        steps.append(view.step)
        released.wait(0.1 if len(steps) < 4 else 2)
        return view.confidence

    monkeypatch.setattr(texts, "load_scheduler", lambda *names: slow)
    page = opened("text")
    fill(page, folder, "w3 w4", length=16)
    page.click("#race")
    page.wait_for_selector(".token.shown")
    other = opened("text")
    other.click("#race")
    other.get_by_text("1 race is before yours").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("#stop").is_hidden() and page.locator("#after").is_hidden()
    other.wait_for_selector(".token.shown")
    other.close()
    assert until(lambda: free(server), 60)
    count = len(steps)
    released.set()
    time.sleep(0.3)
    assert len(steps) == count < 2 * 16 + 2 * 40


def test_text_on_a_phone_by_keyboard(opened: Callable, shot: Callable) -> None:
    page = opened("text", 360, 740, has_touch=True, is_mobile=True, color_scheme="dark")
    page.select_option("#text-example", "1")
    page.click("#race")
    page.wait_for_selector("#after:not([hidden])")
    assert page.evaluate(WIDE) <= 360
    shot(page, "play-text-phone-dark")
    first = page.locator(".pane[data-lane='0'] .token").first
    first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    moved = page.evaluate(
        "[...document.querySelectorAll(\".pane[data-lane='0'] .token\")].indexOf(document.activeElement)"
    )
    assert moved == 3 and page.locator(".pane[data-lane='0'] .details p").inner_text().endswith("was given.")
    page.locator("#tab-text").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#setup").is_visible() and page.locator("#text-setup").is_hidden()
    assert page.get_by_role("tab", name="Boards").get_attribute("aria-selected") == "true"
    assert page.locator("#track").is_hidden() and page.url.endswith("#boards")


def test_the_shipped_example_ends_before_its_length(opened: Callable) -> None:
    """The page opens on it: one click is a race, whose rows stop at their end tokens."""
    page = opened("text")
    page.click("#race")
    page.wait_for_selector("#after:not([hidden])")
    assert page.locator(".pane h3").all_inner_texts() == ["confidence", "left to right", "learned order (SAS)"]
    assert re.fullmatch(r"reveal \d\d, the last", page.locator("#where").inner_text())
    assert page.evaluate("[clock.value, clock.max]") == [40, 40]
    assert page.locator("#result").inner_text() == "Right: learned order (SAS). Wrong: confidence, left to right."
    assert page.locator(".judged").all_inner_texts() == ["✗ wrong", "✗ wrong", "✓ right"]
    assert page.locator("#note").inner_text().startswith("Four lines")
    page.fill("#written", "b+1;3-1;")
    assert not page.locator("#note").inner_text(), "it explains the example, not what the user writes"


def test_scripts_by_themselves(opened: Callable) -> None:
    page = opened("text")
    names = "['sas-a', 'sas-a, block 4', 'sas-ab', 'left_to_right'].map(name => Texts.nameScheduler(name, 'sas-a'))"
    assert page.evaluate(names) == ["learned order (SAS)", "learned order (SAS), block 4", "sas-ab", "left to right"]
    assert page.evaluate("Texts.nameScheduler('sas-a', null)") == "sas-a"
    parsed = page.evaluate('Stream.parse("event: a\\ndata: {\\"n\\":1}\\n\\nevent: b\\ndata: [2]\\n\\nevent: c\\nda")')
    events = [{"event": "a", "data": {"n": 1}}, {"event": "b", "data": [2]}]
    assert parsed == {"events": events, "rest": "event: c\nda"}
    text = 'it\'s "quoted" $HOME `x` \\\n<mask:2>'
    request = {"denoiser": "a b", "mode": "holes", "text": text, "length": 5, "seed": 7}
    request["entries"] = [{"scheduler": "random", "options": {"stop_at_end": False, "top_p": 0.5}}]
    settings = {"dtype": "bfloat16", "device": "auto", "tokenizer": "t"}
    command = page.evaluate("([r, s]) => Texts.asCommand(r, 0, s)", [request, settings])
    assert shlex.split(command) == [
        *("unmask", "generate", "--denoiser", "a b", "--prompt", text, "--infill", "--scheduler", "random"),
        *(
            "--no-stop-at-end",
            "--top-p",
            "0.5",
            "--seed",
            "7",
            "--tokenizer",
            "t",
            "--dtype",
            "bfloat16",
            "--device",
            "auto",
        ),
    ]
    tree = ast.parse(page.evaluate("([r, s]) => Texts.asPython(r, 0, s)", [request, settings]))
    values = {node.targets[0].id: node.value for node in tree.body if isinstance(node, ast.Assign)}  # pyright: ignore
    assert ast.literal_eval(values["text"]) == text
    assert ast.unparse(values["denoiser"]) == "load_denoiser('a b', torch.bfloat16, **device_options('auto'))"
    assert "Decoding(stop_at_end=False, top_p=0.5), seeds=[7 * 2 ** 32]" in ast.unparse(values["done"])
    assert page.evaluate("['a', ' ', '\\n', ' a\\n', ''].map(Texts.visible)") == ["a", "␣", "⏎", " a⏎", "∅"]
