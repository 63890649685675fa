"""``python -m unmask``: the command line, also for ``accelerate launch -m unmask``."""

from unmask.cli.main import main

if __name__ == "__main__":
    main()
