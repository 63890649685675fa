"""A TOML file for each study; :mod:`unmask_studies.catalogue` says what is in it."""

from pathlib import Path

FOLDER = Path(__file__).parent
