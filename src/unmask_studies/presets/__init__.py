"""Presets of studies: `study` has a TOML file for each (see `unmask_studies.catalogue`), `train` the trainings they compare."""

from pathlib import Path

FOLDER = Path(__file__).parent
