"""Studies run to their end in a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask_studies.study import Findings, GridStudy, conclude, run_study
from unmask_studies.tables import Cell


def run(study: GridStudy, folder: Path, **options: Any) -> Findings:
    for _ in run_study(study, folder, **options):
        pass
    return conclude(study, folder, "a study", "unmask study")


def text(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else cell
