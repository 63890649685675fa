"""A third tab of the playground, from a distribution that knows one kind of text: entry points ``unmask.tabs``.

The tab appears when one of the denoisers that the playground was started with is its own; of several tabs, the first one does.
``docs/architecture.md`` names the seam, ``unmask_studies.reactions.playground`` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from unmask.decoding.options import Decoding
from unmask.decoding.protocols import Canvas, Denoiser
from unmask.generation.text_canvas import Tokenizer
from unmask.runs.names import EntryPoints
from unmask.tasks.kinds import Drawing

TABS = EntryPoints("unmask.tabs")
Draw = Callable[[Sequence[int], Mapping[int, float], Collection[int]], Drawing | None]
"""``draw(tokens, when, hidden)``: ``when`` has the positions revealed so far, from 0 (first) to 1 (last); ``hidden`` has all
positions that were hidden at the start. Tokens that are not revealed yet are the denoiser's best guesses. None: no picture."""


class Example(NamedTuple):
    """A text to begin with, and the schedulers that race on it; the first learned one of the command line joins them."""

    name: str
    text: str
    schedulers: tuple[str, ...] = ("confidence", "left_to_right")


class Judgement(NamedTuple):
    """What is known of an answer: a line for the page, whether it is good, and a rank among answers of other lengths."""

    line: str
    good: bool
    rank: tuple[float, ...]


class Recipe(NamedTuple):
    """One decoding of a race, as *copy as Python* and *copy as command* write it down."""

    denoiser: str
    text: str
    scheduler: str
    decoding: Decoding
    seed: int
    settings: Mapping[str, str | None]
    """``dtype``, ``device`` and ``tokenizer`` of the command line."""


@runtime_checkable
class Tab(Protocol):
    """What a tab adds to the playground. The entry point is called without arguments."""

    title: str
    heading: str
    caption: str
    examples: Sequence[Example]
    """The first one is in the page when it opens."""

    def missing(self) -> str | None:
        """One line, if something that is not installed keeps the tab from working."""
        ...

    def accepts(self, tokenizer: Tokenizer) -> bool:
        """Whether a denoiser with this tokenizer belongs into the tab, and not among those for any text."""
        ...

    def alternatives(self, text: str) -> Sequence[str]:
        """The texts that a user's text stands for, such as one for each length. The race runs on the best one."""
        ...

    def canvas(self, denoiser: Denoiser, tokenizer: Tokenizer, text: str) -> Canvas:
        """One row. A ValueError is shown in the page."""
        ...

    def label_tokens(self, tokenizer: Tokenizer) -> Callable[[int], str]:
        """The text of a token id; nothing for special tokens."""
        ...

    def draw_tokens(self, tokenizer: Tokenizer) -> Draw: ...

    def judge(self, answer: str) -> Judgement: ...

    def as_python(self, recipe: Recipe) -> str: ...

    def as_command(self, recipe: Recipe) -> str: ...


class OpenTab(NamedTuple):
    """The tab that a playground shows: its name, and the denoisers that are its own."""

    name: str
    tab: Tab
    denoisers: tuple[str, ...]


def find_tab(tokenizers: Mapping[str, Tokenizer]) -> OpenTab | None:
    """The first tab that accepts one of the denoisers, given by their tokenizers."""
    for name in TABS:
        tab: Tab = TABS[name]()
        if own := tuple(denoiser for denoiser, tokenizer in tokenizers.items() if tab.accepts(tokenizer)):
            return OpenTab(name, tab, own)
    return None
