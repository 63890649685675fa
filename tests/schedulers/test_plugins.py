"""A distribution outside this one adds a scheduler, a denoiser and a task by entry points; the commands know them by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = '''
import dataclasses
from typing import Literal
from unmask import load_denoiser
from unmask.tasks.arithmetic import Arithmetic

def zigzag(view):
    """The even places first, then the odd ones."""
    return -(view.index % 2).float()

def load_mirror(folder, dtype, device, device_map):
    return load_denoiser("sudoku-4x4", dtype, device, device_map)

@dataclasses.dataclass(frozen=True)
class Riddles(Arithmetic):
    kind: Literal["riddles"] = "riddles"
'''
ENTRY_POINTS = """
[unmask.schedulers]
zigzag = zigzag_plugin:zigzag
[unmask.denoisers]
MirrorModel = zigzag_plugin:load_mirror
[unmask.tasks]
riddles = zigzag_plugin:Riddles
"""
PUZZLE = "1.3.341.2.4.432."


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed plug-in, and a checkpoint of its architecture."""
    folder = tmp_path_factory.mktemp("site")
    info = folder / "zigzag_plugin-1.0.dist-info"
    info.mkdir()
    (folder / "zigzag_plugin.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zigzag-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "mirror").mkdir()
    (folder / "mirror" / "config.json").write_text(json.dumps({"architectures": ["MirrorModel"]}))
    (folder / "mirror" / "model.safetensors").touch()
    return folder


def run(plugin: Path, *arguments: str) -> str:
    paths = [str(plugin), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=plugin, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_scheduler_and_a_denoiser_of_a_plugin_decode_a_puzzle(plugin: Path) -> None:
    out = run(plugin, "-m", "unmask", "decode", PUZZLE, "--denoiser", "mirror", "--scheduler", "zigzag")
    assert "solved" in out


def test_a_scheduler_of_a_plugin_is_evaluated(plugin: Path) -> None:
    command = ("evaluate", "--denoiser", "sudoku-4x4", "--schedulers", "confidence,zigzag", "--limit", "4", "--no-nll")
    out = run(plugin, "-m", "unmask", *command)
    assert "confidence" in out and "zigzag" in out


def test_a_task_of_a_plugin_is_known(plugin: Path) -> None:
    code = "from unmask.tasks.sources import KINDS; print(KINDS['riddles'].__name__, list(KINDS))"
    out = run(plugin, "-c", code)
    assert out.startswith("Riddles") and "sudoku" in out
