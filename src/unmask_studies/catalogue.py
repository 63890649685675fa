"""The studies by name. A study's preset is ``study/NAME``, its small version ``study/NAME-quick``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.runs.names import did_you_mean
from unmask.runs.presets import list_presets, load_preset
from unmask_studies.antibody.study import Antibodies
from unmask_studies.exact.study import FourByFour
from unmask_studies.sudoku.ablations import Ablations
from unmask_studies.sudoku.cost import Cost
from unmask_studies.sudoku.cross_scale import CrossScale
from unmask_studies.sudoku.difficulty import Difficulty
from unmask_studies.sudoku.failures import Failures
from unmask_studies.sudoku.heatmap import HeatMap
from unmask_studies.sudoku.orders import Orders
from unmask_studies.sudoku.quality import Quality
from unmask_studies.sudoku.second import Second
from unmask_studies.sudoku.tau import Tau
from unmask_studies.sudoku.training import Training
from unmask_studies.text.characters import Characters
from unmask_studies.text.countdown import CountdownOrders
from unmask_studies.text.ends import Ends
from unmask_studies.text.hidden import Hidden
from unmask_studies.text.lengths import Lengths
from unmask_studies.text.parallel import Parallel
from unmask_studies.text.rewards import Rewards
from unmask_studies.text.transfer import Transfer

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
