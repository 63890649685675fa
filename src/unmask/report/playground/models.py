"""What the playground was started with: its denoisers, one of them in memory at a time, and the schedulers for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from unmask.decoding.protocols import Denoiser
from unmask.denoisers.loading import load_denoiser, require_denoiser
from unmask.denoisers.placement import Placement
from unmask.generation.text_canvas import Tokenizer, load_tokenizer
from unmask.report.playground.race import Event
from unmask.report.playground.tabs import OpenTab, find_tab
from unmask.report.terminal.text import Pieces
from unmask.schedulers.loading import list_policies, load_scheduler, published_name

SHIPPED = ("arithmetic",)
"""Text denoisers inside the package."""
HEURISTICS = ("confidence", "margin", "entropy", "left_to_right", "random")


class Held(NamedTuple):
    """The denoiser in memory; a denoiser of boards has no tokenizer."""

    name: str
    denoiser: Any
    tokenizer: Tokenizer | None
    pieces: Pieces | None


@dataclass
class Models:
    """The names and folders that requests may choose from: nothing else of the machine is read."""

    denoisers: tuple[str, ...] = SHIPPED
    schedulers: tuple[str, ...] = ()
    tokenizer: str | None = None
    placement: Placement = field(default_factory=lambda: Placement(device="cpu"))
    held: Held | None = field(default=None, init=False)
    tab: OpenTab | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.placement.describe()  # refuses a device that is not there before anything is read
        for name in self.denoisers:
            require_denoiser(name)
        self.tab = find_tab({name: load_tokenizer(self.tokenizer or name) for name in self.denoisers})
        for spec in self.schedulers:
            load_scheduler(spec)

    @property
    def text_denoisers(self) -> tuple[str, ...]:
        """For any text: those that no tab has for its own kind, or the shipped ones if none is left."""
        own = () if self.tab is None else self.tab.denoisers
        return tuple(name for name in self.denoisers if name not in own) or SHIPPED

    @property
    def settings(self) -> dict[str, str | None]:
        """What of the command line the lines to copy need; the CPU needs no mention."""
        placement = self.placement
        device = None if placement.on_cpu else placement.device
        return {"dtype": placement.dtype, "device": device, "tokenizer": self.tokenizer}

    def text_schedulers(self, denoiser: str) -> list[str]:
        """For a text denoiser: those of the command line, its shipped policy, and a few heuristics."""
        shipped = self.shipped_policy(denoiser)
        return list(dict.fromkeys([*self.schedulers, *([shipped] if shipped else []), *HEURISTICS]))

    @staticmethod
    def shipped_policy(denoiser: str) -> str | None:
        """The name of the policy that ships for a denoiser, whatever its folder is called."""
        name = f"sas-{published_name(denoiser)}"
        return name if name in list_policies() else None

    def load(self, name: str, text: bool) -> Iterator[Event]:
        """Bring a denoiser into memory, in place of another; an event a second until it is there."""
        if self.held is not None and self.held.name == name:
            return
        loading, began = self._pool.submit(self._load, name, text), time.monotonic()
        while True:
            yield "loading", {"denoiser": name, "seconds": round(time.monotonic() - began)}
            try:
                return loading.result(timeout=1.0)
            except TimeoutError:
                continue

    def require(self, name: str) -> Held:
        assert self.held is not None and self.held.name == name, "load comes first"
        return self.held

    def _load(self, name: str, text: bool) -> None:
        if self.held is not None and self.held.name == name:
            return  # an earlier race, which was left, has loaded it
        self.held = None  # before the next one: there may be no room for both
        denoiser: Denoiser = load_denoiser(name, **(self.placement.options if text else {}))
        tokenizer = load_tokenizer(self.tokenizer or name) if text else None
        self.held = Held(name, denoiser, tokenizer, None if tokenizer is None else Pieces(tokenizer))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="load")
