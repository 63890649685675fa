"""``study/``: a TOML file for each study (:mod:`unmask_studies.catalogue` says what is in it). ``train/``: trainings that studies compare."""

from pathlib import Path

FOLDER = Path(__file__).parent
