"""``unmask models``: published masked language models, from the wheels on PyPI that hold them to denoiser folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from unmask.cli.shell import console, require_new_folder
from unmask_studies.installer import install_model


@dataclass(frozen=True)
class Models:
    """Install a published model as a denoiser. Its weights come from a wheel on PyPI, checked by SHA-256; its code never runs.

    $ unmask models rxnmapper --out models/rxnmapper
    $ unmask evaluate --task reaction --denoiser models/rxnmapper --data reactions.csv --limit 100
    """

    name: Positional[
        str
    ]  # rxnmapper (3 MB) or rxnfp (75 MB): reactions; antiberty (97 MB), sapiens-vh, sapiens-vl (7 MB): antibodies.
    out: Path  # The new folder.
    wheels: Path | None = None  # A folder that holds the wheel already, for machines without PyPI.

    def run(self) -> None:
        require_new_folder(self.out)
        console.print(f"wrote {install_model(self.name, self.out, self.wheels)}")
