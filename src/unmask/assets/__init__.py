"""What ships with the package: presets, trained denoisers, learned policies."""

from pathlib import Path

PRESETS = Path(__file__).parent / "presets"
MODELS = Path(__file__).parent / "models"
POLICIES = Path(__file__).parent / "policies"
