"""``unmask play``: the playground, a local page on which schedulers race."""

from __future__ import annotations

import threading
import webbrowser
from dataclasses import dataclass

from unmask.cli.shell import console, errors
from unmask.report.playground.server import Playground


@dataclass(frozen=True)
class Play:
    """Open the playground, a local page. Several schedulers race over a Sudoku puzzle; Ctrl-C ends it.

    $ unmask play
    $ unmask play --port 9000 --open-browser
    """

    port: int = 8321  # The port to listen at; 0 takes a free one.
    host: str = "127.0.0.1"
    """The address to listen at. Any other than this machine's own lets others use the playground."""
    open_browser: bool = False  # Open the page in a browser.

    def run(self) -> None:
        server = Playground(self.host, self.port)
        try:
            if not server.is_private:
                warning = f"warning: every machine that reaches {self.host} can use this playground; it has no password"
                errors.print(warning, style="yellow", soft_wrap=True)
            console.print(server.url, soft_wrap=True)
            if self.open_browser:
                threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            errors.print("the playground has ended")
        finally:
            server.close()
