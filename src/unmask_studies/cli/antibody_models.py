"""``unmask antibody-models``: pretrained masked language models of antibodies, from PyPI to denoiser folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from unmask.cli.shell import console
from unmask_studies.antibody.models import install


@dataclass(frozen=True)
class AntibodyModels:
    """Install AntiBERTy and Sapiens as denoisers. Their weights come from PyPI; none of their code is run.

    $ unmask antibody-models
    $ unmask antibody-models models --models sapiens-h sapiens-l
    """

    out: Positional[Path] = Path("antibody-models")  # The folder to write; each model gets a folder of its own in it.
    models: tuple[str, ...] = ()
    """Which of them: antiberty (97 MB), sapiens-h and sapiens-l (7 MB together). All by default."""
    wheels: Path | None = None  # A folder that holds the wheels already, for machines without PyPI.

    def run(self) -> None:
        for folder in install(self.out, self.models, self.wheels):
            console.print(f"wrote {folder}")
