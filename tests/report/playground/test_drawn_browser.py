"""The molecules tab in a browser: start, stream, stop, four decodings, alternatives of atoms, copied lines, errors, phone, dark."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.playground import free, serving, until
from support.reactions import tiny_reactions
from unmask.cli.main import COMMANDS
from unmask.cli.shell import parse
from unmask.report.playground import drawn
from unmask.report.playground.models import Models
from unmask.report.playground.server import Playground
from unmask.tasks.kinds import Drawing
from unmask_studies.reactions import playground

WIDE = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
REACTION = "CO.CC(=O)O>>CO?3"
SVG = """<svg viewBox='0 0 36 26'>
  <ellipse class='atom-0' cx='9' cy='13' rx='5' ry='5' style='fill:#3C78E6;stroke:#3C78E6'/>
  <path class='bond-0 atom-0 atom-1' d='M 9 13 L 27 13' style='stroke:#000000;stroke-width:2px'/>
  <path class='atom-1' d='M 25 11 L 29 15' style='stroke:#000000'/></svg>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_reactions(tmp_path_factory.mktemp("reactions"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Playground]:
    with serving(Models((str(folder),))) as running:
        yield running


@pytest.fixture
def drawable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model does not write molecules: every answer is drawn as atoms at its first two hidden positions."""

    def draw_tokens(label: Callable[[int], str]) -> Any:
        return lambda tokens, when, hidden: Drawing(SVG, tuple((place, atom) for atom, place in enumerate(hidden[:2])))

    monkeypatch.setattr(playground, "draw_tokens", draw_tokens)


def write(page: Any, text: str) -> None:
    page.fill("#drawn-text", text)


@pytest.mark.usefixtures("drawable")
def test_four_decodings_with_their_pictures(
    opened: Callable, folder: Path, shot: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    page = opened("", permissions=["clipboard-read", "clipboard-write"])
    # Its denoiser is the only one: its tab is open, the text tab has the shipped one.
    assert page.get_by_role("tab", name="Molecules").get_attribute("aria-selected") == "true"
    assert page.get_by_role("tab").count() == 3 and page.locator("#model option").all_inner_texts() == ["arithmetic"]
    write(page, REACTION)
    assert page.input_value("#drawn-example") == ""
    while page.locator("#drawn-entries .decoding").count() < 4:
        page.click("#drawn-add")
    assert page.locator("#drawn-add").is_disabled()
    for number, name in enumerate(["confidence", "left_to_right", "random", "margin"]):
        page.select_option(f"#drawn-entries select[aria-label='Scheduler of decoding {number + 1}']", name)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#after:not([hidden])")
    assert page.locator(".pane").count() == page.locator(".pane .sketch svg").count() == 4
    first = page.locator(".pane[data-lane='0']")
    assert first.locator(".judged").inner_text() in ("not a valid molecule", "valid molecules, atoms conserved")
    assert first.locator(".token:visible").first.inner_text() == "C"  # [CLS] is not shown
    svg = first.locator(".sketch svg")
    assert svg.get_attribute("role") == "img" and "confidence: molecule after step 3" in svg.get_attribute("aria-label")
    assert first.locator(".sketch .guess").count() == 0
    # Alternatives of an atom; the atom of a token.
    first.locator(".sketch ellipse").hover()
    assert "with probability" in first.locator(".details p").inner_text() and first.locator(".details li").count()
    first.locator(".token.shown").nth(1).focus()
    marked = first.locator(".sketch .pointed")
    assert marked.count() == 1 and marked.get_attribute("d") == "M 25 11 L 29 15"
    shot(page, "play-molecules")
    answer = "".join(first.locator(".token:visible").all_inner_texts())
    for kind in ("Python", "command"):
        first.get_by_role("button", name=f"Copy as {kind}").click()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert first.locator(".lines").inner_text() == copied
        if kind == "Python":
            exec(copied, {})
        else:
            parse(COMMANDS, "unmask", shlex.split(copied)[1:]).run()
        assert answer in capsys.readouterr().out
    page.click("#through")
    page.frame_locator("#frame iframe").locator("html[data-ready]").wait_for()
    assert page.frame_locator("#frame iframe").locator(".pane").count() == 2


@pytest.mark.usefixtures("drawable")
def test_what_is_still_hidden_is_a_guess_and_a_race_is_stopped(
    opened: Callable, server: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def slow(view: Any) -> Any:
        if view.step:
            released.wait(60)
        return view.confidence

    monkeypatch.setattr(drawn, "load_scheduler", lambda *names: slow)
    page = opened("molecules")
    write(page, "CO.CC(=O)O>>?8")
    page.click("#race")
    page.wait_for_selector(".sketch svg")
    assert page.locator(".pane[data-lane='0'] .sketch .guess").count() >= 2  # at most one of both atoms is revealed
    assert page.locator("#where").inner_text() == "reveal 1 of 8"
    page.keyboard.press("Escape")
    released.set()
    assert page.locator("#stop").is_hidden() and page.locator("#after").is_hidden()
    assert until(lambda: free(server), 60)


def test_errors_are_explained_in_the_page(opened: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    page = opened("molecules")
    problem = page.locator("#drawn-setup .problem")
    for text, message in (
        ("CXO>>C?", "Not a SMILES string: unknown character 'X' at position 2 of 'CXO>>C?'."),
        ("C(C>>C?3", "Not a valid molecule: 'C(C'."),
        ("CBr>>C?3", "The model does not know the token 'Br' of 'CBr>>C???'."),
        ("CO>>C?70", "The reaction is too long for the model: 76 tokens with its ends, expected at most 64."),
        ("CO>>COC", "Expected reactants>>product with ? for what is open, got 'CO>>COC'."),
        ("C>>C?9..2", "Expected one range of at most 30 lengths, such as ?5..9, got 'C>>C?9..2'."),
    ):
        write(page, text)
        assert problem.is_hidden()
        page.click("#race")
        problem.get_by_text(message, exact=True).wait_for()
    monkeypatch.setattr(playground, "find_spec", lambda name: None)
    bare = opened("molecules")
    missing = bare.locator("#drawn-setup .problem")
    assert missing.inner_text() == "Molecules need RDKit: pip install unmask[chem]."
    bare.click("#race")
    missing.get_by_text("Molecules need RDKit").wait_for()
    assert bare.locator("#track").is_hidden()


def test_molecules_on_a_phone_by_keyboard(opened: Callable, shot: Callable) -> None:
    page = opened("molecules", 360, 740, has_touch=True, is_mobile=True, color_scheme="dark")
    write(page, "CO.CC(=O)O>>?9")
    page.click("#race")
    page.wait_for_selector("#after:not([hidden])")
    assert page.evaluate(WIDE) <= 360
    # What the tiny model writes is no molecule, which stands in place of the picture.
    assert page.locator(".pane[data-lane='0'] .sketch").inner_text() == "The answer cannot be drawn."
    shot(page, "play-molecules-phone-dark")
    page.locator("#tab-molecules").focus()
    for key, name in (("ArrowRight", "Text"), ("ArrowLeft", "Molecules"), ("ArrowLeft", "Boards")):
        page.keyboard.press(key)
        assert page.get_by_role("tab", name=name).get_attribute("aria-selected") == "true"
        assert page.evaluate("document.activeElement.textContent") == name
    assert page.url.endswith("#boards") and page.locator("#drawn-setup").is_hidden()
