"""``unmask antibody-models``: pretrained masked language models of antibodies, from PyPI to denoiser folders."""

from __future__ import annotations

from pathlib import Path

from unmask.cli.shell import console
from unmask_studies.antibody.models import install


def antibody_models(
    out: Path = Path("antibody-models"), /, models: tuple[str, ...] = (), wheels: Path | None = None
) -> None:
    """Install AntiBERTy and Sapiens as denoisers. Their weights come from PyPI; none of their code is run.

    $ unmask antibody-models
    $ unmask antibody-models models --models sapiens-h sapiens-l

    Args:
        out: The folder to write; each model gets a folder of its own in it.
        models: Which of them: antiberty (97 MB), sapiens-h and sapiens-l (7 MB together). All by default.
        wheels: A folder that holds the wheels already, for machines without PyPI.
    """
    for folder in install(out, models, wheels):
        console.print(f"wrote {folder}")
