"""The studies by name. A study's preset is ``study/NAME``, its small version ``study/NAME-quick``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.presets import list_presets, load_preset
from unmask.registry import did_you_mean
from unmask.studies.ablations import Ablations
from unmask.studies.antibody import Antibodies
from unmask.studies.characters import Characters
from unmask.studies.cost import Cost
from unmask.studies.countdown import CountdownOrders
from unmask.studies.cross_scale import CrossScale
from unmask.studies.difficulty import Difficulty
from unmask.studies.ends import Ends
from unmask.studies.exact import FourByFour
from unmask.studies.failures import Failures
from unmask.studies.heatmap import HeatMap
from unmask.studies.hidden import Hidden
from unmask.studies.lengths import Lengths
from unmask.studies.orders import Orders
from unmask.studies.parallel import Parallel
from unmask.studies.quality import Quality
from unmask.studies.rewards import Rewards
from unmask.studies.second import Second
from unmask.studies.tau import Tau
from unmask.studies.training import Training
from unmask.studies.transfer import Transfer

STUDIES: dict[str, type] = {
    "sudoku": Orders,
    "sudoku-4x4": Orders,
    "tau": Tau,
    "training": Training,
    "failures": Failures,
    "heatmap": HeatMap,
    "difficulty": Difficulty,
    "ablations": Ablations,
    "quality": Quality,
    "stage2": Second,
    "cross-scale": CrossScale,
    "four-by-four": FourByFour,
    "antibody": Antibodies,
    "lengths": Lengths,
    "countdown": CountdownOrders,
    "parallel": Parallel,
    "transfer": Transfer,
    "rewards": Rewards,
    "ends": Ends,
    "hidden": Hidden,
    "cost": Cost,
    "characters": Characters,
}
"""Name → the dataclass that its presets are read into."""


@dataclass(frozen=True)
class Entry:
    """A line of the list: what a study asks, and its minutes on one core, in full and quick."""

    name: str
    description: str
    minutes: float
    quick_minutes: float


def load_study(name: str, quick: bool = False, preset: str | Path | None = None) -> Any:
    """The study as its preset, its quick preset, or another TOML file sets it."""
    if name not in STUDIES:
        raise ValueError(f"no study {name!r}: expected {', '.join(STUDIES)}{did_you_mean(name, STUDIES)}")
    if preset is not None and quick:
        raise ValueError("name a preset or ask for the quick one, not both")
    return load_preset(preset or (f"{name}-quick" if quick else name), STUDIES[name], "study")


def entries() -> list[Entry]:
    about = {preset.name: preset.description for preset in list_presets("study")}
    return [
        Entry(name, about[name], load_study(name).minutes, load_study(name, quick=True).minutes) for name in STUDIES
    ]
