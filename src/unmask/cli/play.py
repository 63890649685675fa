"""``unmask play``: the playground, a local page on which orders race."""

from __future__ import annotations

import threading
import webbrowser

from unmask.cli.shell import console, errors
from unmask.report.playground.server import Playground


def play(port: int = 8321, host: str = "127.0.0.1", open_browser: bool = False) -> None:
    """Open the playground, a local page. Several orders race over a Sudoku puzzle; Ctrl-C ends it.

    $ unmask play
    $ unmask play --port 9000 --open-browser

    Args:
        port: The port to listen at; 0 takes a free one.
        host: The address to listen at. Any other than this machine's own lets others use the playground.
        open_browser: Open the page in a browser.
    """
    server = Playground(host, port)
    try:
        if not server.is_private:
            errors.print(f"warning: whoever reaches {host} can use this playground; it has no password", style="yellow")
        console.print(server.url, soft_wrap=True)
        if open_browser:
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        errors.print("the playground has ended")
    finally:
        server.close()
