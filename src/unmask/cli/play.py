"""``unmask play``: the playground, a local page on which decodings race."""

from __future__ import annotations

import threading
import webbrowser
from dataclasses import field
from importlib.util import find_spec
from typing import Annotated

from unmask.cli.shell import Inline, console, errors
from unmask.denoisers.placement import Placement
from unmask.runs.config import Positive, config


@config
class Play:
    """Open the playground, a local page. Several decodings race over a text, a Sudoku puzzle or a reaction; Ctrl-C ends it.

    $ unmask play
    $ unmask play --denoiser GSAI-ML/LLaDA-8B-Instruct --dtype bfloat16 --device cuda --scheduler runs/sas-text
    $ unmask play --denoiser models/rxnmapper
    $ unmask play --port 9000 --open-browser
    """

    denoiser: tuple[str, ...] = ("arithmetic",)
    """Text denoisers to choose from: shipped names, folders or hub ids, separated by commas. One at a time is in memory."""
    scheduler: tuple[str, ...] = ()
    """Further schedulers for them, separated by commas: learned policies (or the runs that trained them), names with options."""
    tokenizer: str | None = None  # A folder or hub id, if not the denoiser's own.
    placement: Annotated[Placement, Inline] = field(default_factory=Placement)  # Where the text denoiser runs.
    port: int = 8321  # The port to listen at; 0 takes a free one.
    host: str = "127.0.0.1"
    """The address to listen at. Any other than this machine's own lets others use the playground."""
    seconds: Positive = 600.0  # A race that takes longer is stopped.
    open_browser: bool = False  # Open the page in a browser.

    def run(self) -> None:
        if find_spec("starlette") is None or find_spec("uvicorn") is None:
            raise ValueError('the playground needs Starlette and uvicorn: pip install "unmask[play]"')
        from unmask.report.playground.models import Models
        from unmask.report.playground.server import Playground

        models = Models(self.denoiser, self.scheduler, self.tokenizer, self.placement)
        server = Playground(models, self.host, self.port, self.seconds)
        if not server.is_private:
            warning = f"warning: every machine that reaches {self.host} can use this playground; it has no password"
            errors.print(warning, style="yellow", soft_wrap=True)
        errors.print(f"text is decoded on {self.placement.describe()}", soft_wrap=True)
        console.print(server.url, soft_wrap=True)
        if self.open_browser:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            errors.print("the playground has ended")
