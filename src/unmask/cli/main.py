"""The command ``unmask``. Its commands are the entry points ``unmask.commands``, a plug-in's as well as these."""

from __future__ import annotations

from unmask.cli.shell import run
from unmask.runs.names import EntryPoints

LISTED = (
    *("demo", "play", "decode", "generate", "evaluate", "lm-eval", "train", "finetune", "pretrain", "plan"),
    *("trace", "view", "report", "figure", "data", "presets", "verify", "study", "bench", "models"),
)
COMMANDS = EntryPoints("unmask.commands", LISTED)


def main() -> None:
    """Run the command that the command line names."""
    run(
        COMMANDS,
        "unmask",
        "Learn and compare the orders in which masked diffusion language models reveal their tokens.",
    )


if __name__ == "__main__":
    main()
