"""``unmask presets``: what can be chosen by name."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from unmask.cli.shell import console
from unmask.denoisers.loading import list_denoisers
from unmask.runs.presets import list_presets
from unmask.schedulers.loading import SCHEDULERS, list_policies


@dataclass(frozen=True)
class Presets:
    """List the presets, denoisers, policies and schedulers by name."""

    def run(self) -> None:
        for own in (True, False):
            table = Table(
                "for", "preset", "what", title=None if own else "of studies and plug-ins", title_justify="left"
            )
            for preset in list_presets():
                if preset.is_own == own:
                    table.add_row(preset.kind, preset.name, preset.description)
            console.print(table)
        console.print(f"denoisers: {', '.join(list_denoisers())}")
        console.print(f"policies: {', '.join(list_policies())}")
        console.print(f"schedulers: {', '.join(SCHEDULERS)}")
